"""Models inside of models: they stay nested and are pruned like the rest."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from support.checks import assert_prunes_exactly


def transfer_model(base_training=None):
    base_input = keras.Input((8, 8, 3), name="pixels")
    x = L.Conv2D(6, 3, padding="same", name="conv")(base_input)
    x = L.BatchNormalization(name="bn")(x)
    x = L.ReLU()(x)
    y = L.Conv2D(6, 3, padding="same", name="conv2")(x)
    base = keras.Model(base_input, L.Add()([x, y]), name="base")
    head = keras.Sequential(
        [keras.Input((6,)), L.Dense(5, activation="relu", name="hidden"), L.Dense(2)],
        name="head",
    )
    inputs = keras.Input((8, 8, 3), name="image")
    x = base(inputs, training=base_training)
    x = L.Conv2D(4, 3, name="extra")(x)
    x = L.Concatenate()([x, L.Conv2D(2, 3)(base(inputs))])
    return keras.Model(inputs, head(L.GlobalAveragePooling2D()(x)), name="transfer")


def test_nested_models_stay_nested():
    model = transfer_model(base_training=False)
    pruner, slim, report = assert_prunes_exactly(model)
    assert {"base", "head"} <= {layer.name for layer in slim.layers}
    assert pruner.compactors[0].targets == ("conv", "conv2")
    hidden = slim.get_layer("head").get_layer("hidden")
    assert hidden.units < 5
    # The base runs twice, so its convolutions cost twice.
    conv = next(layer for layer in report.layers if layer.name == "conv")
    assert conv.flops == 2 * 64 * 9 * 3 * 6


def test_layers_of_the_same_name_in_two_nested_models_are_told_apart():
    def base(name, width):
        inputs = keras.Input((8, 8, 3))
        x = L.Conv2D(width, 3, activation="relu", name="conv")(inputs)
        return keras.Model(inputs, L.GlobalAveragePooling2D()(x), name=name)

    inputs = keras.Input((8, 8, 3))
    x = L.Concatenate()([base("left", 6)(inputs), base("right", 5)(inputs)])
    model = keras.Model(inputs, L.Dense(2, name="logits")(x))
    _, _, report = assert_prunes_exactly(model)
    widths = {layer.name: layer.width for layer in report.layers}
    assert widths == {"left/conv": 6, "right/conv": 5, "logits": 2}
    explained = {layer.name for layer in resrep_tf.explain(model).layers}
    assert explained == set(widths)


def test_nested_model_called_on_different_spaces_ties_them():
    inner_input = keras.Input((8, 8, 6))
    inner = keras.Model(inner_input, L.ReLU()(inner_input))
    inputs = keras.Input((8, 8, 3))
    a, b = (
        L.Conv2D(6, 3, padding="same", name="a")(inputs),
        L.Conv2D(6, 1, name="b")(inputs),
    )
    x = L.Concatenate()([inner(a), inner(b)])
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    spaces = ChannelGraph(model).spaces
    assert {"a", "b"} in [{p.name for p in space.producers} for space in spaces]
    assert_prunes_exactly(model)


def test_nested_model_called_with_its_inputs_by_name():
    """In another order than that of the names, which is how Keras flattens them."""
    second, first = keras.Input((8, 8, 6), name="b"), keras.Input((8, 8, 6), name="a")
    x = L.Concatenate()([second, L.Conv2D(5, 3, padding="same")(first)])
    inner = keras.Model([second, first], x)
    inputs = keras.Input((8, 8, 3))
    a, b = L.Conv2D(6, 1, name="to_a")(inputs), L.Conv2D(6, 3, padding="same")(inputs)
    x = inner(inputs={"a": L.ReLU()(a), "b": b})
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    assert_prunes_exactly(model)
    keep = {"to_a": np.arange(6) < 2}
    slim = resrep_tf.convert(resrep_tf.wrap(model, ["to_a"]), keep=keep, verify=1e-5)
    (nested,) = (y for y in slim.layers if isinstance(y, keras.Model))
    assert [t.shape[-1] for t in nested.inputs] == [6, 2]


def test_nested_model_with_open_extents_counts_what_it_really_runs_on():
    base_input = keras.Input((None, None, 3))
    base = keras.Model(base_input, L.Conv2D(4, 3, padding="same")(base_input))
    inputs = keras.Input((10, 12, 3))
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(base(inputs)))
    assert resrep_tf.count_flops(model) == 10 * 12 * 9 * 3 * 4
    assert resrep_tf.count_flops(base) == 224 * 224 * 9 * 3 * 4
    assert resrep_tf.count_flops(base, (5, 6, 3)) == 5 * 6 * 9 * 3 * 4
    with pytest.raises(ValueError, match=r"Received: input_shape=\(5, 6\)"):
        resrep_tf.count_flops(base, (5, 6))
