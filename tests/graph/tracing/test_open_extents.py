"""Calls that name the number of examples, which is open in a graph."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from resrep_tf.graph.tracing import trace
from support.traced import images


class Around(keras.Model):
    """Does something to the feature map, as a function of it and its shape."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(4, 3, name="conv")
        self.function = function
        self.head = layers.Dense(2)

    def call(self, x):
        x = self.conv(x)
        return self.head(self.function(x, *ops.shape(x)))


def shuffled(x, b, h, w, c):
    x = ops.transpose(ops.reshape(x, (b, h, w, 2, c // 2)), (0, 1, 2, 4, 3))
    return ops.reshape(x, (b, h, w, c))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, b, h, w, c: ops.reshape(x, (b, h * w, c)),
        lambda x, b, h, w, c: ops.reshape(x, (b, -1)),
        lambda x, b, h, w, c: ops.reshape(x, (b, -1, c)),
        shuffled,
        lambda x, b, h, w, c: layers.Reshape((h, c, w))(x)[..., :6],
    ],
)
def test_reshapes_find_the_number_of_examples(function):
    model = Around(function)
    outputs = [model(images(batch=batch)) for batch in (2, 3)]
    traced = trace(model)
    for batch, expected in zip((2, 3), outputs, strict=True):
        np.testing.assert_array_equal(traced(images(batch=batch)), expected)
    assert traced.output_shape == (None, *outputs[0].shape[1:])


@pytest.mark.parametrize(
    "function, reason",
    [
        (
            lambda x, b, h, w, c: ops.broadcast_to(ops.mean(x, 0), (b, h, w, c)),
            "gives `BroadcastTo` the number of examples",
        ),
        (
            lambda x, b, h, w, c: x + ops.zeros((b, 1, 1, c)),
            "computes with a size that is open, such as the number of examples",
        ),
        (
            # Which examples are meant is no longer clear.
            lambda x, b, h, w, c: ops.reshape(ops.reshape(x, (-1, w, c)), (b, -1, c)),
            "gives `Reshape` the number of examples",
        ),
    ],
)
def test_others_cannot_be_traced(function, reason):
    model = Around(function)
    model(images(batch=2))
    with pytest.raises(ValueError, match=reason):
        trace(model)
