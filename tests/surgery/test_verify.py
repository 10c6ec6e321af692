"""Comparisons on random inputs: what they see, and what they let pass."""

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.surgery.verify import compare, lowest_precision, random_inputs
from support.checks import precision


def test_equal_outputs_do_not_differ():
    values = np.random.default_rng(0).normal(size=(3, 4))
    assert compare(values, values.copy()) == 0.0
    assert compare({"a": values, "b": [values]}, {"a": values, "b": [values]}) == 0.0


def test_a_difference_is_relative_to_the_scale():
    values = np.array([[1.0, -2.0], [2.0, 0.5]])
    assert compare(values, values + 0.002) == pytest.approx(0.001)
    assert compare(1e6 * values, 1e6 * (values + 0.002)) == pytest.approx(0.001)


def test_a_large_example_does_not_hide_a_small_one():
    values = np.array([[100.0], [1.0]])
    assert compare(values, values + np.array([[0.0], [0.5]])) == pytest.approx(0.5)


def test_what_is_explained_does_not_count():
    values = np.array([[1.0], [4.0]])
    found = compare(values, values + 0.1, [np.array([0.2, 0.05])])
    assert found == pytest.approx(0.1 / 4)
    assert compare(values, values + 0.1, [np.array([0.2, 0.2])]) == 0.0
    assert compare(values, values * np.inf, [np.array([9.0, 9.0])]) == float("inf")


def test_an_example_of_zeros_has_the_scale_of_the_others():
    values = np.array([[1.0], [0.0]])
    assert compare(values, values + np.array([[0.0], [1e-6]])) == pytest.approx(1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_must_be_the_same(bad):
    values = np.ones((2, 2))
    broken = values.copy()
    broken[1, 1] = bad
    assert compare(values, broken) == compare(broken, values) == float("inf")
    assert compare(broken, broken) == 0.0


def test_inputs_have_the_models_structure_and_shapes():
    image = keras.Input((None, None, 3), name="image")
    number = keras.Input((2,), dtype="int32", name="number")
    x = L.Concatenate()([L.GlobalMaxPooling2D()(image), L.Rescaling(1.0)(number)])
    model = keras.Model({"image": image, "number": number}, x)
    shapes = [(None, 5, 6, 3), (None, 2)]
    found = random_inputs(model, shapes, batch=4)
    assert found["image"].shape == (4, 5, 6, 3) and found["image"].dtype == "float32"
    assert found["number"].dtype == "int32" and set(found["number"].ravel()) <= {0, 1}
    # Every second example is as large as pixels are.
    sizes = np.abs(found["image"]).mean(axis=(1, 2, 3))
    assert (sizes[1::2] > 20 * sizes[::2]).all()
    again = random_inputs(model, shapes, batch=4)
    np.testing.assert_array_equal(found["image"], again["image"])
    other = random_inputs(model, shapes, batch=4, seed=1)
    assert not np.array_equal(found["image"], other["image"])


def test_the_lowest_precision_counts():
    inputs = keras.Input((3,))
    assert lowest_precision(keras.Model(inputs, L.Dense(2)(inputs))) == "float32"
    half = L.Dense(2, dtype="mixed_float16")
    model = keras.Model(inputs, L.Dense(2)(half(inputs)))
    assert lowest_precision(model) == "float16"
    with precision("float64"):
        inputs = keras.Input((3,))
        model = keras.Model(inputs, L.Dense(2)(inputs))
    assert lowest_precision(model) == "float64"
