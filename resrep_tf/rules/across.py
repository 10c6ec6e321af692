"""Rules of the layers and operations that compute from several channels at once.

If they only add channels, a channel of zeros adds nothing. It can be removed if the
rest is divided by the same number as before.
"""

from typing import Any

import keras
import numpy as np

from resrep_tf.rules.base import (
    VARYING,
    ZERO,
    Call,
    Channelwise,
    Read,
    Relation,
    Rule,
    pin_all,
    register,
)
from resrep_tf.rules.channels import Channels
from resrep_tf.rules.channelwise import SameValue
from resrep_tf.rules.weights import weights_of

layers = keras.layers


@register(
    layers.LayerNormalization,
    layers.GroupNormalization,
    layers.Softmax,
    "keras.ops.Softmax",
    "keras.ops.LogSoftmax",
)
class AcrossChannels(Rule):
    """An operation with a mean or a sum that even a channel of zeros changes."""

    def opaque_reason(self, call):
        return (
            f"{call.describe()} computes each channel from others too, and would "
            "compute something else without some of them"
        )


@register(
    layers.MultiHeadAttention,
    layers.GroupQueryAttention,
    layers.Attention,
    layers.AdditiveAttention,
)
class Attention(Rule):
    """Attention, which keeps all channels that it reads; its cost is not counted."""

    opaque = True

    def opaque_reason(self, call):
        return f"{call.describe()} compares positions by all of their channels"


class DividesByNorm(Channelwise):
    """A division by a sum over the squares of all channels."""

    def relate(self, call, channels):
        (tensor,) = call.inputs
        channels.of_weights(call.op, "in", tensor.channels)
        axes = {int(a) % len(tensor.shape) for a in np.atleast_1d(call.op.axis)}
        if axes != {tensor.axis}:
            reason = f"{call.describe()} works on other axes than the channels' alone"
            return pin_all(call, channels, reason)
        return super().relate(call, channels)

    def reads(self, call):
        return [Read(0, ZERO, f"{call.describe()} adds up all channels")]

    def keeps_zero(self, call):
        return True

    def keeps_constant(self, call):
        return False

    def value(self, call, constants):
        return constants


@register(layers.UnitNormalization)
class UnitNormalization(DividesByNorm):
    """A division by the root of a sum, which does not change without zeros."""


@register(layers.RMSNormalization)
class RMSNormalization(DividesByNorm):
    """A division by the root of a mean, with an epsilon.

    With n of N channels left, the mean of their squares is N / n times as large:
    `x / sqrt(mean + e)` is `sqrt(N / n) * x / sqrt(N / n * mean + N / n * e)`.
    """

    def narrow(self, call, keeps, fusion):
        (keep,) = keeps.inputs
        ratio = len(keep) / keep.sum()
        config = call.op.get_config()
        config["epsilon"] = config["epsilon"] * float(ratio)
        (scale,) = weights_of(call.op)
        return type(call.op).from_config(config), [scale[keep] * np.sqrt(ratio)]


@register("keras.ops.Max", "keras.ops.Min")
class Reduce(SameValue):
    """A reduction over other axes than the channels'."""

    def relate(self, call, channels):
        (tensor,) = call.inputs
        rank = len(tensor.shape)
        axes = range(rank) if call.op.axis is None else np.atleast_1d(call.op.axis)
        axes = {int(axis) % rank for axis in axes}
        if 0 in axes or tensor.axis in axes:
            return self.across(call, channels, 0 in axes)
        shift = 0 if call.op.keepdims else sum(axis < tensor.axis for axis in axes)
        return Relation.of(tensor.axis - shift, tensor.channels)

    def across(self, call: Call, channels: Channels, examples: bool) -> Relation:
        """Returns the relation of a reduction over the channels, or the examples."""
        reason = f"{call.describe()} reduces over the channels"
        return pin_all(call, channels, reason)


@register("keras.ops.Mean")
class Mean(Reduce):
    """A mean over other axes than the channels', or over the channels."""

    def across(self, call, channels, examples):
        if examples:
            return super().across(call, channels, examples)
        (tensor,), (output,) = call.inputs, call.outputs
        axis = tensor.axis if call.op.keepdims else len(output.shape) - 1
        reason = f"{call.describe()} computes it from all channels"
        made = channels.pinned(output.shape[axis] or 0, reason)
        return Relation.of(axis, made, rule=_MEAN)


class MeanOfChannels(Rule):
    """A mean over the channels, and possibly over other axes too."""

    def reads(self, call):
        return [Read(0, ZERO, f"{call.describe()} adds up all channels")]

    def status(self, call, inputs):
        return [np.full(call.outputs[0].width, VARYING, np.uint8)]

    def narrow(self, call, keeps, fusion):
        (keep,) = keeps.inputs
        return (self.clone(call.op)[0] if keep.all() else _PartOfMean(call, keep)), []


_MEAN = MeanOfChannels()


class _PartOfMean:
    """Adds up fewer channels, and divides by their original number."""

    def __init__(self, call: Call, keep: np.ndarray):
        self._axis, self._keepdims = call.op.axis, call.op.keepdims
        self._share = float(keep.mean())

    def __call__(self, tensor: Any) -> Any:
        return keras.ops.mean(tensor, self._axis, self._keepdims) * self._share
