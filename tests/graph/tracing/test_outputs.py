"""What a traced model's outputs are called, and activations that are functions."""

import keras
import numpy as np
from keras import layers, ops

import resrep_tf
from support.checks import assert_prunes_exactly
from support.traced import assert_traces, images


class TwoHeads(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(6, 3)
        self.boxes, self.classes = layers.Dense(4), layers.Dense(3)

    def call(self, inputs):
        x = keras.activations.relu(self.conv(inputs), max_value=6.0)
        x = keras.ops.mean(keras.activations.leaky_relu(x), axis=(1, 2))
        return self.boxes(x), self.classes(x)


def two_headed():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(5, 3, name="stem")(inputs)
    return keras.Model(inputs, TwoHeads(name="heads")(x))


def test_a_traced_layer_with_two_outputs_leaves_its_name_to_both():
    traced = resrep_tf.trace(two_headed())
    assert traced.output_names == ["heads", "heads_1"]
    names = [op.name for op in traced.operations]
    assert len(set(names)) == len(names)
    pruner, slim, _ = assert_prunes_exactly(two_headed())
    assert pruner.output_names == slim.output_names == traced.output_names
    losses = {"heads": "mse", "heads_1": "mse"}
    pruner.compile("sgd", losses)
    x = np.ones((2, 8, 8, 3), "float32")
    y = {"heads": np.ones((2, 4)), "heads_1": np.ones((2, 3))}
    assert pruner.evaluate(x, y, verbose=0, return_dict=True)["heads_1_loss"] > 0


def test_activations_called_as_functions_are_followed():
    explanation = resrep_tf.explain(two_headed())
    status = {layer.name: layer.status for layer in explanation.layers}
    assert status["heads_conv"] == status["stem"] == "internal"
    assert not explanation.unknown


def test_an_activation_of_the_users_own_is_traced(tmp_path):
    """No config can hold a lambda, so that the model could not be copied as it is."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, name="conv")(inputs)
    x = layers.Activation(lambda x: ops.gelu(x, approximate=True), name="mine")(x)
    model = keras.Model(inputs, layers.Conv2D(2, 1, name="last")(x))
    traced, _ = assert_traces(model, images(), tmp_path)
    assert "mine_gelu" in [op.name for op in traced.operations]
    assert_prunes_exactly(model)
