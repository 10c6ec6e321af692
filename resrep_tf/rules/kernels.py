"""Rules of the layers with kernels: convolutions and dense layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from resrep_tf.rules import activations
from resrep_tf.rules.base import (
    CONSTANT,
    VARYING,
    ZERO,
    Call,
    Keeps,
    Read,
    Rule,
    positions,
    register,
)

layers = keras.layers


@dataclass(frozen=True)
class Fusion:
    """What follows a kernel directly and is merged into it.

    With y the kernel's output, the merged layer computes
    `activation((y * scale + shift) @ matrix)`: a BatchNorm gives `scale` and
    `shift` (Eq. 5 of the paper), a compactor gives `matrix`, its kept columns
    (Eq. 8 and 9).
    """

    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    matrix: np.ndarray | None = None
    activation: Callable[[Any], Any] | None = None


def merge_outputs(
    kernel: np.ndarray, bias: np.ndarray | None, keep: np.ndarray, fusion: Fusion
) -> tuple[np.ndarray, np.ndarray | None]:
    """Applies a fusion to a kernel whose last axis is the output channels."""
    if fusion.scale is not None:
        kernel = kernel * fusion.scale
        bias = (0.0 if bias is None else bias * fusion.scale) + fusion.shift
    if fusion.matrix is not None:
        # As one product of matrices: NumPy takes a stack of them one by one.
        kernel = np.tensordot(kernel, fusion.matrix, 1)
        return kernel, None if bias is None else bias @ fusion.matrix
    return kernel[..., keep], None if bias is None else bias[keep]


def window_pads(call: Call) -> bool:
    """Whether a windowed layer really sees padding, given its input's size."""
    op, shape = call.op, call.inputs[0].shape
    axis = call.inputs[0].axis
    spatial = [n for i, n in enumerate(shape) if i not in (0, axis)]
    extents = [
        (k - 1) * d + 1 for k, d in zip(op.kernel_size, op.dilation_rate, strict=True)
    ]
    if op.padding == "valid" or all(extent == 1 for extent in extents):
        return False
    if op.padding == "causal":
        return True
    return any(
        size is None or (math.ceil(size / stride) - 1) * stride + extent > size
        for size, stride, extent in zip(spatial, op.strides, extents, strict=True)
    )


