"""One row per layer type: put behind a prunable convolution, it prunes exactly."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras import ops

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import Channels, Channelwise, register, rule_for
from support.checks import assert_prunes_exactly, convnext_layer, precision, randomise


def adapted():
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(0).normal(1.0, 2.0, (64, 6)))
    return layer


def se_block(x):
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(4, 1, activation="relu")(gate)
    return L.Multiply()([x, L.Conv2D(x.shape[-1], 1, activation="sigmoid")(gate)])


# What to put between a convolution of 6 channels on 8x8 and its readers.
ROWS = {
    "Conv2D_same": lambda x: L.Conv2D(5, 3, padding="same")(x),
    "Conv2D_valid": lambda x: L.Conv2D(5, 3, use_bias=False)(x),
    "Conv2D_strides_same": lambda x: L.Conv2D(5, 3, strides=2, padding="same")(x),
    "Conv2D_dilated": lambda x: L.Conv2D(5, 3, dilation_rate=2, padding="same")(x),
    "Conv2D_relu": lambda x: L.Conv2D(5, 3, activation="relu")(x),
    "Conv2D_sigmoid": lambda x: L.Conv2D(5, 1, activation="sigmoid")(x),
    "Conv2D_groups": lambda x: L.Conv2D(4, 3, groups=2)(x),
    "Conv2DTranspose": lambda x: L.Conv2DTranspose(5, 3, strides=2)(x),
    "Conv2DTranspose_1x1": lambda x: L.Conv2DTranspose(5, 1)(x),
    "DepthwiseConv2D": lambda x: L.DepthwiseConv2D(3, padding="same")(x),
    "DepthwiseConv2D_multiplier": lambda x: L.DepthwiseConv2D(
        3, depth_multiplier=3, use_bias=False
    )(x),
    "DepthwiseConv2D_relu": lambda x: L.DepthwiseConv2D(3, activation="relu")(x),
    "SeparableConv2D": lambda x: L.SeparableConv2D(5, 3, depth_multiplier=2)(x),
    "SeparableConv2D_same": lambda x: L.SeparableConv2D(5, 3, padding="same")(x),
    "Dense": lambda x: L.Dense(5, activation="relu")(x),
    "BatchNormalization": lambda x: L.BatchNormalization()(L.ReLU()(x)),
    "BatchNormalization_no_scale": lambda x: L.BatchNormalization(scale=False)(x),
    "BatchNormalization_no_center": lambda x: L.BatchNormalization(
        center=False, epsilon=1e-2
    )(x),
    "ReLU": lambda x: L.ReLU(max_value=6)(x),
    "ReLU_threshold": lambda x: L.ReLU(negative_slope=0.1, threshold=0.5)(x),
    "LeakyReLU": lambda x: L.LeakyReLU(0.2)(x),
    "ELU": lambda x: L.ELU()(x),
    "PReLU": lambda x: L.PReLU()(L.Activation("sigmoid")(x)),
    "PReLU_shared": lambda x: L.PReLU(shared_axes=[1, 2])(
        L.BatchNormalization()(L.ReLU()(x))
    ),
    "Softmax": lambda x: L.Softmax()(x),
    "MaxPooling2D": lambda x: L.MaxPooling2D(3, 2, padding="same")(x),
    "AveragePooling2D": lambda x: L.AveragePooling2D(3, 2, padding="same")(x),
    "GlobalAveragePooling2D": lambda x: L.GlobalAveragePooling2D()(x),
    "GlobalMaxPooling2D_keepdims": lambda x: L.GlobalMaxPooling2D(keepdims=True)(x),
    "Dropout": lambda x: L.Dropout(0.5)(x),
    "SpatialDropout2D": lambda x: L.SpatialDropout2D(0.5)(x),
    "GaussianNoise": lambda x: L.GaussianNoise(0.1)(x),
    "GaussianDropout": lambda x: L.GaussianDropout(0.1)(x),
    "AlphaDropout": lambda x: L.AlphaDropout(0.1)(x),
    "ActivityRegularization": lambda x: L.ActivityRegularization(l2=0.1)(x),
    "Identity": lambda x: L.Identity()(x),
    "ZeroPadding2D": lambda x: L.ZeroPadding2D(((0, 2), (1, 0)))(x),
    "ZeroPadding2D_constant": lambda x: L.ZeroPadding2D()(L.Activation("sigmoid")(x)),
    "Cropping2D": lambda x: L.Cropping2D(1)(x),
    "Resizing": lambda x: L.Resizing(12, 11)(x),
    "Resizing_padded": lambda x: L.Resizing(9, 16, pad_to_aspect_ratio=True)(x),
    "UpSampling2D": lambda x: L.UpSampling2D(2, interpolation="bilinear")(x),
    "Flatten": lambda x: L.Flatten()(x),
    "Reshape": lambda x: L.Reshape((64, 6))(x),
    "Reshape_inferred": lambda x: L.Reshape((4, -1, 6))(x),
    "Reshape_mixing": lambda x: L.Reshape((8, 8, 2, 3))(x),
    "Reshape_shuffle": lambda x: L.Reshape((8, 8, 6))(
        L.Permute((1, 2, 4, 3))(L.Reshape((8, 8, 2, 3))(x))
    ),
    "Permute": lambda x: L.Permute((2, 1, 3))(x),
    "Rescaling": lambda x: L.Rescaling(0.5, offset=0.1)(x),
    "Rescaling_per_channel": lambda x: L.Rescaling([1.0, 2, 3, 4, 5, 6])(x),
    "Normalization": lambda x: L.Normalization(
        mean=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], variance=[1.0, 2, 3, 1, 2, 3]
    )(x),
    "Normalization_adapted": lambda x: adapted()(x),
    "Activation_swish": lambda x: L.Activation("swish")(x),
    "Activation_gelu": lambda x: L.Activation("gelu")(x),
    "Activation_softplus": lambda x: L.Activation("softplus")(x),
    "Add": lambda x: L.Add()([x, L.Conv2D(6, 1)(x), L.Conv2D(6, 3, padding="same")(x)]),
    "Subtract": lambda x: L.Subtract()([x, L.Conv2D(6, 1)(x)]),
    "Average": lambda x: L.Average()([x, L.Conv2D(6, 1, activation="relu")(x)]),
    "Maximum": lambda x: L.Maximum()([x, L.Conv2D(6, 1)(x)]),
    "Minimum": lambda x: L.Minimum()([x, L.Conv2D(6, 1)(x)]),
    "Multiply": lambda x: L.Multiply()([x, L.Conv2D(6, 1)(x)]),
    "Multiply_gate": se_block,
    "Multiply_map": lambda x: L.Multiply()([x, L.Conv2D(1, 1)(x)]),
    "Concatenate": lambda x: L.Concatenate()([x, L.Conv2D(3, 1)(x), x]),
    "Concatenate_space": lambda x: L.Concatenate(axis=1)([x, L.Conv2D(6, 1)(x)]),
    "ops_add": lambda x: x + L.Conv2D(6, 1)(x),
    "ops_add_scalar": lambda x: x + 3.0,
    "ops_subtract_from": lambda x: 1.0 - x,
    "ops_multiply": lambda x: x * L.Conv2D(6, 1, activation="sigmoid")(x),
    "ops_multiply_widening": lambda x: (
        L.Conv2D(1, 1)(x) * np.arange(1.0, 7.0, dtype="float32")
    ),
    "ops_multiply_array": lambda x: x * np.arange(1.0, 7.0, dtype="float32"),
    "ops_add_array": lambda x: ops.add(x, np.ones((1, 1, 1, 6), "float32")),
    "ops_divide": lambda x: x / 6.0,
    "ops_divide_by": lambda x: 1.0 / (ops.square(x) + 1.0),
    "ops_hard_swish": lambda x: x * ops.relu6(x + 3.0) * (1.0 / 6.0),
    "ops_maximum": lambda x: ops.maximum(x, L.Conv2D(6, 1)(x)),
    "ops_minimum": lambda x: ops.minimum(x, 0.5),
    "ops_concatenate": lambda x: ops.concatenate([x, L.Conv2D(4, 1)(x)], axis=-1),
    "ops_pad": lambda x: ops.pad(x, [[0, 0], [1, 0], [0, 2], [0, 0]]),
    "ops_pad_reflect": lambda x: ops.pad(
        x, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="reflect"
    ),
    "ops_pad_constant": lambda x: ops.pad(
        x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=2.0
    ),
    "ops_pad_channels": lambda x: ops.pad(x, [[0, 0], [0, 0], [0, 0], [1, 1]]),
    "ops_mean": lambda x: ops.mean(x, axis=[1, 2], keepdims=True),
    "ops_max": lambda x: ops.max(x, axis=(1, 2)),
    "ops_mean_channels": lambda x: x * ops.mean(x, axis=-1, keepdims=True),
    "ops_mean_all": lambda x: x * ops.mean(x, axis=(1, 2, 3), keepdims=True),
    "ops_mean_positions": lambda x: L.Flatten()(ops.mean(x, axis=-1)),
    "ops_max_channels": lambda x: x * ops.max(x, axis=-1, keepdims=True),
    "ops_reshape": lambda x: ops.reshape(x, (-1, 64, 6)),
    "ops_transpose": lambda x: ops.transpose(x, (0, 2, 1, 3)),
    "ops_getitem": lambda x: x[:, ::2, ::2, :],
    "ops_getitem_channels": lambda x: x[:, :, :, :4],
    "ops_getitem_slice": lambda x: x[..., 1:5],
    "ops_getitem_steps": lambda x: x[..., ::2],
    "ops_split_halves": lambda x: ops.add(*ops.split(x, 2, axis=-1)),
    "ops_split_space": lambda x: ops.split(x, 2, axis=1)[1],
    "ops_take_shuffle": lambda x: ops.take(x, [3, 0, 4, 1, 5, 2], axis=-1),
    "ops_take_some": lambda x: ops.take(x, np.array([5, 0, -2, 0]), axis=3),
    "ops_take_space": lambda x: ops.take(x, [7, 1, 2, 0], axis=1),
    "ops_take_table": lambda x: ops.take(x, [[0, 1], [0, 1]], axis=-1),
    "ops_flip": lambda x: ops.flip(x, axis=-1),
    "ops_resize": lambda x: ops.image.resize(x, (5, 12), interpolation="bicubic"),
    "ops_moveaxis": lambda x: ops.moveaxis(x, 1, 2),
    "ops_swapaxes": lambda x: ops.swapaxes(x, 1, 2),
    "Conv2D_groups_depthwise": lambda x: L.Conv2D(12, 3, groups=6)(x),
    "Conv2D_groups_depthwise_bn": lambda x: L.ReLU()(
        L.BatchNormalization()(L.Conv2D(6, 3, padding="same", groups=6)(x))
    ),
    "LayerScale": lambda x: convnext_layer("LayerScale")(0.5, 6)(x),
    "StochasticDepth": lambda x: convnext_layer("StochasticDepth")(0.5)(x),
    "ops_expand_squeeze": lambda x: ops.squeeze(ops.expand_dims(x, 1), 1),
    "ops_silu": lambda x: ops.silu(x),
    "ops_softmax": lambda x: ops.softmax(x),
    "LayerNormalization": lambda x: L.LayerNormalization()(x),
    "RMSNormalization": lambda x: L.RMSNormalization(epsilon=0.3)(x),
    "UnitNormalization_space": lambda x: L.UnitNormalization(axis=(1, 2))(x),
    "RMSNormalization_drawn": lambda x: (
        x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 0.3)
    ),
    "RMSNormalization_of_constants": lambda x: L.RMSNormalization()(ops.sigmoid(x)),
    "UnitNormalization": lambda x: L.UnitNormalization()(x),
}


def model_with(block, padding="valid"):
    """Input, conv-BN (prunable), the block, and two kinds of readers behind it."""
    inputs = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(6, 3, padding="same", name="target")(inputs)
    x = L.BatchNormalization()(x)
    x = block(x)
    if len(x.shape) == 4:
        x = L.Conv2D(4, 3, padding=padding, name="reader")(x)
        x = L.Flatten()(x)
    elif len(x.shape) > 2:
        x = L.Dense(4, name="reader")(x)
        x = L.Flatten()(x)
    return keras.Model(inputs, L.Dense(3, name="logits")(x))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_every_type_prunes_exactly_or_is_pinned(kind, padding):
    if padding == "valid" and kind in ("GlobalMaxPooling2D_keepdims", "ops_mean"):
        pytest.skip("the reader's window does not fit on one pixel")
    model = model_with(ROWS[kind], padding)
    spaces = ChannelGraph(model).spaces
    target = next(s for s in spaces if s.producers[0].name == "target")
    if padding == "valid":
        assert target.prunable == (kind not in PINNING), target.reason
    if any(space.prunable for space in spaces):
        assert_prunes_exactly(model)
    else:
        with pytest.raises(ValueError, match="no layer can lose a channel") as error:
            resrep_tf.wrap(model, "all")
        assert f"`target`: {target.reason}" in str(error.value)


# Blocks behind which the target must stay: nothing may be guessed.
PINNING = {
    "Softmax": "computes each channel from others too",
    "PReLU": "would not be constant where `reader`",
    "ZeroPadding2D_constant": "would not be constant where `reader`",
    "Resizing_padded": "pads its images",
    "Reshape_mixing": "reads channels that lie along several axes",
    "Rescaling_per_channel": "each channel",
    "ops_pad_constant": "would not be constant where `reader`",
    "ops_max_channels": "reduces over the channels",
    "UnitNormalization_space": "works on other axes than the channels' alone",
    "RMSNormalization_of_constants": "adds up all channels",
    "ops_getitem_steps": "do not stay apart",
    "ops_take_table": "do not stay apart",
    "ops_softmax": "computes each channel from others too",
    "ops_divide_by": "divides by a tensor",
    "LayerNormalization": "computes each channel from others too",
}


@pytest.mark.parametrize("kind", PINNING)
def test_what_is_not_known_is_pinned_with_a_reason(kind):
    graph = ChannelGraph(model_with(ROWS[kind]))
    space = next(s for s in graph.spaces if s.producers[0].name == "target")
    assert not space.prunable
    assert PINNING[kind] in space.reason


def test_open_extents_are_named_as_the_reason():
    inputs = keras.Input((None, None, 3))
    x = L.Conv2D(6, 3, name="target")(inputs)[:, ::2, ::2]
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    assert "an image of open extents" in ChannelGraph(model).spaces[0].reason


# Behind these, a pruned channel is a constant other than zero: it can be folded into
# an unpadded reader, but must stay in front of a padded one, unless it can be scaled.
CONSTANT = [
    "Activation_softplus",
    "Normalization",
    "Normalization_adapted",
    "Rescaling",
    "ops_add_scalar",
    "ops_add_array",
    "ops_subtract_from",
    "ops_minimum_constant",
]
ROWS["ops_minimum_constant"] = lambda x: ops.minimum(x, -0.5)


@pytest.mark.parametrize("kind", CONSTANT)
def test_constants_are_folded_or_the_target_stays(kind):
    open_graph = ChannelGraph(model_with(ROWS[kind], "valid"))
    assert open_graph.spaces[0].prunable, open_graph.spaces[0].reason
    padded = ChannelGraph(model_with(ROWS[kind], "same"))
    assert "`reader` (Conv2D) pads its input" in padded.spaces[0].reason
    _, _, report = assert_prunes_exactly(model_with(ROWS[kind], "valid"))
    reader = next(layer for layer in report.layers if layer.name == "reader")
    assert reader.folded > 0


SCALABLE = [
    "BatchNormalization",
    "BatchNormalization_no_center",
    "DepthwiseConv2D_relu",
]


@pytest.mark.parametrize("kind", SCALABLE)
def test_constants_are_folded_or_scaled_to_zero(kind):
    _, _, report = assert_prunes_exactly(model_with(ROWS[kind], "valid"))
    reader = next(layer for layer in report.layers if layer.name == "reader")
    assert reader.folded > 0
    (space, *_) = ChannelGraph(model_with(ROWS[kind], "valid")).spaces
    assert space.prunable and not space.scaled
    (space, *_) = ChannelGraph(model_with(ROWS[kind], "same")).spaces
    assert space.prunable and len(space.scaled) == 1


@pytest.mark.parametrize(
    "kind", ["ReLU", "MaxPooling2D", "Activation_swish", "Dropout"]
)
def test_zero_passes_through_padding(kind):
    graph = ChannelGraph(model_with(ROWS[kind], "same"))
    assert graph.spaces[0].prunable


@pytest.mark.parametrize(
    "kind", ["DepthwiseConv2D_relu", "Multiply_gate", "Concatenate", "PReLU_shared"]
)
def test_float64_is_exact_to_1e_10(kind):
    with precision("float64"):
        assert_prunes_exactly(model_with(ROWS[kind]), dtype="float64")


def split_model():
    return model_with(lambda x: L.Concatenate()(ops.split(x, [2, 4], axis=-1)[::-1]))


@pytest.mark.parametrize(
    ("kept", "width"),
    [
        ([True, False, True, True, False, True], 4),
        # The middle part keeps one of its two, for a tensor needs a channel.
        ([True, True, False, False, True, False], 4),
    ],
)
def test_splits_of_channels(kept, width):
    model = randomise(split_model())
    pruner = resrep_tf.wrap(model, ["target"])
    slim, report = resrep_tf.convert(
        pruner, keep={"target": kept}, verify=1e-5, return_report=True
    )
    assert slim.get_layer("target").filters == width
    assert sum(report.kept.values()) == width - sum(kept)


# === The registry ===


class Doubler(L.Layer):
    def call(self, inputs):
        # Tracing cannot follow a function of TensorFlow.
        return tf.math.scalar_mul(2.0, inputs)


def test_an_unknown_layer_pins_and_a_registered_one_does_not():
    graph = ChannelGraph(model_with(lambda x: Doubler(name="twice")(x)))
    assert "`twice` (Doubler) has no pruning rule" in graph.spaces[0].reason

    class Registered(Doubler):
        pass

    register(Registered)(Channelwise)
    assert_prunes_exactly(model_with(lambda x: Registered()(x)))


def test_a_rule_that_returns_no_relation_is_named():
    class Forgetful(L.Layer):
        def call(self, inputs):
            return inputs

    @register(Forgetful)
    class ForgetfulRule(Channelwise):
        def relate(self, call, channels):
            super().relate(call, channels)

    with pytest.raises(TypeError, match=r"must return a `Relation`.*`ForgetfulRule`"):
        ChannelGraph(model_with(lambda x: Forgetful()(x)))


def test_relating_changes_nothing_but_the_ids():
    graph = ChannelGraph(model_with(ROWS["ops_take_shuffle"]))
    call = next(c for c in graph.calls.values() if c.kind == "Take")
    assert list(call.memo) == ["order"]
    with pytest.raises(AttributeError):
        call.rule = None
    before = call.outputs[0].channels
    relation = call.rule.relate(call, Channels())
    np.testing.assert_array_equal(relation.outputs[0].channels, before)
    assert call.outputs[0].channels is before


def test_a_subclass_has_no_rule_by_accident():
    class MyReLU(L.ReLU):
        pass

    assert type(rule_for(MyReLU())) is type(rule_for(object()))
    assert rule_for(MyReLU()).opaque
    assert not rule_for(L.ReLU()).opaque
