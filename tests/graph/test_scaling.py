"""Layers that are scaled, so that a pruned channel stays zero in front of padding."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.baselines.filters import FILTERS
from resrep_tf.graph.channel_graph import ChannelGraph
from support.checks import (
    assert_prunes_exactly,
    every_second,
    forget_at_random,
    randomise,
)


def preactivated(scale=True, center=True, frozen=False):
    """Two blocks that begin with a BatchNorm, as in a ResNet of the second version."""
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(5, 3, padding="same", name="stem")(inputs)
    for number in range(2):
        norm = L.BatchNormalization(
            scale=scale, center=center, trainable=not frozen, name=f"norm{number}"
        )
        y = L.Conv2D(4, 3, padding="same", name=f"a{number}")(L.ReLU()(norm(x)))
        x = L.Add()([x, L.Conv2D(5, 1, name=f"b{number}")(y)])
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))


def space_of(model, layer):
    return next(
        space
        for space in ChannelGraph(model).spaces
        if layer in [producer.name for producer in space.producers]
    )


@pytest.mark.parametrize("scale, center", [(True, True), (False, True), (False, False)])
def test_a_batchnorm_before_a_padded_convolution_is_scaled(scale, center):
    model = preactivated(scale, center)
    stream = space_of(model, "stem")
    assert stream.prunable and not stream.internal
    assert [p.name for p in stream.scaled] == ["norm0", "norm1"]
    pruner, slim, report = assert_prunes_exactly(model, seed=1)
    compactor = pruner.get_layer("norm0_compactor")
    assert compactor.kind == "vector" and compactor.targets == ("norm0", "norm1")
    assert not report.kept
    width = slim.get_layer("stem").filters
    assert width < 5 and slim.get_layer("norm0").moving_mean.shape == (width,)


def test_a_channel_goes_when_its_factors_are_zero_too():
    model = randomise(preactivated())
    pruner = resrep_tf.wrap(model, "all")
    row = np.array([True, True, False, True, True])
    slim = resrep_tf.convert(pruner, keep={"stem": row})
    assert slim.get_layer("stem").filters == 5
    slim = resrep_tf.convert(pruner, keep={"stem": row, "norm0": row})
    assert slim.get_layer("stem").filters == 4


def test_a_frozen_batchnorm_is_scaled_and_stays_frozen():
    _, slim, _ = assert_prunes_exactly(preactivated(frozen=True), seed=2)
    assert not slim.get_layer("norm0").trainable


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("kind", ["bias", "norm", "activation"])
def test_a_depthwise_convolution_is_scaled(kind, multiplier):
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 3, activation="relu", name="target")(inputs)
    x = L.DepthwiseConv2D(
        3,
        padding="same",
        depth_multiplier=multiplier,
        use_bias=kind != "norm",
        activation="tanh" if kind == "activation" else None,
        name="deep",
    )(x)
    x = L.ReLU()(L.BatchNormalization()(x)) if kind == "norm" else x
    x = L.Conv2D(3, 3, padding="same", name="reader")(x)
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    assert [p.name for p in space_of(model, "target").scaled] == ["deep"]
    _, slim, report = assert_prunes_exactly(model, choose=every_second)
    assert not report.kept
    assert slim.get_layer("target").filters == 2


def test_what_follows_a_scaled_layer_may_hold_a_channel_all_the_same():
    inputs = keras.Input((6, 6, 2))
    x = L.BatchNormalization()(L.Conv2D(4, 3, activation="relu", name="target")(inputs))
    x = L.Conv2D(3, 3, padding="same")(L.Activation("sigmoid")(x))
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    space = space_of(model, "target")
    assert not space.prunable and not space.scaled
    assert "pads its input" in space.reason


def test_channels_of_several_layers_before_one_batchnorm_are_one_space():
    """A DenseNet without bottlenecks, as for CIFAR."""
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 3, padding="same", name="stem")(inputs)
    for number in range(2):
        y = L.ReLU()(L.BatchNormalization()(x))
        y = L.Conv2D(3, 3, padding="same", use_bias=False, name=f"grow{number}")(y)
        x = L.Concatenate()([x, y])
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    _, _, report = assert_prunes_exactly(model, seed=4)
    assert not report.kept
    names = [p.name for p in space_of(model, "stem").producers]
    assert names == ["stem", "grow0"]


def test_shrinking_scales_batchnorms_and_goes_on():
    model = randomise(preactivated())
    pruner = resrep_tf.wrap(model, "all")
    pruner.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    forget_at_random(pruner, np.random.default_rng(0))
    images = np.random.default_rng(1).normal(size=(8, 6, 6, 2)).astype("float32")
    slim, report = resrep_tf.shrink(pruner, images, return_report=True)
    assert report.difference < 1e-5
    norms = [x for x in slim.layers if isinstance(x, L.BatchNormalization)]
    assert [norm.name for norm in norms] == ["norm0", "norm1"]


def test_filters_of_a_space_with_scaled_layers_cannot_be_trained_to_be_forgotten():
    with pytest.raises(ValueError, match="needs `norm0` to forget its channels too"):
        resrep_tf.wrap(preactivated(), "all", FILTERS)


def test_a_gate_needs_no_compactor_but_the_gated_layer_does():
    """A squeeze-excite gate behind a depthwise convolution, as in EfficientNet."""
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 1, activation="relu", name="expand")(inputs)
    x = L.DepthwiseConv2D(3, padding="same", name="deep")(x)
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(4, 1, activation="sigmoid", name="gate")(gate)
    x = L.Conv2D(3, 3, padding="same")(L.Multiply()([x + 0.5, gate]))
    x = L.Conv2D(3, 3, padding="same")(L.BatchNormalization()(x))
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    for space in ChannelGraph(model).spaces:
        assert space.producers
        assert all(p.calls[0].rule.produces for p in space.producers)
    _, _, report = assert_prunes_exactly(model, choose=every_second)
    assert not report.kept
