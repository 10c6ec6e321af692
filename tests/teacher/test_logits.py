"""Logits: what a model's outputs are is found wherever it is decided."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

from resrep_tf.graph.heads import output_activation
from resrep_tf.teacher.logits import to_logits


def model_of(block):
    inputs = keras.Input((6,))
    return keras.Model(inputs, block(inputs))


@pytest.mark.parametrize(
    "expected, block",
    [
        ("linear", lambda x: L.Dense(3)(x)),
        ("linear", lambda x: x),
        ("linear", lambda x: L.Dense(3)(x) + L.Dense(3)(x)),
        ("linear", lambda x: ops.mean(L.Reshape((2, 3))(x), axis=1)),
        ("linear", lambda x: L.Dropout(0.1)(L.Dense(3)(x))),
        ("linear", lambda x: L.BatchNormalization()(L.Dense(3)(x))),
        ("softmax", lambda x: L.Dense(3, "softmax")(x)),
        ("softmax", lambda x: L.Softmax()(L.Dense(3)(x))),
        ("softmax", lambda x: ops.softmax(L.Dense(3)(x))),
        ("softmax", lambda x: L.Activation("softmax")(L.Dense(3)(x))),
        ("softmax", lambda x: L.Activation("linear")(L.Dense(3, "softmax")(x))),
        ("softmax", lambda x: ops.cast(L.Dense(3, "softmax")(x), "float64")),
        ("softmax", lambda x: keras.Sequential([L.Dense(3, "softmax")])(x)),
        ("softmax", lambda x: L.Average()([L.Dense(3, "softmax")(x)] * 2)),
        ("softmax", lambda x: ops.mean(L.Reshape((2, 3))(L.Softmax()(x)), axis=1)),
        ("log_softmax", lambda x: ops.log_softmax(L.Dense(3)(x))),
        ("sigmoid", lambda x: L.Dense(1, "sigmoid")(x)),
        ("sigmoid", lambda x: ops.sigmoid(L.Dense(3)(x))),
        ("tanh", lambda x: L.Dense(3, "tanh")(x)),
        ("ReLU", lambda x: L.ReLU()(L.Dense(3)(x))),
        ("PReLU", lambda x: L.PReLU()(L.Dense(3)(x))),
        ("Exp", lambda x: ops.exp(L.Dense(3)(x))),
        (
            "linear and softmax",
            lambda x: L.Concatenate()([L.Dense(3)(x), L.Softmax()(x)]),
        ),
    ],
)
def test_activations_are_found(expected, block):
    assert output_activation(model_of(block), 0) == expected


def test_logits_give_the_probabilities_back():
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    softmax = model_of(lambda x: L.Dense(3, "softmax")(x))
    linear = model_of(lambda x: L.Dense(3)(x))
    sigmoid = model_of(lambda x: L.Dense(3, "sigmoid")(x))
    (from_softmax,), (same,) = to_logits(softmax, linear, [True])
    probabilities = ops.softmax(x)
    again = ops.softmax(from_softmax(probabilities))
    np.testing.assert_allclose(again, probabilities, rtol=1e-5)
    assert same(x) is x
    (from_sigmoid,), (from_linear,) = to_logits(sigmoid, linear, [True])
    for logits in (from_sigmoid(ops.sigmoid(x)), from_linear(x)):
        assert logits.shape == (4, 3, 2)
        yes = ops.softmax(logits)[..., 0]
        np.testing.assert_allclose(yes, ops.sigmoid(x), rtol=1e-5)
    (unused,), _ = to_logits(softmax, sigmoid, [False])
    assert unused(x) is x
    with pytest.raises(ValueError, match="`softmax` in the teacher and `sigmoid` in"):
        to_logits(softmax, sigmoid, [True])
