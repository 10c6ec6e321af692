"""Rounding is told from faults where outputs cancel."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.surgery.rounding import rounding
from resrep_tf.surgery.verify import TOLERANCES, difference
from support.checks import precision, randomise
from support.faults import plant


def test_a_sum_may_move_as_its_terms_are_rounded():
    inputs = keras.Input((400,))
    model = keras.Model(inputs, L.Dense(300)(inputs))
    kernel = np.random.default_rng(0).normal(size=(400, 300)).astype("float32")
    model.set_weights([kernel, np.zeros(300, "float32")])
    x = np.ones((2, 400), "float32")
    x[1] *= 10
    (found,) = rounding(model, lambda: [model(x)], "float32")
    terms = np.sqrt(np.sum(np.square(kernel), axis=0)).max()
    assert found.shape == (2,)
    # Of 300 sums the one that moves most.
    assert 16 * 2**-23 * terms < found[0] < 3 * 16 * 2**-23 * terms
    assert found[1] == pytest.approx(10 * found[0], rel=1e-2)
    np.testing.assert_array_equal(model.get_weights()[0], kernel)


def test_weights_are_put_back_after_an_error():
    model = randomise(keras.Sequential([keras.Input((3,)), L.Dense(2)]))
    before = model.get_weights()

    def fails():
        if not np.array_equal(model.get_weights()[0], before[0]):
            raise RuntimeError
        return []

    with pytest.raises(RuntimeError):
        rounding(model, fails, "float32")
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_what_is_not_finite_is_not_explained():
    model = randomise(keras.Sequential([keras.Input((3,)), L.Dense(2)]))
    x = np.full((2, 3), 3e38, "float32")
    (found,) = rounding(model, lambda: [model(x) * 1e30], "float32")
    np.testing.assert_array_equal(found, [0.0, 0.0])


def cancelling(share):
    """A wrapped model whose logits are the difference of two nearly equal branches."""
    inputs = keras.Input((12,))
    x = L.Dense(16, activation="relu", name="first")(inputs)
    x = L.Dense(16, activation="relu", name="second")(x)
    left, right = (L.Dense(3, name=name)(x) for name in ("left", "right"))
    model = randomise(keras.Model(inputs, L.Subtract()([left, right])))
    kernel, bias = model.get_layer("left").get_weights()
    noise = share * np.random.default_rng(1).normal(size=kernel.shape)
    model.get_layer("right").set_weights([kernel * (1 + noise), bias])
    pruner = resrep_tf.wrap(model)
    rng = np.random.default_rng(2)
    for compactor in pruner.compactors:
        value = np.asarray(compactor.kernel)
        value = value + 0.2 * rng.normal(size=value.shape)
        value[:, ::2] = 0.0
        compactor.kernel.assign(value)
    return pruner


unfinished = pytest.mark.filterwarnings(
    "ignore::resrep_tf.convert.conversion.UnfinishedWarning"
)


@unfinished
def test_logits_that_cancel_may_differ_as_rounding_explains():
    pruner = cancelling(share=1e-4)
    slim = resrep_tf.convert(pruner, verify=False)
    x = np.random.default_rng(0).normal(size=(32, 12)).astype("float32")
    limit = TOLERANCES["float32"]
    # Relative to their size, rounding looks like a fault.
    assert difference(pruner, slim, x, limit) > 2 * limit
    assert difference(pruner, slim, x, limit, "float32") < limit
    resrep_tf.convert(pruner)
    # Who gives a number means it.
    with pytest.raises(ValueError, match=r"differ by .* more than 0\.0001"):
        resrep_tf.convert(pruner, verify=limit)
    with precision("float64"):
        exact = cancelling(share=1e-4)
        _, report = resrep_tf.convert(exact, return_report=True)
    assert report.difference < 1e-9


@unfinished
@pytest.mark.parametrize("kind", ["wrong scale", "one wrong entry", "bias twice"])
def test_faults_are_seen_where_logits_cancel(kind, monkeypatch):
    pruner = cancelling(share=1e-4)
    with monkeypatch.context() as patch:
        planted = plant(patch, kind, 0, np.random.default_rng(0))
        with pytest.raises(ValueError, match="does not compute"):
            resrep_tf.convert(pruner)
    assert planted
