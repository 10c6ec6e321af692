"""Small graphs by hand, one for each thing that shrinking has to get right."""

import keras
import numpy as np
from keras import layers as L

import resrep_tf
from support.checks import forget_at_random, randomise


def forgetful(model, targets="all", kind="matrix", seed=0):
    """Returns a pruner of a randomised model; about half of its rows are zero."""
    pruner = resrep_tf.wrap(randomise(model, seed), targets, kind)
    forget_at_random(pruner, np.random.default_rng(seed))
    return pruner


def chain(**options):
    """Builds two convolutions with BatchNorms, made with `options`, and a head."""
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, use_bias=False, name="conv1")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn1", **options)(x))
    x = L.Conv2D(5, 3, use_bias=False, name="conv2")(x)
    x = L.ReLU()(L.BatchNormalization(name="bn2", **options)(x))
    return keras.Model(inputs, L.Dense(3, name="head")(L.GlobalMaxPooling2D()(x)))


def with_bias():
    inputs = keras.Input((8, 8, 3))
    x = L.BatchNormalization(epsilon=1.001e-5)(L.Conv2D(6, 3)(inputs))
    x = L.BatchNormalization()(L.Conv2D(5, 3)(L.ReLU()(x)))
    return keras.Model(inputs, L.GlobalAveragePooling2D()(L.Conv2D(3, 1)(x)))


def residual():
    inputs = keras.Input((8, 8, 3))
    x = stem = L.BatchNormalization()(L.Conv2D(6, 3, padding="same")(inputs))
    for _ in range(2):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(x)))
        y = L.BatchNormalization()(L.Conv2D(6, 3, padding="same", use_bias=False)(y))
        x = L.ReLU()(L.Add()([x, y]))
    x = L.Add()([x, stem])
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def gates():
    inputs = keras.Input((8, 8, 3))
    x = L.Activation("silu")(L.BatchNormalization()(L.Conv2D(6, 3)(inputs)))
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(4, 1, activation="silu")(gate)
    x = L.Multiply()([x, L.Conv2D(6, 1, activation="sigmoid")(gate)])
    x = L.BatchNormalization()(L.Conv2D(5, 1, use_bias=False)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def depthwise():
    """Zeros become other constants behind the depthwise layers' BatchNorms."""
    inputs = keras.Input((8, 8, 3))
    x = inputs
    for width in (6, 5):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 1, use_bias=False)(x)))
        x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = L.ReLU(6.0)(L.BatchNormalization()(x))
    x = L.BatchNormalization()(L.Conv2D(4, 1, use_bias=False)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def shared():
    """Builds a model that calls a layer and its BatchNorm at three places."""
    inputs = keras.Input((8, 8, 3))
    conv, norm = L.Conv2D(5, 3, padding="same"), L.BatchNormalization()
    x = y = L.Conv2D(5, 3, padding="same")(inputs)
    for _ in range(3):
        y = L.ReLU()(norm(conv(y)))
    x = L.Concatenate()([x, y])
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def nested():
    """Builds a nested model, called twice, and a Sequential, with repeated names."""
    inner_inputs = keras.Input((8, 8, 4))
    x = L.Conv2D(6, 3, padding="same", name="conv", use_bias=False)(inner_inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn")(x))
    x = L.Conv2D(4, 1, name="last")(x)
    inner = keras.Model(inner_inputs, L.Add()([inner_inputs, x]), name="inner")
    tail = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            L.Conv2D(6, 3, name="conv"),
            L.BatchNormalization(name="bn"),
            L.ReLU(),
            L.GlobalAveragePooling2D(),
        ],
        name="tail",
    )
    inputs = keras.Input((8, 8, 3))
    x = L.BatchNormalization(name="bn")(L.Conv2D(4, 1, name="conv")(inputs))
    return keras.Model(inputs, L.Dense(3)(tail(inner(inner(x)))))


def channels_first():
    """BatchNorms on axis 1; convolutions of this layout do not run on CPUs."""
    inputs = keras.Input((3, 8, 8))
    x = L.Conv2D(6, 3)(L.Permute((2, 3, 1))(inputs))
    x = L.BatchNormalization(axis=1)(L.Permute((3, 1, 2))(x))
    x = L.GlobalAveragePooling2D(data_format="channels_first")(x)
    x = L.BatchNormalization(axis=1)(L.Dense(5)(x))
    return keras.Model(inputs, L.Dense(3)(L.Activation("tanh")(x)))


def separable_and_transpose():
    inputs = keras.Input((8, 8, 3))
    x = L.SeparableConv2D(6, 3, depth_multiplier=2, use_bias=False)(inputs)
    x = L.ReLU()(L.BatchNormalization(center=False)(x))
    x = L.Conv2DTranspose(5, 3, strides=2, use_bias=False)(x)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.BatchNormalization()(L.SeparableConv2D(4, 3)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def without_batchnorms():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, activation="relu")(inputs)
    x = L.Flatten()(L.Conv2D(4, 3, activation="tanh")(x))
    return keras.Model(inputs, L.Dense(3)(L.Dense(5, activation="relu")(x)))


def dense():
    inputs = keras.Input((7,))
    x = L.ReLU()(L.BatchNormalization()(L.Dense(6, use_bias=False)(inputs)))
    x = L.BatchNormalization(scale=False)(L.Dense(5)(x))
    return keras.Model(inputs, L.Dense(3)(L.Activation("tanh")(x)))


def two_inputs():
    inputs = [keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 2), name="b")]
    x = [L.BatchNormalization()(L.Conv2D(4, 3)(tensor)) for tensor in inputs]
    x = L.BatchNormalization()(L.Conv2D(5, 3)(L.ReLU()(L.Concatenate()(x))))
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def conv1d_and_3d():
    inputs = [keras.Input((9, 3)), keras.Input((5, 5, 5, 2))]
    x = L.BatchNormalization()(L.Conv1D(5, 3, padding="causal")(inputs[0]))
    x = L.GlobalMaxPooling1D()(L.ReLU()(x))
    y = L.BatchNormalization()(L.Conv3D(4, 3)(inputs[1]))
    y = L.GlobalMaxPooling3D()(L.ReLU()(y))
    return keras.Model(inputs, L.Dense(3)(L.Concatenate()([x, y])))


_PLAIN = (
    *(chain, with_bias, residual, gates, depthwise, shared, nested, dense),
    *(without_batchnorms, channels_first, two_inputs, conv1d_and_3d),
    separable_and_transpose,
)
GRAPHS = {
    **{build.__name__: build for build in _PLAIN},
    "without_scale": lambda: chain(scale=False),
    "without_center": lambda: chain(center=False),
    "without_both": lambda: chain(scale=False, center=False),
}
