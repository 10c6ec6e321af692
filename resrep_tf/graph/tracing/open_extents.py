"""Handles calls that use the number of examples, which is open during tracing.

`keras.ops.shape(x)[0]` is None then. A reshape can find the number by itself. Any other
operation would get None when the graph runs, so it cannot be traced.
"""

import math
from collections.abc import Sequence

import keras

from resrep_tf.graph.keras_nodes import Node

# The attributes in which operations of Keras keep sizes.
_EXTENTS = ("newshape", "shape", "repeats")


def settle(nodes: Sequence[Node]) -> str:
    """Makes reshapes find open sizes by themselves.

    Args:
        nodes: The calls that one `call` has made. Their operations are changed if they
            are new objects, as those of `keras.ops` are.

    Returns:
        The reason why that is not possible; empty if it is possible.
    """
    alike = not any(_mixes_examples(node) for node in nodes)
    for node in nodes:
        op = node.op
        if isinstance(op, keras.Layer):
            continue
        for name in _EXTENTS:
            extents = getattr(op, name, None)
            if not isinstance(extents, (list, tuple)) or None not in extents:
                continue
            if name != "newshape" or not _settled(node, list(extents), alike):
                kind = type(op).__name__
                return f"it gives `{kind}` the number of examples, which is open"
    return ""


def _settled(node: Node, extents: list, alike: bool) -> bool:
    """Sets the new shape of a reshape; returns False if that is ambiguous."""
    source = node.inputs[0].shape
    if -1 in extents:
        # It is clear which size is open only if the first axis of all tensors is the
        # number of examples.
        known = [n for n in extents[1:] if n != -1]
        if not alike or extents[0] is not None or None in (*source[1:], *known):
            return False
        extents[extents.index(-1)] = math.prod(source[1:]) // max(math.prod(known), 1)
    if extents.count(None) > 1:
        return False
    extents[extents.index(None)] = -1
    node.op.newshape = tuple(extents)
    return True


def _mixes_examples(node: Node) -> bool:
    """Returns True for a call whose output may have another first axis."""
    if isinstance(node.op, keras.Layer):
        return False  # Layers keep the first axis.
    kind = type(node.op).__name__
    if kind in ("Transpose", "Moveaxis", "Swapaxes"):
        (output,) = node.outputs
        return output.shape[0] is not None or None in output.shape[1:]
    if kind != "Reshape" or None in node.op.newshape:
        return False
    before, after = node.inputs[0].shape[1:], node.outputs[0].shape[1:]
    return None in (*before, *after) or math.prod(before) != math.prod(after)
