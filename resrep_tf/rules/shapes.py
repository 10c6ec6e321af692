"""Rules of the operations that move elements without changing them.

There is no code for each type. Instead, the operation itself is run on a tensor that
holds each element's channel number, and the result shows where the channels go.
Channels that end up along one axis are followed. So are those that lie along several
axes, as between the two reshapes of a channel shuffle: a narrower model has them along
one axis there, and picks them by their numbers where the shuffle transposes. All others
are pinned.
"""

from typing import Any

import keras
import numpy as np

from resrep_tf.rules.base import (
    Call,
    ChannelAxis,
    Relation,
    Rule,
    Tensor,
    pin_all,
    register,
)

layers = keras.layers


@register(
    layers.Flatten,
    layers.Permute,
    "keras.ops.ExpandDims",
    "keras.ops.Squeeze",
    "keras.ops.Transpose",
    "keras.ops.Moveaxis",
    "keras.ops.Swapaxes",
    "keras.ops.Flip",
)
class Rearrange(Rule):
    """An operation that keeps all channels, along one axis or several."""

    follows_folded = True

    def relate(self, call, channels):
        tensor, *more = call.inputs
        if not more and (folded := trace_folded(call, tensor)) is not None:
            axis, order, number = folded
            memo = {"order": order, "axis": axis}
            found = ChannelAxis(axis, tensor.channels[order], number)
            return Relation((found,), rule=_SHUFFLE, memo=memo)
        found = None if more or tensor.folded > 1 else trace(call, tensor)
        if found is None or not self.follows(call, *found):
            reason = f"the channels do not stay apart in {call.describe()}"
            if None in tensor.shape[1:]:
                reason = f"{call.describe()} moves elements of an image of open extents"
            return pin_all(call, channels, reason)
        axis, order = found
        return Relation.of(axis, tensor.channels[order], memo={"order": order})

    def follows(self, call: Call, axis: int, order: np.ndarray) -> bool:
        """Returns whether the operation does the same to fewer channels."""
        return len(np.unique(order)) == call.inputs[0].width

    def status(self, call, inputs):
        return [inputs[0][call.memo["order"]]]

    def constants(self, call, inputs):
        return [inputs[0][call.memo["order"]]]


class Shuffle(Rearrange):
    """A step of a channel shuffle: its input or output has channels along several axes.

    A narrower model has them along one axis on both sides.
    """

    def narrow(self, call, keeps, fusion):
        if keeps.everything:
            return self.clone(call.op)
        (keep,) = keeps.inputs
        places = (np.cumsum(keep) - 1)[call.memo["order"]]
        return _Pick(places[keeps.outputs[0]], call.memo["axis"]), []


_SHUFFLE = Shuffle()


class _Pick:
    """Picks channels by their numbers."""

    def __init__(self, numbers: np.ndarray, axis: int):
        self._numbers = numbers.tolist()
        self._axis = axis

    def __call__(self, tensor: Any) -> Any:
        if self._numbers == list(range(len(self._numbers))):
            return tensor
        return keras.ops.take(tensor, self._numbers, axis=self._axis)


@register("keras.ops.GetItem")
class GetItem(Rearrange):
    """Indexing over space, or a contiguous slice of channels."""

    follows_folded = False

    def follows(self, call, axis, order):
        if len(order) == call.inputs[0].width and (np.diff(order) == 1).all():
            return True
        part = self._slice(call)
        return part is not None and (np.diff(order) == 1).all()

    def _slice(self, call: Call) -> slice | None:
        """Returns the slice of the channel axis that the call takes, or None."""
        key = self._key(call)
        tensor = call.inputs[0]
        if any(k is None for k in key) or len(key) <= tensor.axis:
            return None
        part = key[tensor.axis]
        return part if isinstance(part, slice) else None

    def _key(self, call: Call) -> list:
        (_, key), _ = call.arguments([None])
        key = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in key:
            where = key.index(Ellipsis)
            missing = len(call.inputs[0].shape) - len(key) + 1
            key[where : where + 1] = [slice(None)] * missing
        return key

    def narrow_arguments(self, call, args, kwargs, keeps):
        order, (keep,) = call.memo["order"], keeps.inputs
        if len(order) == len(keep):
            return args, kwargs
        start = int(keep[: order[0]].sum())
        key = self._key(call)
        key[call.inputs[0].axis] = slice(start, start + int(keeps.outputs[0].sum()))
        return (args[0], tuple(key)), kwargs


@register("keras.ops.Take")
class Take(Rearrange):
    """An operation that picks channels or positions by fixed numbers."""

    follows_folded = False

    def _shuffles(self, call: Call) -> bool:
        """Returns whether the call picks channels."""
        return call.op.axis % len(call.inputs[0].shape) == call.inputs[0].axis

    def follows(self, call, axis, order):
        if not self._shuffles(call):
            return super().follows(call, axis, order)
        (_, numbers), _ = call.arguments([None])
        return np.ndim(numbers) == 1

    def narrow_arguments(self, call, args, kwargs, keeps):
        if not self._shuffles(call):
            return args, kwargs
        places = np.cumsum(keeps.inputs[0]) - 1
        numbers = places[call.memo["order"][keeps.outputs[0]]]
        return (args[0], numbers.tolist()), kwargs


