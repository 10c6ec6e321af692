"""Rules of the layers and operations that treat every channel in the same way."""

from dataclasses import replace

import keras
import numpy as np

from resrep_tf.rules import activations
from resrep_tf.rules.base import (
    VARYING,
    ZERO,
    Call,
    ChannelAxis,
    Channelwise,
    Relation,
    along,
    pin_all,
    register,
)
from resrep_tf.rules.fusion import AFFINE, MATRIX, Fusion
from resrep_tf.rules.weights import read, stored, weights_of

layers = keras.layers


@register(layers.BatchNormalization)
class BatchNormalization(Channelwise):
    """Affine in inference: gamma * (x - mean) / std + beta, each of them optional."""

    role = AFFINE
    scalable = True

    def relate(self, call, channels):
        axis = call.op.axis % len(call.inputs[0].shape)
        view = along(call, channels, axis)
        ids = channels.of_weights(call.op, "in", view.channels)
        return Relation.of(axis, ids, view=view)

    def keeps_zero(self, call):
        return False  # Fresh statistics keep it at zero, but trained ones do not.

    def affine(self, layer: keras.Layer) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scale and shift that it applies in inference (Eq. 5)."""
        scale = 1.0 / np.sqrt(read(layer.moving_variance) + layer.epsilon)
        if layer.scale:
            scale = scale * read(layer.gamma)
        shift = -read(layer.moving_mean) * scale
        if layer.center:
            shift = shift + read(layer.beta)
        return scale, shift

    def value(self, call, constants):
        scale, shift = self.affine(call.op)
        return constants * scale + shift

    def contribution(self, call, keeps):
        return Fusion(*self.affine(call.op))

    def groups(self, op):
        return op.moving_mean.shape[0]

    def at_zero(self, call):
        return np.zeros(call.outputs[0].width)

    def absorbs(self, call):
        return (MATRIX,)

    def narrow(self, call, keeps, fusion):
        layer, weights = self.clone(call.op)
        if fusion.matrix is not None:
            layer, weights = self._scaled(
                layer, weights, fusion.factors(keeps.outputs[0])
            )
        return layer, [weight[keeps.inputs[0]] for weight in weights]

    def _scaled(self, layer, weights, factors):
        """Returns the layer with weights that multiply its output by factors."""
        affine, statistics = weights[:-2], weights[-2:]
        if not layer.scale:
            layer = type(layer).from_config(layer.get_config() | {"scale": True})
            affine = [np.ones(len(factors)), *affine]
        return layer, [*(weight * factors for weight in affine), *statistics]


@register(layers.PReLU)
class PReLU(Channelwise):
    """An activation with a trained slope for each channel."""

    def relate(self, call, channels):
        channels.of_weights(call.op, "in", call.inputs[0].channels)
        return super().relate(call, channels)

    def keeps_zero(self, call):
        return True

    def _alpha_axis(self, call):
        return call.inputs[0].axis - 1  # The slopes have no batch axis.

    def keeps_constant(self, call):
        shape = call.op.alpha.shape
        return all(n == 1 for i, n in enumerate(shape) if i != self._alpha_axis(call))

    def value(self, call, constants):
        alpha = np.moveaxis(read(call.op.alpha), self._alpha_axis(call), -1)
        alpha = alpha.reshape(-1, alpha.shape[-1])[0]
        return np.where(constants > 0, constants, alpha * constants)

    def narrow(self, call, keeps, fusion):
        layer, (alpha,) = self.clone(call.op)
        axis = self._alpha_axis(call)
        if alpha.shape[axis] > 1:
            alpha = np.compress(keeps.inputs[0], alpha, axis)
        return layer, [alpha]


@register("keras.applications.LayerScale")
class LayerScale(Channelwise):
    """A trained factor for each channel (ConvNeXt)."""

    def relate(self, call, channels):
        channels.of_weights(call.op, "in", call.inputs[0].channels)
        if call.inputs[0].axis != len(call.inputs[0].shape) - 1:
            return pin_all(call, channels, f"{call.describe()} scales another axis")
        return super().relate(call, channels)

    def keeps_zero(self, call):
        return True

    def value(self, call, constants):
        return constants * read(call.op.gamma)

    def narrow(self, call, keeps, fusion):
        config = call.op.get_config()
        config["projection_dim"] = int(keeps.inputs[0].sum())
        weights = [weight[keeps.inputs[0]] for weight in weights_of(call.op)]
        return type(call.op).from_config(config), weights


@register(layers.Activation)
class Activation(Channelwise):
    """An activation. If it is not known to be elementwise, all channels are pinned."""

    def relate(self, call, channels):
        activations.pin_unless_elementwise(call, channels, call.inputs[0].channels)
        return super().relate(call, channels)

    def value(self, call, constants):
        return activations.apply(call.op.activation, constants)


# Operations of `keras.ops` that are functions of each element.
_FUNCTIONS = """
    Abs Absolute Cast Celu Clip Elu Exp Gelu HardShrink HardSigmoid HardSilu HardTanh
    LeakyRelu LogSigmoid Negative Relu Relu6 Rsqrt Selu Sigmoid Silu SoftShrink Softplus
    Softsign SparsePlus Sqrt Square Squareplus Tanh TanhShrink Threshold
