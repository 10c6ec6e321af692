"""Slicing: what conversion gives, with BatchNorms left in place."""

import keras
import numpy as np
import pytest

import resrep_tf
from resrep_tf.surgery.slicing import slice_channels
from resrep_tf.surgery.verify import compare
from support.checks import assert_plain, by_channel, outputs, random_keep, randomise
from support.models.random_models import RandomModel
from support.models.small import small_model


def assert_slices_like_conversion(model, seed):
    rng = np.random.default_rng(seed)
    pruner = resrep_tf.wrap(model, "all")
    keep = by_channel(pruner, random_keep(pruner, rng))
    expected = resrep_tf.convert(pruner, keep=keep)
    by_layer = {c.targets[0]: keep[c.name] for c in pruner.compactors}
    slim = slice_channels(model, by_layer)
    assert compare(outputs(expected), outputs(slim)) < 1e-4
    assert resrep_tf.count_flops(slim) == resrep_tf.count_flops(expected)
    assert_plain(slim)
    return slim


def test_small_model_keeps_its_batchnorm():
    model = small_model()
    slim = assert_slices_like_conversion(model, seed=0)
    norm = slim.get_layer("bn1")
    assert norm.gamma.shape[0] == slim.get_layer("conv1").filters < 6
    assert [layer.name for layer in slim.layers] == [x.name for x in model.layers]


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_built_in_activations(activation):
    inputs = keras.Input((4,))
    x = keras.layers.Dense(6, activation=activation, name="target")(inputs)
    model = randomise(keras.Model(inputs, keras.layers.Dense(3)(x)))
    slim = assert_slices_like_conversion(model, seed=1)
    assert slim.get_layer("target").units < 6


@pytest.mark.parametrize("seed", (1, 2))
def test_random_graphs(seed):
    keras.utils.set_random_seed(seed)
    model = randomise(RandomModel(seed).build(), seed)
    assert_slices_like_conversion(model, seed)


def test_the_model_is_not_changed():
    model = small_model()
    before = model.get_weights()
    slice_channels(model, {"conv1": [True] * 3 + [False] * 3})
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (
            {"con1": [True]},
            r"no layer that can lose.*'con1'.*Received: keep=\['con1'\]",
        ),
        ({"logits": [True] * 3}, "'logits' .it is an output of the model"),
        ({"conv1": [True] * 5}, r"`keep\['conv1'\]` must be 6 booleans"),
        ({"conv1": [False] * 6}, "at least one of them true"),
        ({"conv1": np.ones(6)}, "must be 6 booleans"),
    ],
)
def test_errors(keep, message):
    with pytest.raises(ValueError, match=message):
        slice_channels(small_model(), keep)