@register("keras.ops.Split")
class Split(Rule):
    """An operation that cuts a tensor into parts, along any axis."""

    def relate(self, call, channels):
        (tensor,) = call.inputs
        if call.op.axis % len(tensor.shape) != tensor.axis:
            same = ChannelAxis(tensor.axis, tensor.channels)
            return Relation((same,) * len(call.outputs))
        stops = np.cumsum([output.shape[tensor.axis] for output in call.outputs])[:-1]
        parts = np.split(tensor.channels, stops)
        outputs = tuple(ChannelAxis(tensor.axis, part) for part in parts)
        return Relation(outputs, memo={"stops": stops})

    def _parts(self, call: Call, fact: np.ndarray) -> list[np.ndarray]:
        if "stops" in call.memo:
            return np.split(fact, call.memo["stops"])
        return [fact] * len(call.outputs)

    def status(self, call, inputs):
        return self._parts(call, inputs[0])

    def constants(self, call, inputs):
        return self._parts(call, inputs[0])

    def narrow(self, call, keeps, fusion):
        config = call.op.get_config()
        if "stops" in call.memo:
            widths = [int(keep.sum()) for keep in keeps.outputs]
            config["indices_or_sections"] = np.cumsum(widths)[:-1].tolist()
        return type(call.op).from_config(config), []


@register(layers.Reshape, "keras.ops.Reshape")
class Reshape(Rearrange):
    """A reshape. The new shape contains the width, so narrowing changes it."""

    def narrow(self, call, keeps, fusion):
        if keeps.everything:
            return self.clone(call.op)
        output, (keep,) = call.outputs[0], keeps.outputs
        # The shape of a layer has no batch axis; that of an operation has one.
        is_layer = isinstance(call.op, keras.Layer)
        key, offset = ("target_shape", 1) if is_layer else ("newshape", 0)
        config = call.op.get_config()
        shape = list(config[key])
        if shape[output.axis - offset] != -1:
            shape[output.axis - offset] = int(keep.sum())
        config[key] = tuple(shape)
        return type(call.op).from_config(config), []


def trace(call: Call, tensor: Tensor) -> tuple[int, np.ndarray] | None:
    """Returns where a rearrangement takes each channel: `(axis, order)`, or None."""
    moved = _moved(call, tensor)
    if moved is None:
        return None
    candidates = []
    for axis in range(1, moved.ndim):
        rows = np.moveaxis(moved, axis, -1).reshape(-1, moved.shape[axis])
        if (rows == rows[0]).all():
            # A single channel lies along any axis; if its number repeats, it does not.
            once = len(np.unique(rows[0])) == moved.shape[axis]
            as_wide = moved.shape[axis] == tensor.width
            candidates.append((once, as_wide, axis, rows[0]))
    if not candidates:
        return None
    *_, axis, order = max(candidates, key=lambda c: c[:3])
    return axis, order


def trace_folded(call: Call, tensor: Tensor) -> tuple[int, np.ndarray, int] | None:
    """Returns where a step of a channel shuffle takes each channel.

    Such a step has its channels along several axes, before it or behind it, and moves
    nothing but channels.

    Returns:
        The first axis of the channels, their order, and the number of axes along
        which they lie. None if the call is no such step.
    """
    rank = len(call.outputs[0].shape)
    if tensor.folded == 1 and rank <= len(tensor.shape):
        return None
    moved = _moved(call, tensor)
    if moved is None:
        return None
    varying = [
        axis
        for axis in range(1, moved.ndim)
        if (moved != moved.take([0], axis=axis)).any()
    ]
    if not varying or varying[0] != tensor.axis:
        return None
    number = varying[-1] - varying[0] + 1
    if number == tensor.folded == 1 or len(varying) != number:
        return None
    elements = np.arange(moved.size, dtype=np.int32)
    shape = [1, *tensor.shape[1:]]
    before = _flat(elements.reshape(shape), tensor.axis, tensor.folded)
    after = _flat(call.evaluate([elements.reshape(shape)]), tensor.axis, number)
    channels = _flat(moved, tensor.axis, number)
    order = np.moveaxis(channels, tensor.axis, -1).reshape(-1, tensor.width)[0]
    if not np.array_equal(before.take(order, axis=tensor.axis), after):
        return None
    return tensor.axis, order, number


def _moved(call: Call, tensor: Tensor) -> np.ndarray | None:
    """Runs an operation on a tensor with the channel number of each element."""
    shape = [1, *tensor.shape[1:]]
    if None in shape or tensor.axis == 0:
        return None
    numbers = np.arange(tensor.width, dtype=np.int32)
    index = [1] * len(shape)
    span = slice(tensor.axis, tensor.axis + tensor.folded)
    index[span] = shape[span]
    numbered = np.ascontiguousarray(np.broadcast_to(numbers.reshape(index), shape))
    moved = call.evaluate([numbered])
    return moved if moved.shape[0] == 1 else None


def _flat(array: np.ndarray, axis: int, folded: int) -> np.ndarray:
    """Returns an array in which `folded` axes, from `axis` on, are one axis."""
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + folded :])
