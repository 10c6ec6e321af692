"""The networks that Keras users have: each prunes exactly, saves and reloads."""

import keras
import pytest
import tensorflow as tf
from networks import HUB, NETWORKS
from support import assert_prunes_exactly, example, outputs, precision

import resrep_tf
from resrep_tf import models
from resrep_tf.verify import compare

# Made of composite layers without a rule.
NOTHING_TO_PRUNE = ("keras_hub.HGNetV2", "keras_hub.MobileNetV5")
# These amplify float32's rounding beyond 1e-5; float64's 1e-10 says more then.
AMPLIFYING = ("ResNet", "ResNetV2")
# Cheap enough to be tested in every way.
CHEAP = ("MobileNet", "MobileNetV3Small", *(network.name for network in HUB))


# The first network of each family in the list is its smallest.
SMALLEST = {network.family: name for name, network in reversed(NETWORKS.items())}


def slow_unless(quick):
    return [] if quick else [pytest.mark.slow]


def cases():
    for name, network in NETWORKS.items():
        if name not in NOTHING_TO_PRUNE:
            small = name in CHEAP or SMALLEST[network.family] == name
            yield pytest.param(name, "all", marks=slow_unless(small))
            yield pytest.param(name, None, marks=slow_unless(name in CHEAP))


def build(name):
    if NETWORKS[name] in HUB:
        pytest.importorskip("keras_hub")
    return NETWORKS[name].build()


def prune(name, targets):
    dtype = "float64" if NETWORKS[name].family in AMPLIFYING else "float32"
    with precision(dtype):
        return assert_prunes_exactly(build(name), targets, dtype=dtype)


@pytest.mark.parametrize("name, targets", list(cases()))
def test_prunes_exactly(name, targets):
    _, _, report = prune(name, targets)
    assert report.new_flops < report.flops


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=slow_unless(name in CHEAP))
        for name in NETWORKS
        if name not in NOTHING_TO_PRUNE
    ],
)
def test_reloads(name, tmp_path):
    _, slim, _ = prune(name, "all")
    expected = outputs(slim)
    slim.save(tmp_path / "slim.keras")
    slim.export(tmp_path / "saved_model", verbose=False)
    reloaded = keras.models.load_model(tmp_path / "slim.keras")
    assert compare(expected, outputs(reloaded)) == 0.0
    served = tf.saved_model.load(tmp_path / "saved_model").serve(example(slim))
    assert compare(expected, served) <= 1e-5


@pytest.mark.parametrize("name", NOTHING_TO_PRUNE)
def test_says_that_there_is_nothing_to_prune(name):
    with pytest.raises(ValueError, match="has nothing to prune: no layer can lose"):
        resrep_tf.wrap(build(name), "all")


# === The paper's targets ===


def keras_network(name):
    return getattr(keras.applications, name)(weights=None)


@pytest.mark.parametrize(
    "make, name, highest",
    [
        (models.build, "resnet50", 0.621),
        (models.build, "mobilenet", 0.739),
        (keras_network, "ResNet50", 0.621),
        (keras_network, "MobileNet", 0.739),
    ],
)
def test_internal_targets_reach_the_papers_reductions(make, name, highest):
    explanation = resrep_tf.explain(make(name))
    assert 1 - explanation.smallest_flops / explanation.flops > highest
