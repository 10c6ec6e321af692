"""Layers that cannot be made anew from their configs are named before anything else."""

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

import resrep_tf
from resrep_tf.graph.tracing import check_copyable, trace


def around(layer):
    inputs = keras.Input((8, 8, 3))
    return keras.Model(inputs, layers.Conv2D(6, 1)(layer(inputs)))


class Forgetful(layers.Layer):
    """Cannot be made anew from its config."""

    def __init__(self, widths, function):
        super().__init__()
        self.widths = widths
        self.function = function

    def call(self, x):
        return self.function(x)


class ForgetfulToo(Forgetful):
    def get_config(self):
        return {"name": self.name}


def test_layers_without_a_config_are_named_together():
    inputs = keras.Input((8, 8, 3))
    x = Forgetful([3], tf.nn.relu)(inputs)
    x = Forgetful([4], ops.relu)(x)  # Can be traced, and needs no config.
    x = ForgetfulToo([3], tf.nn.tanh)(x)
    traced, report = trace(keras.Model(inputs, x), return_report=True)
    assert len(report.opaque) == 2
    with pytest.raises(ValueError, match=r"forgetful`.*forgetful_too`"):
        check_copyable(traced)


class Scales(layers.Layer):
    """Made anew from its config, it forgets what it was given."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.times = factor

    def call(self, x):
        return tf.multiply(x, self.times)

    def get_config(self):
        return {"name": self.name}


def test_a_config_that_lacks_an_argument_is_no_config():
    check_copyable(trace(around(Scales())))  # There is nothing to forget.
    with pytest.raises(ValueError, match=r"`scales` \(Scales\): without `factor`"):
        resrep_tf.wrap(around(Scales(2.0, name="scales")))
