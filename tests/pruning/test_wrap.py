"""Wrapping: equal outputs, the right targets, clear refusals."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.convert import UnfinishedWarning
from resrep_tf.pruning.compactor import SplitActivation
from support.checks import outputs
from support.models.small import small_model


def targets_of(pruner):
    return [compactor.targets for compactor in pruner.compactors]


@pytest.mark.parametrize("kind", ["matrix", "vector"])
def test_outputs_are_equal_bit_for_bit(kind):
    model = small_model()
    pruner = resrep_tf.wrap(model, "all", compactor=kind)
    np.testing.assert_array_equal(outputs(model), outputs(pruner))
    assert {c.kind for c in pruner.compactors} == {kind}


def test_names_and_weights_survive_and_the_model_is_untouched():
    model = small_model()
    layers, weights = list(model.layers), model.get_weights()
    pruner = resrep_tf.wrap(model)
    assert pruner.name == "small"
    assert model.layers == layers
    for layer in model.layers:
        copy = pruner.get_layer(layer.name)
        assert copy is not layer
        for old, new in zip(layer.get_weights(), copy.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
    pruner.get_layer("conv1").kernel.assign_add(
        np.ones(pruner.get_layer("conv1").kernel.shape)
    )
    for old, new in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (None, [("conv1",), ("hidden",)]),
        ("all", [("conv1",), ("conv2", "conv3"), ("hidden",)]),
        (["conv1"], [("conv1",)]),
        ("hidden", [("hidden",)]),
        (["conv3"], [("conv2", "conv3")]),
        (re.compile("conv[12]"), [("conv1",), ("conv2", "conv3")]),
        (lambda layer: isinstance(layer, L.Dense) and layer.units == 4, [("hidden",)]),
    ],
)
def test_targets(targets, expected):
    assert targets_of(resrep_tf.wrap(small_model(), targets)) == expected


def test_compactor_stands_between_a_layer_and_its_activation():
    pruner = resrep_tf.wrap(small_model("tanh"), ["conv2"])
    assert pruner.get_layer("conv2").activation is keras.activations.linear
    split = pruner.get_layer("conv2_activation")
    assert isinstance(split, SplitActivation)
    assert split.activation is keras.activations.tanh
    with pytest.warns(UnfinishedWarning, match="nothing was removed"):
        slim = resrep_tf.convert(pruner)
    assert slim.get_layer("conv2").activation is keras.activations.tanh
    assert "conv2_activation" not in {layer.name for layer in slim.layers}


def test_compactor_names_do_not_collide():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, name="conv")(inputs)
    x = L.Conv2D(4, 3, name="conv_compactor", activation="relu")(x)
    x = L.ReLU(name="conv_compactor_activation")(x)
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(L.Conv2D(2, 1)(x)))
    pruner = resrep_tf.wrap(model)
    names = [layer.name for layer in pruner.layers]
    assert len(set(names)) == len(names)


def test_frozen_layers_stay_frozen_but_their_compactors_train():
    model = small_model()
    model.get_layer("conv1").trainable = False
    pruner = resrep_tf.wrap(model)
    assert not pruner.get_layer("conv1").trainable
    trained = {id(v) for v in pruner.trainable_variables}
    assert {id(c.kernel) for c in pruner.compactors} <= trained
    assert id(pruner.get_layer("conv1").kernel) not in trained


def test_frozen_nested_base():
    base_input = keras.Input((8, 8, 3))
    base = keras.Model(base_input, L.Conv2D(4, 3, name="conv")(base_input), name="base")
    base.trainable = False
    inputs = keras.Input((8, 8, 3))
    x = L.GlobalAveragePooling2D()(base(inputs, training=False))
    pruner = resrep_tf.wrap(keras.Model(inputs, L.Dense(2, name="head")(x)))
    paths = {v.path for v in pruner.trainable_variables}
    assert paths == {"conv_compactor/kernel", "head/kernel", "head/bias"}


def test_regularisers_and_settings_survive():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, kernel_regularizer=keras.regularizers.L2(0.5), name="c")(inputs)
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    pruner = resrep_tf.wrap(model)
    assert float(pruner.losses[0]) == pytest.approx(float(model.losses[0]))


# === Refusals ===


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = L.Conv2D(4, 3)
        self.head = L.Conv2D(2, 1)

    def call(self, inputs):
        return self.head(self.conv(inputs))


def refusal(model, targets=None, **kwargs):
    with pytest.raises((ValueError, TypeError)) as caught:
        resrep_tf.wrap(model, targets, **kwargs)
    return str(caught.value)


def test_models_of_unknown_shape():
    text = refusal(Subclassed())
    assert "(Subclassed) is not known. Call the model once on data" in text
    text = refusal(keras.Sequential([L.Conv2D(4, 3)], name="open"))
    assert "The input of `open` (Sequential) is not known" in text
    assert "Received: input_shape=None" in text


def test_a_call_that_is_not_told_of_training():
    with pytest.warns(UserWarning, match=r"The `call` of `Subclassed` has no argument"):
        pruner = resrep_tf.wrap(Subclassed(), input_shape=(8, 8, 3))
    assert targets_of(pruner) == [("conv",)]


def test_not_a_model():
    assert "Received: model='resnet50' (of type str)" in refusal("resnet50")


def test_nothing_to_prune():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(2, name="only")(inputs))
    text = refusal(model)
    assert "nothing to prune" in text
    assert "`only`: it is an output of the model" in text
    inputs = keras.Input((8, 8, 3))
    assert "no convolution" in refusal(keras.Model(inputs, L.ReLU()(inputs)))


def test_only_shared_spaces():
    inputs = keras.Input((8, 8, 3))
    x = L.Add()([L.Conv2D(4, 3)(inputs), L.Conv2D(4, 3)(inputs)])
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    assert "`targets='all'` prunes those too" in refusal(model)
    assert len(resrep_tf.wrap(model, "all").compactors) == 1


def test_unknown_target_names_the_nearest():
    text = refusal(small_model(), ["conv_1"])
    assert "No convolution or dense layer is called 'conv_1'" in text
    assert "Did you mean ['conv1'" in text
    assert "Received: targets=['conv_1']" in text
    assert "There are: ['conv1'" in refusal(small_model(), ["zzz"])


def test_targets_that_match_nothing():
    assert "`targets` matches none" in refusal(small_model(), re.compile("x"))
    assert "`targets` matches none" in refusal(small_model(), lambda layer: False)


def test_pinned_target():
    text = refusal(small_model(), ["logits"])
    assert "Layer `logits` cannot be pruned: it is an output of the model" in text


def test_wrapped_twice():
    assert "already has compactors" in refusal(resrep_tf.wrap(small_model()))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(value):
    model = small_model()
    model.get_layer("conv2").bias.assign([0, 0, value, 0, 0])
    assert "NaN or infinite weights: ['conv2']" in refusal(model)


def test_unknown_compactor():
    assert "compactor='tensor'" in refusal(small_model(), compactor="tensor")


def test_layer_that_cannot_be_copied():
    class Odd(L.Layer):
        def __init__(self, size):
            super().__init__(name="odd")
            self.size = size

        def call(self, inputs):
            return tf.math.scalar_mul(self.size, inputs)

        def get_config(self):
            return {"name": self.name}

    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(3, 1)(L.Conv2D(4, 3)(inputs))
    model = keras.Model(inputs, Odd(2.0)(x))
    text = refusal(model)
    assert "These layers cannot be copied" in text and "`odd` (Odd)" in text
    assert "get_config()" in text
