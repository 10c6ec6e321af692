"""Published networks, traced: equal to the bit, and pruned as a graph."""

import keras
import numpy as np
import pytest

import resrep_tf
from resrep_tf.graph.tracing import trace
from support.checks import assert_prunes_exactly
from support.models.networks import NETWORKS
from support.models.published import PUBLISHED
from support.traced import assert_same_training, assert_traces, images

# Of the hub's networks, those with layers that are whole blocks.
HUB = ("HGNetV2", "MobileNet", "MobileNetV5", "EfficientNet", "EfficientNetEdge")
QUICK = ("ResNet",)


def some_slow(names, quick):
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def free(model):
    """The share of a model's multiply-adds in layers that can lose channels."""
    layers = resrep_tf.explain(model).layers
    return sum(layer.share for layer in layers if layer.status != "pinned")


@pytest.mark.parametrize("name", some_slow(PUBLISHED, QUICK))
def test_published_networks_are_equal_and_prune(name, tmp_path):
    model = PUBLISHED[name]()
    traced, report = assert_traces(model, images(32, 32, 3, batch=2), tmp_path)
    assert str(report) == "Everything was traced."
    assert all(type(layer).__module__.startswith("keras.") for layer in traced.layers)
    _, _, result = assert_prunes_exactly(traced)
    assert result.new_flops < 0.8 * result.flops


@pytest.mark.parametrize("name", some_slow(HUB, ("HGNetV2",)))
def test_networks_of_keras_hub_are_equal_and_prune(name):
    pytest.importorskip("keras_hub")
    model = NETWORKS[f"keras_hub.{name}"].build()
    traced, report = assert_traces(model, images(32, 32, 3, batch=2))
    assert not report.opaque
    # MobileNetV5 multiplies by weights of its own.
    own = ("keras.", "resrep_tf.graph.tracing.")
    assert all(type(layer).__module__.startswith(own) for layer in traced.layers)
    assert free(traced) > 0.9
    _, _, result = assert_prunes_exactly(traced)
    assert result.new_flops < 0.6 * result.flops


@pytest.mark.parametrize("name", some_slow(("ResNet", "UNet"), QUICK))
def test_a_subclassed_network_is_its_functional_twin(name):
    """Tracing, wrapping and converting give what a Functional copy gives."""
    model = PUBLISHED[name]()
    model(images(32, 32, 3))
    traced = trace(model)
    copy = keras.models.clone_model(traced)
    copy.set_weights(traced.get_weights())
    results = []
    for each in (traced, copy):
        pruner = resrep_tf.wrap(each, "all")
        keep = {}
        for index, compactor in enumerate(pruner.compactors):
            rng = np.random.default_rng(index)
            keep[compactor.name] = rng.random(compactor.width) < 0.5
            keep[compactor.name][0] = True
        results.append(resrep_tf.convert(pruner, keep=keep))
    for one, two in zip(*(m.get_weights() for m in results), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_in_graph_mode_training_is_the_same_too():
    model = PUBLISHED["ResNet"]()
    x = images(32, 32, 3)
    model(x)
    traced = trace(model)
    assert_same_training(model, traced, x, rounding=1e-6, run_eagerly=False)
