"""Parameters of converted models, counted before they exist."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
import resrep_tf.models
from resrep_tf.budget.parameters import ParametersMeter, SizeMeter, merged_batchnorms
from resrep_tf.surgery.decide import decide
from resrep_tf.surgery.narrow import Narrower
from support.checks import leaves, random_keep, randomise
from support.models.networks import NETWORKS
from support.models.random_models import random_model
from support.models.small import small_model


def converted(model, seed=0):
    """Prunes a model at random; returns the result, its meter and the base's."""
    pruner = resrep_tf.wrap(model, targets="all")
    meter = ParametersMeter.of(pruner.graph)
    keep = random_keep(pruner, np.random.default_rng(seed))
    masks = [keep[compactor.name] for compactor in pruner.compactors]
    for channel in pruner.compactor_channels().masked(masks):
        meter.remove(channel)
    slim, report = resrep_tf.convert(
        pruner, keep=keep, verify=False, return_report=True
    )
    return slim, meter, report


@pytest.mark.parametrize("seed", range(6))
def test_exact_on_random_graphs(seed):
    model = randomise(random_model(seed))
    if not any(s.prunable for s in resrep_tf.ChannelGraph(model).spaces):
        pytest.skip("nothing to prune")
    slim, meter, report = converted(model, seed)
    if report.kept:
        pytest.skip("a channel had to stay, which nothing predicts")
    # Constants of removed channels may need biases that nothing had before.
    biases = sum(
        new.bias.shape[0]
        for new, old in layers_of(slim, model)
        if getattr(new, "bias", None) is not None and not old
    )
    assert slim.count_params() - biases == meter.current


def layers_of(slim, model):
    """Pairs each layer with whether it was to have a bias."""
    graph = resrep_tf.ChannelGraph(model)
    merged = merged_batchnorms(graph)
    biased = {
        calls[0].name
        for calls in graph.calls_by_op()
        if getattr(calls[0].op, "use_bias", False) or id(calls[0].op) in merged
    }
    return [(layer, layer.name in biased) for layer in leaves(slim)]


@pytest.mark.parametrize(
    "name",
    [
        "resnet20",
        pytest.param("MobileNetV3Small", marks=pytest.mark.slow),
        pytest.param("ResNet50", marks=pytest.mark.slow),
        pytest.param("MobileNetV2", marks=pytest.mark.slow),
    ],
)
def test_exact_on_known_networks(name):
    known = NETWORKS.get(name)
    model = known.build() if known else resrep_tf.models.build(name)
    slim, meter, _ = converted(model)
    assert slim.count_params() == meter.current < meter.total
    graph = resrep_tf.ChannelGraph(model)
    base = Narrower(graph, decide(graph, {}), fuse_bn=True).build()
    assert base.count_params() == meter.total


def test_sliced_model_keeps_its_batchnorms():
    model = resrep_tf.models.build("resnet20")
    graph = resrep_tf.ChannelGraph(model)
    meter = ParametersMeter.of(graph, fuse_bn=False)
    assert meter.total == model.count_params()
    keep = {}
    for space in graph.spaces:
        if space.prunable and space.internal:
            kept = np.arange(space.width) % 3 > 0
            keep[space.producers[0].name] = kept
            for channel in space.channels[~kept].tolist():
                meter.remove(channel)
    slim = resrep_tf.slicing.slice_channels(model, keep)
    assert slim.count_params() == meter.current < meter.total


def test_layers_with_other_weights():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, name="conv")(inputs)
    x = L.PReLU(shared_axes=[1, 2], name="slopes")(x)
    x = L.SeparableConv2D(8, 3, depth_multiplier=2, name="separable")(x)
    x = L.BatchNormalization(center=False, name="merged")(x)
    x = L.DepthwiseConv2D(3, use_bias=False, depth_multiplier=2, name="depth")(x)
    x = L.Conv2D(4, 1, groups=2, name="grouped")(x)
    x = L.LayerNormalization(name="opaque")(x)
    x = L.Flatten()(x)
    model = keras.Model(inputs, L.Dense(2, name="logits")(x))
    graph = resrep_tf.ChannelGraph(model)
    assert ParametersMeter.of(graph, fuse_bn=False).total == model.count_params()
    # The merged BatchNorm had three vectors; the layer before it has its bias already.
    assert ParametersMeter.of(graph).total == model.count_params() - 3 * 8
    slim, meter, _ = converted(randomise(model))
    assert slim.count_params() == meter.current < meter.total


@pytest.mark.parametrize("scale", [False, True])
def test_batchnorms_that_are_scaled_have_a_scale(scale):
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(5, 3, padding="same", name="stem")(inputs)
    y = L.ReLU()(L.BatchNormalization(scale=scale, name="norm")(x))
    x = L.Add()([x, L.Conv2D(5, 3, padding="same", name="branch")(y)])
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    slim, meter, report = converted(randomise(model))
    assert not report.kept and slim.get_layer("norm").scale
    assert slim.count_params() == meter.current < meter.total
    # Nothing scales the layer of the plain model.
    plain = ParametersMeter.of(resrep_tf.ChannelGraph(model))
    assert plain.total == model.count_params()


def test_size_is_a_multiple_and_a_constant():
    graph = resrep_tf.ChannelGraph(small_model())
    parameters = ParametersMeter.of(graph)
    size = SizeMeter.of(graph, bytes_per_parameter=2, constant=1000)
    assert size.total == 2 * parameters.total + 1000
    channel = int(next(s for s in graph.spaces if s.prunable).channels[0])
    assert size.cost(channel) == 2 * parameters.cost(channel) > 0
    assert "bytes" in repr(size) and "parameters" in repr(parameters)
