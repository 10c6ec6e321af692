"""Rules of the layers with kernels: convolutions and dense layers."""

import dataclasses
import math
from collections.abc import Callable
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
    Relation,
    Rule,
    along,
    positions,
    register,
)
from resrep_tf.rules.fusion import ROLES, Fusion, Merged
from resrep_tf.rules.weights import read

layers = keras.layers


def window_pads(call: Call) -> bool:
    """Returns whether a layer with windows sees padding, given its input's size."""
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


class Absorbing(Rule):
    """A layer with a kernel, into which operations behind it can be merged.

    `merge` merges the weights and `rebuild` makes a layer of them. To get another layer
    than `narrow` returns, call these two and change the weights between them.
    """

    # The roles that can be merged if the layer has no activation of its own.
    roles: tuple[str, ...] = ()

    def load(self, layer: keras.Layer) -> np.ndarray:
        """Returns the kernel with its output channels last."""
        return read(layer.kernel)

    def store(self, kernel: np.ndarray) -> np.ndarray:
        """Returns a kernel in the layout of the layer."""
        return kernel

    def merge(self, call: Call, keeps: Keeps, fusion: Fusion) -> Merged:
        """Returns the weights for the kept channels, with all that is merged."""
        raise NotImplementedError

    def narrow_config(self, layer: keras.Layer, merged: Merged) -> dict:
        """Returns the layer's config for the merged weights."""
        raise NotImplementedError

    def at_zero(self, call):
        return activations.apply(call.op.activation, np.zeros(call.outputs[0].width))

    def absorbs(self, call):
        return self.roles if call.op.activation is activations.LINEAR else ()

    def rebuild(
        self,
        call: Call,
        merged: Merged,
        activation: Callable[[Any], Any] | None = None,
    ) -> tuple[keras.Layer, list[np.ndarray]]:
        """Returns a layer for merged weights, and the weights in its layout.

        Args:
            call: A call of the layer that is replaced.
            merged: The weights.
            activation: The new layer's activation; by default the old one's.
        """
        config = self.narrow_config(call.op, merged)
        config["use_bias"] = merged.bias is not None
        if activation is not None:
            config["activation"] = activation
        weights = [*merged.before, self.store(merged.kernel)]
        if merged.bias is not None:
            weights.append(merged.bias)
        return type(call.op).from_config(config), weights

    def narrow(self, call, keeps, fusion):
        return self.rebuild(call, self.merge(call, keeps, fusion), fusion.activation)