class Kernel(Rule):
    """A layer whose kernel mixes its input channels into new ones."""

    produces = True
    size = "filters"  # The constructor argument with the number of outputs.

    # === What differs between the layers ===

    def axis(self, call: Call) -> int:
        rank = len(call.inputs[0].shape)
        return 1 if call.op.data_format == "channels_first" else rank - 1

    def coefficient(self, call: Call, in_shape: tuple, out_shape: tuple) -> int:
        return math.prod(call.op.kernel_size) * positions(out_shape, self.axis(call))

    def only_zero(self, call: Call) -> str:
        """Why a pruned input must be zero; empty if any constant will do."""
        return f"{call.describe()} pads its input" if window_pads(call) else ""

    def load(self, layer: keras.Layer) -> np.ndarray:
        """The kernel as (..., inputs, outputs)."""
        return read(layer.kernel)

    def store(self, kernel: np.ndarray) -> np.ndarray:
        return kernel

    def filters(self, layer: keras.Layer) -> tuple[keras.Variable, int]:
        """The variable that makes the outputs, and its axis of output channels."""
        return layer.kernel, -1

    def grouped(self, layer: keras.Layer) -> bool:
        return layer.groups > 1

    # === Rule ===

    def relate(self, call, channels):
        op, (output,) = call.op, call.outputs
        axis = self.axis(call)
        ids = channels.of_weights(op, "in", channels.along(call, axis))
        output.axis = axis
        output.channels = channels.made_by(op, getattr(op, self.size))
        if self.grouped(op):
            reason = f"{call.describe()} convolves {op.groups} groups of channels apart"
            channels.pin(ids, reason)
            channels.pin(output.channels, reason)
        activations.pin_unless_elementwise(call, channels, output.channels)

    def terms(self, call, in_shapes, out_shapes):
        coefficient = self.coefficient(call, in_shapes[0], out_shapes[0])
        coefficient //= getattr(call.op, "groups", 1)
        return [(coefficient, (call.inputs[0].channels, call.outputs[0].channels))]

    def reads(self, call):
        why = self.only_zero(call)
        return [Read(0, ZERO if why else CONSTANT, why)]

    def pruned_status(self, call: Call) -> np.ndarray:
        """The status of the output if all of its channels were pruned."""
        zero = activations.apply(call.op.activation, np.zeros(1, np.float32))
        status = CONSTANT if zero.any() else ZERO
        return np.full(call.outputs[0].width, status, np.uint8)

    def status(self, call, inputs):
        return [np.full(call.outputs[0].width, VARYING, np.uint8)]

    def narrow(self, call: Call, keeps: Keeps, fusion: Fusion | None = None):
        fusion = fusion or Fusion()
        layer, (keep,) = call.op, keeps.inputs
        kernel, bias = self.load(layer), read(layer.bias)
        kernel, bias = self.drop_inputs(kernel, bias, keep, keeps.constants[0])
        kernel, bias = merge_outputs(kernel, bias, keeps.outputs[0], fusion)
        config = self.narrow_config(layer, kernel.shape[-1], bias, fusion)
        weights = [self.store(kernel)] + ([] if bias is None else [bias])
        return type(layer).from_config(config), weights

    def narrow_config(
        self,
        layer: keras.Layer,
        width: int,
        bias: np.ndarray | None,
        fusion: Fusion,
    ) -> dict:
        config = layer.get_config()
        config[self.size] = int(width)
        config["use_bias"] = bias is not None
        if fusion.activation is not None:
            config["activation"] = fusion.activation
        return config

    def drop_inputs(
        self,
        kernel: np.ndarray,
        bias: np.ndarray | None,
        keep: np.ndarray,
        constants: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Drops inputs, their constants going into the bias: W * c, summed."""
        if keep.all():
            return kernel, bias  # A grouped kernel has fewer inputs than channels.
        dropped = ~keep & (np.nan_to_num(constants) != 0)
        if dropped.any():
            taps = kernel[..., dropped, :].sum(axis=tuple(range(kernel.ndim - 2)))
            folded = constants[dropped] @ taps
            bias = folded if bias is None else bias + folded
        return kernel[..., keep, :], bias


@register(layers.Conv1D, layers.Conv2D, layers.Conv3D)
class Conv(Kernel):
    def relate(self, call, channels):
        groups, width = call.op.groups, call.inputs[0].shape[self.axis(call)]
        if groups == width > 1:
            call.rule = GroupedDepthwiseConv()
            call.rule.relate(call, channels)
        else:
            super().relate(call, channels)


@register(layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
class ConvTranspose(Kernel):
    def coefficient(self, call, in_shape, out_shape):
        return math.prod(call.op.kernel_size) * positions(in_shape, self.axis(call))

    def only_zero(self, call):
        # Every output position sums another set of taps, so a constant does not
        # stay one value.
        if max(call.op.kernel_size) == max(call.op.strides) == 1:
            return ""
        return f"{call.describe()} spreads a constant unevenly"

    def load(self, layer):
        return np.swapaxes(read(layer.kernel), -1, -2)

    def store(self, kernel):
        return np.swapaxes(kernel, -1, -2)

    def filters(self, layer):
        return layer.kernel, -2

    def grouped(self, layer):
        return getattr(layer, "groups", 1) > 1


@register(layers.Dense)
class Dense(Kernel):
    size = "units"

    def axis(self, call):
        return len(call.inputs[0].shape) - 1

    def coefficient(self, call, in_shape, out_shape):
        return positions(out_shape, len(out_shape) - 1)

    def only_zero(self, call):
        return ""

    def grouped(self, layer):
        return False


@register(layers.SeparableConv1D, layers.SeparableConv2D)
class SeparableConv(Kernel):
    """A depthwise kernel and a pointwise kernel in one layer."""

    def filters(self, layer):
        return layer.pointwise_kernel, -1

    def grouped(self, layer):
        return False

    def terms(self, call, in_shapes, out_shapes):
        op, (tensor,), (output,) = call.op, call.inputs, call.outputs
        cells = op.depth_multiplier * positions(out_shapes[0], output.axis)
        return [
            (math.prod(op.kernel_size) * cells, (tensor.channels,)),
            (cells, (tensor.channels, output.channels)),
        ]

    def narrow(self, call, keeps, fusion=None):
        fusion = fusion or Fusion()
        layer, (keep,) = call.op, keeps.inputs
        depthwise, bias = read(layer.depthwise_kernel), read(layer.bias)
        pointwise = read(layer.pointwise_kernel)
        multiplier = depthwise.shape[-1]
        # A constant c leaves the depthwise part as c times the sum of its taps.
        taps = depthwise.sum(axis=tuple(range(depthwise.ndim - 2)))
        constants = (keeps.constants[0][:, None] * taps).reshape(-1)
        pointwise, bias = self.drop_inputs(
            pointwise, bias, np.repeat(keep, multiplier), constants
        )
        pointwise, bias = merge_outputs(pointwise, bias, keeps.outputs[0], fusion)
        config = self.narrow_config(layer, pointwise.shape[-1], bias, fusion)
        weights = [depthwise[..., keep, :], pointwise]
        return type(layer).from_config(config), weights + (
            [] if bias is None else [bias]
        )


@register(layers.DepthwiseConv1D, layers.DepthwiseConv2D)
class DepthwiseConv(Rule):
    """Filters every channel alone, into a fixed number of channels each."""

    # === What differs between the layers ===

    def multiplier(self, layer: keras.Layer) -> int:
        return layer.depth_multiplier

    def load(self, layer: keras.Layer) -> np.ndarray:
        """The kernel as (..., inputs, multiplier)."""
        return read(layer.kernel)

    def store(self, kernel: np.ndarray) -> np.ndarray:
        return kernel

    def narrow_config(self, layer: keras.Layer, inputs: int) -> dict:
        return layer.get_config()

    # === Rule ===

    def relate(self, call, channels):
        op, (tensor,), (output,) = call.op, call.inputs, call.outputs
        axis = 1 if op.data_format == "channels_first" else len(tensor.shape) - 1
        ids = channels.of_weights(op, "in", channels.along(call, axis))
        output.axis, output.channels = axis, np.repeat(ids, self.multiplier(op))
        activations.pin_unless_elementwise(call, channels, ids)

    def terms(self, call, in_shapes, out_shapes):
        output = call.outputs[0]
        taps = math.prod(call.op.kernel_size)
        return [(taps * positions(out_shapes[0], output.axis), (output.channels,))]

    def status(self, call, inputs):
        op = call.op
        at_zero = activations.apply(op.activation, np.zeros(1, np.float32))
        zero = CONSTANT if op.use_bias or at_zero.any() else ZERO
        other = VARYING if window_pads(call) else CONSTANT
        fate = np.array([zero, other, VARYING], np.uint8)
        return [np.repeat(fate[inputs[0]], self.multiplier(op))]

    def constants(self, call, inputs):
        op, (values,) = call.op, inputs
        if window_pads(call):
            values = np.where(values == 0, 0.0, np.nan)
        if np.isnan(values).all():
            return [np.repeat(values, self.multiplier(op))]
        kernel = self.load(op)
        taps = kernel.sum(axis=tuple(range(kernel.ndim - 2)))
        out = (values[:, None] * taps).reshape(-1)
        if op.use_bias:
            out = out + read(op.bias)
        return [activations.apply(op.activation, out).astype(np.float64)]

    def narrow(self, call, keeps, fusion=None):
        fusion = fusion or Fusion()
        layer, (keep,) = call.op, keeps.inputs
        kernel, bias = self.load(layer), read(layer.bias)
        if fusion.scale is not None:
            kernel = kernel * fusion.scale.reshape(kernel.shape[-2:])
            bias = (0.0 if bias is None else bias * fusion.scale) + fusion.shift
        config = self.narrow_config(layer, int(keep.sum()))
        config["use_bias"] = bias is not None
        weights = [self.store(kernel[..., keep, :])]
        if bias is not None:
            weights.append(bias[keeps.outputs[0]])
        return type(layer).from_config(config), weights


class GroupedDepthwiseConv(DepthwiseConv):
    """A convolution with one input channel in each group, as in ConvNeXt."""

    def multiplier(self, layer):
        return layer.filters // layer.groups

    def load(self, layer):
        kernel = read(layer.kernel)
        return kernel.reshape(*kernel.shape[:-2], layer.groups, self.multiplier(layer))

    def store(self, kernel):
        return kernel.reshape(*kernel.shape[:-2], 1, -1)

    def narrow_config(self, layer, inputs):
        config = layer.get_config()
        config["groups"] = inputs
        config["filters"] = inputs * self.multiplier(layer)
        return config


def read(variable: Any) -> np.ndarray | None:
    """A variable's value in float64, in which everything is fused."""
    if variable is None:
        return None
    return keras.ops.convert_to_numpy(variable).astype(np.float64)
