"""Rules of the operations that join several tensors, and of arithmetic."""

import keras
import numpy as np

from resrep_tf.rules.base import (
    CONSTANT,
    VARYING,
    ZERO,
    Call,
    Relation,
    Rule,
    pin_all,
    register,
    spread,
)

layers = keras.layers


@register(
    layers.Add,
    layers.Subtract,
    layers.Average,
    layers.Maximum,
    layers.Minimum,
    "keras.ops.Add",
    "keras.ops.Subtract",
    "keras.ops.Maximum",
    "keras.ops.Minimum",
    "keras.applications.CustomScaleLayer",
)
class Join(Rule):
    """An element-wise join: channel j of every input is one channel.

    Inputs broadcast as in NumPy. Python and NumPy operands of `keras.ops` calls
    are constants: scalars, or arrays with one value for each channel.
    """

    joins = True

    def relate(self, call, channels):
        (output,) = call.outputs
        rank = len(output.shape)
        axes = {t.axis + rank - len(t.shape) for t in call.inputs if t.width > 1}
        wide = [t for t in call.inputs if t.width > 1] or call.inputs[:1]
        narrow = [t for t in call.inputs if t not in wide]
        if len(axes) > 1 or len({t.width for t in wide}) > 1 or self._odd(call, wide):
            reason = f"{call.describe()} joins tensors whose channels do not line up"
            return pin_all(call, channels, reason)
        for tensor in wide[1:]:
            channels.tie(wide[0].channels, tensor.channels)
        for tensor in narrow:
            channels.pin(
                tensor.channels, f"{call.describe()} spreads it over all channels"
            )
        axis = wide[0].axis + rank - len(wide[0].shape)
        return Relation.of(axis, wide[0].channels)

    def _odd(self, call: Call, wide: list) -> bool:
        """Returns whether a fixed operand is neither one value nor one per channel."""
        axis = wide[0].axis - len(wide[0].shape)
        for operand in fixed_operands(call):
            shape = np.shape(operand)
            beside = [n for i, n in enumerate(shape, -len(shape)) if i != axis]
            along = shape[axis] if len(shape) >= -axis else 1
            if any(n != 1 for n in beside) or along not in (1, wide[0].width):
                return True
        return False

    def status(self, call, inputs):
        (output,) = call.outputs
        stack = np.stack([np.broadcast_to(s, output.width) for s in inputs])
        if self.zero_absorbs:
            gone = (stack == ZERO).any(axis=0)
        else:
            gone = (stack == ZERO).all(axis=0)
            if gone.any():
                zeros = [np.zeros(t.width) for t in call.inputs]
                gone &= self._evaluate(call, zeros) == 0
        worst = np.maximum(stack.max(axis=0), CONSTANT)
        return [np.where(gone, ZERO, worst).astype(np.uint8)]

    def constants(self, call, inputs):
        (output,) = call.outputs
        stack = np.stack([np.broadcast_to(v, output.width) for v in inputs])
        if np.isnan(stack).all():
            return [stack[0].copy()]
        out = self._evaluate(call, [np.nan_to_num(v) for v in inputs])
        out[np.isnan(stack).any(axis=0)] = np.nan
        if self.zero_absorbs:
            out[(stack == 0).any(axis=0)] = 0.0
        return [out]

    def _evaluate(self, call: Call, values: list[np.ndarray]) -> np.ndarray:
        tensors = zip(values, call.inputs, strict=True)
        out = call.evaluate([spread(v, t) for v, t in tensors])
        return np.array(
            np.broadcast_to(out.reshape(-1), call.outputs[0].width), np.float64
        )

    def narrow_arguments(self, call, args, kwargs, keeps):
        (keep,) = keeps.outputs
        axis = call.outputs[0].axis - len(call.outputs[0].shape)

        def cut(operand):
            if is_fixed(operand) and np.ndim(operand) >= -axis:
                array = np.asarray(operand)
                if array.shape[axis] > 1:
                    return np.compress(keep, array, axis)
            return operand

        return tuple(cut(a) for a in args), {k: cut(v) for k, v in kwargs.items()}


@register(layers.Multiply, "keras.ops.Multiply")
class Product(Join):
    """A product, such as a gate: if one factor is zero, the other does not matter."""

    zero_absorbs = True


@register("keras.ops.Divide", "keras.ops.TrueDivide")
class Quotient(Join):
    """A division by a number. If it is by another tensor, all channels are pinned."""

    def relate(self, call, channels):
        if len(call.inputs) > 1 or is_fixed(call.arguments([None])[0][0]):
            return pin_all(call, channels, f"{call.describe()} divides by a tensor")
        return super().relate(call, channels)


@register(layers.Concatenate, "keras.ops.Concatenate")
class Concatenate(Rule):
    """A concatenation along the channel axis, or along another one."""

    def relate(self, call, channels):
        (output,) = call.outputs
        axis = call.op.axis % len(output.shape)
        if any(t.axis != call.inputs[0].axis for t in call.inputs):
            return pin_all(call, channels, f"{call.describe()} joins different axes")
        first = call.inputs[0]
        if first.axis == axis:
            ids = np.concatenate([t.channels for t in call.inputs])
            return Relation.of(axis, ids)
        for tensor in call.inputs[1:]:
            channels.tie(first.channels, tensor.channels)
        return Relation.of(first.axis, first.channels)

    def _on_channels(self, call: Call) -> bool:
        return call.outputs[0].axis == call.op.axis % len(call.outputs[0].shape)

    def status(self, call, inputs):
        if self._on_channels(call):
            return [np.concatenate(inputs)]
        stack = np.stack(inputs)
        same = (stack == stack[0]).all(axis=0) & (stack[0] == ZERO)
        return [np.where(same, ZERO, VARYING).astype(np.uint8)]

    def constants(self, call, inputs):
        if self._on_channels(call):
            return [np.concatenate(inputs)]
        stack = np.stack(inputs)
        return [np.where((stack == stack[0]).all(axis=0), stack[0], np.nan)]


def is_fixed(operand) -> bool:
    """Returns whether an operand is a number or an array, not a tensor of the graph."""
    return isinstance(operand, (int, float, np.ndarray, np.generic)) or (
        keras.ops.is_tensor(operand) and not isinstance(operand, keras.KerasTensor)
    )


def fixed_operands(call: Call) -> list:
    """Returns the arguments of a call that are numbers or arrays."""
    args, kwargs = call.arguments([None] * len(call.inputs))
    return [a for a in (*args, *kwargs.values()) if is_fixed(a)]
