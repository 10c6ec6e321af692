"""Rules of the operations that move elements without changing them.

Where the channels go is not reasoned out type by type: the operation itself is
run on a tensor that holds each element's channel number, and the answer is read
off. If the channels do not end up along one axis, they are pinned.
"""

import keras
import numpy as np

from resrep_tf.rules.base import Call, Rule, Tensor, pin_all, register

layers = keras.layers


@register(
    layers.Flatten,
    layers.Permute,
    "keras.ops.ExpandDims",
    "keras.ops.Squeeze",
    "keras.ops.Transpose",
    "keras.ops.Flatten",
    "keras.ops.GetItem",
)
class Rearrange(Rule):
    def relate(self, call, channels):
        (tensor, *more), (output,) = call.inputs, call.outputs
        found = None if more else trace(call, tensor)
        if found is None:
            reason = f"the channels do not stay apart in {call.describe()}"
            pin_all(call, channels, reason)
            return
        axis, order = found
        if len(np.unique(order)) < tensor.width:
            pin_all(call, channels, f"{call.describe()} takes some channels by number")
            return
        call.memo["order"] = order
        output.axis, output.channels = axis, tensor.channels[order]

    def status(self, call, inputs):
        if "order" not in call.memo:
            return super().status(call, inputs)
        return [inputs[0][call.memo["order"]]]

    def constants(self, call, inputs):
        if "order" not in call.memo:
            return super().constants(call, inputs)
        return [inputs[0][call.memo["order"]]]


@register(layers.Reshape, "keras.ops.Reshape")
class Reshape(Rearrange):
    """The new shape names the width, so a narrower tensor needs a new one."""

    def narrow(self, call, keeps):
        if keeps.everything:
            return self.clone(call.op)
        output, (keep,) = call.outputs[0], keeps.outputs
        # Layers leave the batch axis out of their shape, operations name it.
        is_layer = isinstance(call.op, keras.Layer)
        key, offset = ("target_shape", 1) if is_layer else ("newshape", 0)
        config = call.op.get_config()
        shape = list(config[key])
        if shape[output.axis - offset] != -1:
            shape[output.axis - offset] = int(keep.sum())
        config[key] = tuple(shape)
        return type(call.op).from_config(config), []


def trace(call: Call, tensor: Tensor) -> tuple[int, np.ndarray] | None:
    """Where a rearrangement takes each channel: `(axis, order)`, or None."""
    shape = [1, *tensor.shape[1:]]
    if None in shape or tensor.axis == 0:
        return None
    numbers = np.arange(tensor.width, dtype=np.int32)
    index = np.ones(len(shape), int)
    index[tensor.axis] = -1
    numbered = np.ascontiguousarray(np.broadcast_to(numbers.reshape(index), shape))
    moved = call.evaluate([numbered])
    candidates = []
    for axis in range(1, moved.ndim):
        rows = np.moveaxis(moved, axis, -1).reshape(-1, moved.shape[axis])
        if (rows == rows[0]).all():
            candidates.append((moved.shape[axis] == tensor.width, axis, rows[0]))
    if not candidates or moved.shape[0] != 1:
        return None
    _, axis, order = max(candidates, key=lambda c: c[:2])
    return axis, order
