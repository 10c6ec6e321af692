"""Outputs and inputs of classifiers, as their layers say."""

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.data.heads import Head, Images, head_of, images_of


def ending(*last):
    inputs = keras.Input((4, 4, 3))
    x = L.Conv2D(5, 3)(inputs)
    for layer in last:
        x = layer(x)
    return keras.Model(inputs, x)


POOL = L.GlobalAveragePooling2D


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: [POOL(), L.Dense(3)], Head("classes", 3, True)),
        (lambda: [POOL(), L.Dense(3, "softmax")], Head("classes", 3, False)),
        (lambda: [POOL(), L.Dense(3), L.Softmax()], Head("classes", 3, False)),
        (
            lambda: [POOL(), L.Dense(3), L.Activation("softmax")],
            Head("classes", 3, False),
        ),
        (lambda: [POOL(), L.Dense(3), keras.ops.softmax], Head("classes", 3, False)),
        (
            lambda: [POOL(), L.Dense(3), L.Activation("linear")],
            Head("classes", 3, True),
        ),
        (lambda: [POOL(), L.Dense(1, "sigmoid")], Head("binary", 2, False)),
        (lambda: [POOL(), L.Dense(1), keras.ops.sigmoid], Head("binary", 2, False)),
        (lambda: [POOL(), L.Dense(1)], Head("binary", 2, True)),
        (lambda: [POOL(), L.Dense(4, "sigmoid")], Head("labels", 4, False)),
        (lambda: [L.Conv2D(7, 1), POOL()], Head("classes", 7, True)),
        (lambda: [L.Conv2D(7, 2), L.Flatten()], Head("classes", 7, True)),
        (
            lambda: [POOL(), L.Dense(2, "softmax", dtype="float32"), L.Identity()],
            Head("classes", 2, False),
        ),
        (
            lambda: [keras.Sequential([POOL(), L.Dense(6, "softmax")])],
            Head("classes", 6, False),
        ),
    ],
)
def test_heads(make, expected):
    assert head_of(ending(*make())) == expected


def test_sequential():
    model = keras.Sequential([keras.Input((4,)), L.Dense(2), L.Softmax()])
    assert head_of(model) == Head("classes", 2, False)


def test_mean_of_probabilities():
    inputs = keras.Input((4,))
    heads = [L.Dense(3, "softmax")(inputs) for _ in range(2)]
    model = keras.Model(inputs, L.Average()(heads))
    assert head_of(model) == Head("classes", 3, False)


@pytest.mark.parametrize(
    ("last", "seen"),
    [
        ([POOL(), L.Dense(3, "relu")], "Dense .* with relu with 3 outputs"),
        ([POOL(), L.Dense(3), L.ReLU()], "ReLU"),
        ([POOL(), L.Dense(1, "softmax")], "with softmax with 1 outputs"),
        ([], r"outputs of shape \(None, 2, 2, 5\)"),
    ],
)
def test_says_what_it_saw(last, seen):
    fresh = [type(layer).from_config(layer.get_config()) for layer in last]
    with pytest.raises(ValueError, match=f"Received: .*{seen}"):
        head_of(ending(*fresh))


def test_subclassed():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="must be a Functional or Sequential model"):
        head_of(Own())


def test_loss_and_predictions():
    outputs = np.array([[2.0, -1.0], [0.0, 3.0]], "float32")
    head = Head("classes", 2, True)
    assert head.predictions(outputs).tolist() == [0, 1]
    assert float(head.loss()(np.array([0, 1]), outputs)) < 0.05
    binary = Head("binary", 2, False)
    assert binary.predictions(np.array([[0.4], [0.6]])).tolist() == [0, 1]
    assert Head("binary", 2, True).predictions(np.array([[0.4]])).tolist() == [1]


@pytest.mark.parametrize(
    ("shape", "expected", "colours"),
    [
        ((64, 64, 3), Images(64, 64, 3), "rgb"),
        ((None, None, 3), Images(None, None, 3), "rgb"),
        ((28, 28, 1), Images(28, 28, 1), "grayscale"),
    ],
)
def test_images(shape, expected, colours):
    inputs = keras.Input(shape)
    found = images_of(keras.Model(inputs, POOL()(inputs)))
    assert found == expected
    assert found.colours == colours
    assert found.size(96) == tuple(n or 96 for n in shape[:2])
    found.check((shape[0] or 50, shape[1] or 60, shape[2]))


def test_images_that_do_not_fit():
    with pytest.raises(ValueError, match=r"64 x 64 pixels\. Received: .* 224 x 224"):
        Images(64, 64, 3).check((224, 224, 3))
    with pytest.raises(ValueError, match=r"1 channels \(grayscale\)\. Received"):
        Images(28, 28, 1).check((28, 28, 3))


def test_channels_first():
    inputs = keras.Input((3, 32, 32))
    with pytest.raises(ValueError, match=r"last, and not first\. Received"):
        images_of(keras.Model(inputs, L.Flatten()(inputs)))
