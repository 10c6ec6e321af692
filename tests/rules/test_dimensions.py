"""Layers of one and three dimensions, and channels on the first axis."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from support.checks import assert_prunes_exactly

ONE_AND_THREE = {
    "Conv1D": ((16, 3), lambda x: L.Conv1D(5, 3, padding="same")(x)),
    "Conv1D_causal": ((16, 3), lambda x: L.Conv1D(5, 3, padding="causal")(x)),
    "DepthwiseConv1D": ((16, 3), lambda x: L.DepthwiseConv1D(3)(x)),
    "SeparableConv1D": ((16, 3), lambda x: L.SeparableConv1D(5, 3)(x)),
    "Conv1DTranspose": ((16, 3), lambda x: L.Conv1DTranspose(5, 3)(x)),
    "MaxPooling1D": ((16, 3), lambda x: L.MaxPooling1D(2)(x)),
    "AveragePooling1D": ((16, 3), lambda x: L.AveragePooling1D(2)(x)),
    "GlobalMaxPooling1D": ((16, 3), lambda x: L.GlobalMaxPooling1D()(x)),
    "GlobalAveragePooling1D": ((16, 3), lambda x: L.GlobalAveragePooling1D()(x)),
    "SpatialDropout1D": ((16, 3), lambda x: L.SpatialDropout1D(0.1)(x)),
    "ZeroPadding1D": ((16, 3), lambda x: L.ZeroPadding1D((0, 2))(x)),
    "Cropping1D": ((16, 3), lambda x: L.Cropping1D(2)(x)),
    "UpSampling1D": ((16, 3), lambda x: L.UpSampling1D(2)(x)),
    "Conv3D": ((6, 6, 6, 3), lambda x: L.Conv3D(5, 3, padding="same")(x)),
    "Conv3DTranspose": ((6, 6, 6, 3), lambda x: L.Conv3DTranspose(5, 2)(x)),
    "MaxPooling3D": ((6, 6, 6, 3), lambda x: L.MaxPooling3D(2)(x)),
    "AveragePooling3D": ((6, 6, 6, 3), lambda x: L.AveragePooling3D(2)(x)),
    "GlobalAveragePooling3D": ((6, 6, 6, 3), lambda x: L.GlobalAveragePooling3D()(x)),
    "GlobalMaxPooling3D": ((6, 6, 6, 3), lambda x: L.GlobalMaxPooling3D()(x)),
    "SpatialDropout3D": ((6, 6, 6, 3), lambda x: L.SpatialDropout3D(0.1)(x)),
    "ZeroPadding3D": ((6, 6, 6, 3), lambda x: L.ZeroPadding3D(1)(x)),
    "Cropping3D": ((6, 6, 6, 3), lambda x: L.Cropping3D(1)(x)),
    "UpSampling3D": ((6, 6, 6, 3), lambda x: L.UpSampling3D(2)(x)),
}


@pytest.mark.parametrize("kind", ONE_AND_THREE)
def test_one_and_three_dimensions(kind):
    shape, block = ONE_AND_THREE[kind]
    conv = L.Conv1D if len(shape) == 2 else L.Conv3D
    inputs = keras.Input(shape)
    x = block(conv(6, 3, padding="same", activation="relu", name="target")(inputs))
    if len(x.shape) > 2:
        x = L.Flatten()(conv(4, 2)(x))
    _, slim, report = assert_prunes_exactly(keras.Model(inputs, L.Dense(3)(x)))
    assert report.new_flops < report.flops
    assert slim.get_layer("target").filters < 6


def channels_first_models():
    inputs = keras.Input((3, 8, 8))
    x = L.Permute((2, 3, 1))(inputs)
    x = L.Conv2D(6, 3, name="target")(x)
    x = L.BatchNormalization()(x)
    x = L.Permute((3, 1, 2))(x)
    x = L.MaxPooling2D(2, data_format="channels_first")(x)
    x = L.GlobalAveragePooling2D(data_format="channels_first")(x)
    yield "pooling", keras.Model(inputs, L.Dense(3)(x))
    inputs = keras.Input((3, 8, 8))
    x = L.Permute((2, 3, 1))(inputs)
    x = L.Permute((3, 1, 2))(L.Conv2D(6, 3, name="target")(x))
    x = L.BatchNormalization(axis=1)(x)
    x = L.Flatten(data_format="channels_first")(x)
    yield "flatten", keras.Model(inputs, L.Dense(3)(x))


@pytest.mark.parametrize("number", [0, 1])
def test_channels_first_operations_run_on_the_cpu(number):
    _, model = list(channels_first_models())[number]
    pruner, _, report = assert_prunes_exactly(model)
    assert pruner.compactors and report.new_flops < report.flops


def test_channels_first_convolutions():
    """Convolutions of this layout do not run on CPUs: widths are checked instead."""
    inputs = keras.Input((3, 8, 8))
    first = {"data_format": "channels_first"}
    x = L.Conv2D(6, 3, name="target", **first)(inputs)
    x = L.BatchNormalization(axis=1)(x)
    x = L.ReLU()(x)
    x = L.DepthwiseConv2D(3, **first)(x)
    x = L.Conv2D(4, 1, name="reader", **first)(x)
    model = keras.Model(inputs, L.GlobalAveragePooling2D(**first)(x))
    pruner = resrep_tf.wrap(model)
    (compactor,) = pruner.compactors
    assert compactor.axis == 1
    keep = {"target": np.array([True, False] * 3)}
    slim = resrep_tf.convert(pruner, keep=keep, verify=False)
    assert slim.get_layer("target").kernel.shape == (3, 3, 3, 3)
    assert slim.get_layer("reader").kernel.shape == (1, 1, 3, 4)
    kept = np.asarray(model.get_layer("reader").kernel)[:, :, ::2]
    np.testing.assert_array_equal(slim.get_layer("reader").kernel, kept)