class Kernel(Absorbing):
    """A layer whose kernel mixes its input channels into new ones."""

    produces = True
    roles = ROLES
    size = "filters"  # The constructor argument with the number of outputs.

    # === What differs between the layers ===

    def axis(self, call: Call) -> int:
        rank = len(call.inputs[0].shape)
        return 1 if call.op.data_format == "channels_first" else rank - 1

    def coefficient(self, call: Call, in_shape: tuple, out_shape: tuple) -> int:
        return math.prod(call.op.kernel_size) * positions(out_shape, self.axis(call))

    def only_zero(self, call: Call) -> str:
        """Returns why a pruned input must be zero; empty if any constant will do."""
        return f"{call.describe()} pads its input" if window_pads(call) else ""

    def filters(self, layer: keras.Layer) -> tuple[keras.Variable, int]:
        """Returns the variable that makes the output channels, and their axis in it."""
        return layer.kernel, -1

    def groups(self, op):
        return getattr(op, "groups", 1)

    def inputs_of_group(self, call: Call) -> np.ndarray:
        """Returns the channels that the first group reads; others read as many."""
        ids = call.inputs[0].channels
        return ids[: len(ids) // self.groups(call.op)]

    # === Rule ===

    def relate(self, call, channels):
        op, axis = call.op, self.axis(call)
        view = along(call, channels, axis)
        ids = channels.of_weights(op, "in", view.channels)
        made = channels.made_by(op, getattr(op, self.size))
        # In Keras, all groups have the same width, on both sides.
        channels.bundle(ids, self.groups(op))
        channels.bundle(made, self.groups(op))
        activations.pin_unless_elementwise(call, channels, made)
        return Relation.of(axis, made, view=view)

    def terms(self, call, in_shapes, out_shapes):
        coefficient = self.coefficient(call, in_shapes[0], out_shapes[0])
        return [(coefficient, (self.inputs_of_group(call), call.outputs[0].channels))]

    def reads(self, call):
        why = self.only_zero(call)
        return [Read(0, ZERO if why else CONSTANT, why)]

    def merge(self, call, keeps, fusion):
        layer, (keep,) = call.op, keeps.inputs
        kernel, bias = self.load(layer), read(layer.bias)
        kernel, bias = self.drop_inputs(
            kernel, bias, keep, keeps.constants[0], self.groups(layer)
        )
        return self.merge_outputs(Merged(kernel, bias), keeps.outputs[0], fusion)

    def narrow_config(self, layer, merged):
        config = layer.get_config()
        config[self.size] = int(merged.kernel.shape[-1])
        return config

    def merge_outputs(self, merged: Merged, keep: np.ndarray, fusion: Fusion) -> Merged:
        """Applies a fusion and drops the outputs that are not kept."""
        merged = merged.normalised(fusion)
        kernel, bias = merged.kernel, merged.bias
        if fusion.matrix is None:
            kernel, bias = kernel[..., keep], None if bias is None else bias[keep]
        else:
            # One product of matrices; NumPy would multiply a stack of them one by one.
            kernel = np.tensordot(kernel, fusion.matrix, 1)
            bias = None if bias is None else bias @ fusion.matrix
        return dataclasses.replace(merged, kernel=kernel, bias=bias)

    def drop_inputs(
        self,
        kernel: np.ndarray,
        bias: np.ndarray | None,
        keep: np.ndarray,
        constants: np.ndarray,
        groups: int = 1,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Drops inputs, and folds their constants into the bias: the sum of W * c."""
        if keep.all():
            return kernel, bias
        values = np.where(keep, 0.0, np.nan_to_num(constants)).reshape(groups, -1)
        dropped = values.any(axis=0)
        if dropped.any():
            taps = kernel[..., dropped, :].sum(axis=tuple(range(kernel.ndim - 2)))
            parts = np.split(taps, groups, axis=1)
            folded = np.concatenate(
                [v @ part for v, part in zip(values[:, dropped], parts, strict=True)]
            )
            bias = folded if bias is None else bias + folded
        # All groups keep the same input positions.
        return kernel[..., keep[: len(keep) // groups], :], bias


@register(layers.Conv1D, layers.Conv2D, layers.Conv3D)
class Conv(Kernel):
    """A convolution, with groups or without."""

    def relate(self, call, channels):
        groups, width = call.op.groups, call.inputs[0].shape[self.axis(call)]
        if groups == width > 1:
            rule = GroupedDepthwiseConv()
            return dataclasses.replace(rule.relate(call, channels), rule=rule)
        return super().relate(call, channels)


@register(layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
class ConvTranspose(Kernel):
    """A transposed convolution, whose kernel has its outputs before its inputs."""

    def coefficient(self, call, in_shape, out_shape):
        return math.prod(call.op.kernel_size) * positions(in_shape, self.axis(call))

    def only_zero(self, call):
        # Output positions sum different parts of the kernel, so a constant does not
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


@register(layers.Dense)
class Dense(Kernel):
    """A fully connected layer, over the last axis."""

    size = "units"

    def axis(self, call):
        return len(call.inputs[0].shape) - 1

    def coefficient(self, call, in_shape, out_shape):
        return positions(out_shape, len(out_shape) - 1)

    def only_zero(self, call):
        return ""


@register(layers.SeparableConv1D, layers.SeparableConv2D)
class SeparableConv(Kernel):
    """A layer with a depthwise and a pointwise kernel."""

    def filters(self, layer):
        return layer.pointwise_kernel, -1

    def terms(self, call, in_shapes, out_shapes):
        op, (tensor,), (output,) = call.op, call.inputs, call.outputs
        cells = op.depth_multiplier * positions(out_shapes[0], output.axis)
        return [
            (math.prod(op.kernel_size) * cells, (tensor.channels,)),
            (cells, (tensor.channels, output.channels)),
        ]

    def merge(self, call, keeps, fusion):
        layer, (keep,) = call.op, keeps.inputs
        depthwise, bias = read(layer.depthwise_kernel), read(layer.bias)
        pointwise = read(layer.pointwise_kernel)
        multiplier = depthwise.shape[-1]
        # The depthwise part turns a constant c into c times the sum of its kernel.
        taps = depthwise.sum(axis=tuple(range(depthwise.ndim - 2)))
        constants = (keeps.constants[0][:, None] * taps).reshape(-1)
        pointwise, bias = self.drop_inputs(
            pointwise, bias, np.repeat(keep, multiplier), constants
        )
        merged = Merged(pointwise, bias, before=(depthwise[..., keep, :],))
        return self.merge_outputs(merged, keeps.outputs[0], fusion)


@register(layers.DepthwiseConv1D, layers.DepthwiseConv2D)
class DepthwiseConv(Absorbing):
    """A layer that turns every channel alone into a fixed number of channels."""

    roles = ROLES
    scalable = True

    # === What differs between the layers; `load` gives (..., inputs, multiplier) ===

    def multiplier(self, layer: keras.Layer) -> int:
        return layer.depth_multiplier

    def narrow_config(self, layer, merged):
        return layer.get_config()

    # === Rule ===

    def relate(self, call, channels):
        op, (tensor,) = call.op, call.inputs
        axis = 1 if op.data_format == "channels_first" else len(tensor.shape) - 1
        view = along(call, channels, axis)
        ids = channels.of_weights(op, "in", view.channels)
        activations.pin_unless_elementwise(call, channels, ids)
        return Relation.of(axis, np.repeat(ids, self.multiplier(op)), view=view)

    def terms(self, call, in_shapes, out_shapes):
        output = call.outputs[0]
        taps = math.prod(call.op.kernel_size)
        return [(taps * positions(out_shapes[0], output.axis), (output.channels,))]

    def groups(self, op):
        return math.prod(op.kernel.shape[-2:])

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

    def merge(self, call, keeps, fusion):
        layer, (keep,) = call.op, keeps.inputs
        merged = Merged(self.load(layer), read(layer.bias), output_axes=2)
        merged = merged.normalised(fusion)
        if fusion.matrix is not None:
            merged = merged.scaled(fusion.factors(keeps.outputs[0]))
        bias = None if merged.bias is None else merged.bias[keeps.outputs[0]]
        return dataclasses.replace(
            merged, kernel=merged.kernel[..., keep, :], bias=bias
        )


class GroupedDepthwiseConv(DepthwiseConv):
    """A convolution with one input channel in each group, as in ConvNeXt."""

    def multiplier(self, layer):
        return layer.filters // layer.groups

    def load(self, layer):
        kernel = read(layer.kernel)
        return kernel.reshape(*kernel.shape[:-2], layer.groups, self.multiplier(layer))

    def store(self, kernel):
        return kernel.reshape(*kernel.shape[:-2], 1, -1)

    def narrow_config(self, layer, merged):
        config = layer.get_config()
        inputs = merged.kernel.shape[-2]
        config["groups"] = inputs
        config["filters"] = inputs * self.multiplier(layer)
        return config
