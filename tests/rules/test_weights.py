"""Reading weights, on a copy. With replicas: see `support/on_two_replicas.py`."""

import keras
import numpy as np

from resrep_tf.rules.weights import read, stored, weights_of


def test_values_come_in_double_precision_or_as_they_are():
    variable = keras.Variable(np.float32([0.1, 2.0]))
    assert read(None) is None
    assert read(variable).dtype == np.float64
    np.testing.assert_array_equal(read(variable), np.float32([0.1, 2.0]))
    assert stored(variable).dtype == np.float32
    np.testing.assert_array_equal(read(variable.value), read(variable))


def test_integers_stay_integers():
    counter = keras.Variable(7, dtype="int64", trainable=False)
    assert stored(counter).dtype == np.int64


def test_weights_of_a_layer_and_of_an_operation():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))
    found = weights_of(layer)
    assert len(found) == 4
    for value, expected in zip(found, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == expected.dtype
    operation = (keras.Input((3,)) + 1.0)._keras_history.operation
    assert weights_of(operation) == []


def test_what_was_read_is_a_copy():
    variable = keras.Variable(np.zeros(3, np.float32), trainable=False)
    read(variable)[:] = 1.0
    np.testing.assert_array_equal(variable, np.zeros(3))