"""


@register(
    layers.ReLU,
    layers.LeakyReLU,
    layers.ELU,
    "keras.activations.ReLU",
    *(f"keras.ops.{name}" for name in _FUNCTIONS.split()),
)
class Elementwise(Channelwise):
    """A function of each element, which is run on the constants themselves."""


@register(
    layers.Dropout,
    layers.SpatialDropout1D,
    layers.SpatialDropout2D,
    layers.SpatialDropout3D,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.AlphaDropout,
    layers.ActivityRegularization,
    layers.Identity,
    "keras.applications.StochasticDepth",
    "keras.ops.StopGradient",
)
class SameValue(Channelwise):
    """An operation that does not change a constant channel in inference."""

    def keeps_zero(self, call):
        return True

    def value(self, call, constants):
        return constants


@register(
    layers.MaxPooling1D,
    layers.MaxPooling2D,
    layers.MaxPooling3D,
    layers.AveragePooling1D,
    layers.AveragePooling2D,
    layers.AveragePooling3D,
    layers.UpSampling1D,
    layers.UpSampling2D,
    layers.UpSampling3D,
    layers.Cropping1D,
    layers.Cropping2D,
    layers.Cropping3D,
)
class Spatial(SameValue):
    """An operation over space that does not change a constant.

    Pooling is one, with any padding: TensorFlow computes means and maxima of the
    real elements only.
    """

    def relate(self, call, channels):
        first = getattr(call.op, "data_format", None) == "channels_first"
        axis = 1 if first else len(call.inputs[0].shape) - 1
        view = along(call, channels, axis)
        return Relation.of(axis, view.channels, view=view)

    def value(self, call, constants):
        if getattr(call.op, "interpolation", "nearest") == "nearest":
            return constants
        # TensorFlow interpolates in float32, whatever the precision of the model.
        return constants.astype(np.float32).astype(constants.dtype)


@register(layers.Resizing, "keras.ops.Resize")
class Resize(Spatial):
    """A change of the size of images; each channel is resized alone."""

    def relate(self, call, channels):
        if call.op.pad_to_aspect_ratio:
            return pin_all(call, channels, f"{call.describe()} pads its images")
        return super().relate(call, channels)


@register(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D)
class ZeroPadding(Spatial):
    """Padding with zeros. A zero channel stays zero; other constants get a border."""

    def keeps_constant(self, call):
        return False


@register("keras.ops.Pad")
class Pad(SameValue):
    """Padding of any axis; zeros on the channel axis are new channels."""

    def relate(self, call, channels):
        tensor, *more = call.inputs
        before, after = self._widths(call)[tensor.axis]
        if more or (before + after and not self._with_zeros(call)):
            reason = f"{call.describe()} pads the channel axis, not with zeros"
            return pin_all(call, channels, reason)
        ids = [channels.new(before), tensor.channels, channels.new(after)]
        return Relation.of(
            tensor.axis, np.concatenate(ids), memo={"padded": (before, after)}
        )

    def _widths(self, call: Call) -> np.ndarray:
        rank = len(call.inputs[0].shape)
        return np.broadcast_to(np.asarray(call.op.pad_width), (rank, 2))

    def _with_zeros(self, call: Call) -> bool:
        return call.op.mode == "constant" and self.keeps_zero(call)

    def keeps_constant(self, call):
        return call.op.mode != "constant"

    def keeps_zero(self, call):
        _, kwargs = call.arguments([None] * len(call.inputs))
        return call.op.mode != "constant" or not kwargs.get("constant_values")

    def constants(self, call, inputs):
        if self.keeps_zero(call):
            (values,) = super().constants(call, inputs)
            return [np.pad(values, call.memo["padded"])]
        return [np.full(call.outputs[0].width, np.nan)]

    def status(self, call, inputs):
        (status,) = super().status(call, inputs)
        if self.keeps_zero(call):
            return [np.pad(status, call.memo["padded"], constant_values=ZERO)]
        return [np.full_like(status, VARYING)]

    def narrow(self, call, keeps, fusion):
        if keeps.everything:
            return self.clone(call.op)
        before, after = call.memo["padded"]
        (keep,) = keeps.outputs
        widths = self._widths(call).copy()
        widths[call.inputs[0].axis] = (
            keep[:before].sum(),
            keep[len(keep) - after :].sum(),
        )
        config = call.op.get_config() | {"pad_width": widths.tolist()}
        return type(call.op).from_config(config), []


@register("keras.ops.ZerosLike")
class ZerosLike(SameValue):
    """An operation that returns zeros in the shape of its input."""

    def constants(self, call, inputs):
        return [np.zeros_like(inputs[0])]

    def status(self, call, inputs):
        return [np.full_like(inputs[0], ZERO)]


@register(
    layers.GlobalAveragePooling1D,
    layers.GlobalAveragePooling2D,
    layers.GlobalAveragePooling3D,
    layers.GlobalMaxPooling1D,
    layers.GlobalMaxPooling2D,
    layers.GlobalMaxPooling3D,
)
class GlobalPooling(Spatial):
    """Pooling over all positions, to one number for each channel."""

    def relate(self, call, channels):
        relation = super().relate(call, channels)
        if call.op.keepdims:
            return relation
        (output,) = relation.outputs
        return replace(relation, outputs=(ChannelAxis(1, output.channels),))


@register(layers.Rescaling)
class Rescaling(Elementwise):
    """A multiplication and an addition of numbers, equal for all channels."""

    def relate(self, call, channels):
        if np.size(call.op.scale) > 1 or np.size(call.op.offset) > 1:
            channels.pin(
                call.inputs[0].channels,
                f"{call.describe()} has one scale or offset for each channel",
            )
        return super().relate(call, channels)


@register(layers.Normalization)
class Normalization(Elementwise):
    """A normalisation by fixed statistics, which are copied as plain numbers."""

    def relate(self, call, channels):
        channels.of_weights(call.op, "in", call.inputs[0].channels)
        axis = tuple(a % len(call.inputs[0].shape) for a in np.atleast_1d(call.op.axis))
        if axis != (call.inputs[0].axis,) or call.op.invert:
            return pin_all(call, channels, f"{call.describe()} is not per channel")
        return super().relate(call, channels)

    def keeps_zero(self, call):
        return False

    def clone(self, op):
        return self._explicit(op, slice(None)), []

    def narrow(self, call, keeps, fusion):
        return self._explicit(call.op, keeps.inputs[0]), []

    def _explicit(self, op, keep):
        config = op.get_config()
        for name in ("mean", "variance"):
            value = stored(getattr(op, name))
            if op.axis:
                value = value.reshape(-1)[keep]
            config[name] = value.tolist()
        return type(op).from_config(config)
