"""A model as the operations that a runtime executes, each with its widths.

A runtime does not execute layers one by one: BatchNorms are merged into kernels, and
activations are computed where their input is made. So what is measured together is a
layer, with a zero padding directly in front of it and an activation directly behind.
Operations that differ in nothing but their widths share one key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from resrep_tf.budget.parameters import merged_batchnorms, vanishes
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.keras_nodes import executions
from resrep_tf.graph.propagation import Link
from resrep_tf.rules import Call, Fusion, Keeps, Kernel
from resrep_tf.rules.activations import LINEAR
from resrep_tf.rules.channelwise import (
    Activation,
    Elementwise,
    LayerScale,
    Normalization,
    Pad,
    ZeroPadding,
)
from resrep_tf.rules.joins import Concatenate, Join, fixed_operands
from resrep_tf.rules.kernels import DepthwiseConv, GroupedDepthwiseConv
from resrep_tf.rules.shapes import GetItem, Reshape, Shuffle, Split, Take

# Config entries that do not affect the time, or that a key has in another form.
_SILENT = (
    "name",
    "trainable",
    "dtype",
    "activation",
    "use_bias",
    "data_format",
    "seed",
)
_SILENT_ENDINGS = ("_initializer", "_regularizer", "_constraint")
_WIDTHS = ("filters", "units")
# Operations whose config or arguments contain the width of their input.
_NAMING_WIDTHS = (
    *(GetItem, LayerScale, Normalization, Pad, Reshape, Shuffle, Split, Take),
)


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of a runtime: a layer with all that is computed together with it.

    Attributes:
        key: Everything that its time depends on, except for its widths, as text.
        name: The name of its layer.
        axes: For each of its widths, the channel ids along that axis.
        steps: The calls that belong to it, in order.
        in_shapes: The shape of each of its inputs, without the batch axis.
        has_bias: Whether its kernel has a bias once BatchNorms are merged.
        free: For each of `axes`, whether it could lose channels.
    """

    key: str
    name: str
    axes: tuple[np.ndarray, ...]
    steps: tuple[Call, ...]
    in_shapes: tuple[tuple[int, ...], ...]
    has_bias: bool
    free: tuple[bool, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Its widths with every channel present."""
        return tuple(len(ids) for ids in self.axes)

    def build(self, widths: Sequence[int], copies: int = 1) -> keras.Model:
        """Builds a model of this operation alone, with fresh weights.

        Args:
            widths: Its widths, one for each of `axes`.
            copies: How often the operation stands in the model, side by side. Each copy
                has its own inputs and weights, since a runtime computes equal
                operations only once.
        """
        inputs, outputs = [], []
        for _ in range(copies):
            values: list[Any] = self._inputs(widths)
            inputs += values
            for call in self.steps:
                made = apply_step(call, values, self.has_bias, *_ends(widths))
                values = keras.tree.flatten(made)
            outputs.append(values[0])
        return keras.Model(inputs, outputs[0] if copies == 1 else outputs)

    @property
    def groups(self) -> int:
        """The number of its groups; each has these widths."""
        return max(_groups(call) for call in self.steps)

    def _inputs(self, widths: Sequence[int]) -> list[Any]:
        first = self.steps[0]
        full = [tensor.width for tensor in first.inputs]
        shapes = [list(shape) for shape in self.in_shapes]
        if isinstance(first.rule, Concatenate) and self.axes:
            # Each input keeps its share of all channels.
            ends = np.rint(np.cumsum(full) / sum(full) * widths[0]).astype(int)
            shares = np.maximum(np.diff([0, *ends]), 1).tolist()
        else:
            wide = max(full, default=0)
            shares = [
                widths[0] if self.axes and width == wide else width // self.groups
                for width in full
            ]
        for shape, tensor, share in zip(shapes, first.inputs, shares, strict=True):
            if self.axes:
                shape[tensor.axis - 1] = int(share) * self.groups
        return [
            keras.Input(tuple(shape), dtype=tensor.dtype)
            for shape, tensor in zip(shapes, first.inputs, strict=True)
        ]


def apply_step(
    call: Call,
    values: Sequence[Any],
    has_bias: bool,
    in_width: int | None = None,
    out_width: int | None = None,
) -> Any:
    """Calls a fresh copy of an operation, as conversion leaves it, on new values.

    Args:
        call: The call to repeat.
        values: What it is called on now.
        has_bias: Whether a kernel has a bias once BatchNorms are merged.
        in_width: The input channels of each group, if its config contains them.
        out_width: The output channels of each group, if its config contains them.
    """
    args, kwargs = call.arguments(values)
    op, rule = call.op, call.rule
    config = rule.clone(op)[0].get_config()
    config.pop("name", None)
    for name in config:
        if name.endswith("_initializer"):
            # A constant is fast to make, and leaves Keras's random state as it was.
            config[name] = keras.initializers.Constant(0.01)
    if not isinstance(rule, (Kernel, DepthwiseConv)):
        return type(op).from_config(config)(*args, **kwargs)
    config.update(activation="linear", use_bias=has_bias)
    if isinstance(rule, Kernel) and out_width is not None:
        config[rule.size] = int(out_width) * rule.groups(op)
    if isinstance(rule, GroupedDepthwiseConv) and in_width is not None:
        config["groups"] = int(in_width)
        config["filters"] = int(in_width) * rule.multiplier(op)
    output = type(op).from_config(config)(*args, **kwargs)
    if op.activation is LINEAR:
        return output
    return keras.layers.Activation(op.activation)(output)


def build_whole(graph: ChannelGraph, keep: np.ndarray | None = None) -> keras.Model:
    """Builds the converted model with fresh weights, for measuring its time.

    Args:
        graph: The graph of a plain model.
        keep: A boolean for each channel id, true where the channel stays. All of
            them stay by default.
    """
    if keep is None:
        keep = np.ones(graph.num_channels, bool)
    merged = merged_batchnorms(graph)
    gone = {id(norm) for norm in merged.values()}
    known: dict[int, Any] = {}
    inputs = []
    for symbol, shape in zip(graph.function.inputs, graph.input_shapes, strict=True):
        inputs.append(keras.Input(shape[1:], dtype=symbol.dtype))
        known[id(graph.tensor(symbol))] = inputs[-1]
    for step in graph.steps:
        if isinstance(step, Link):
            known[id(step.target)] = known[id(step.source)]
            continue
        values = [known[id(tensor)] for tensor in step.sources]
        if id(step.op) in gone or vanishes(step):
            outputs = [values[0]]
        else:
            outputs = keras.tree.flatten(_narrowed(step, values, keep, merged))
        known.update(zip(map(id, step.outputs), outputs, strict=True))
    return keras.Model(
        inputs, [known[id(graph.tensor(symbol))] for symbol in graph.function.outputs]
    )


def _narrowed(
    call: Call, values: Sequence[Any], keep: np.ndarray, merged: dict[int, keras.Layer]
) -> Any:
    """Calls an operation as conversion would leave it, with fresh weights."""
    inputs, outputs = (
        [keep[tensor.channels] for tensor in side]
        for side in (call.inputs, call.outputs)
    )
    if isinstance(call.rule, _NAMING_WIDTHS):
        unknown = [np.full(tensor.width, np.nan) for tensor in call.inputs]
        keeps = Keeps(inputs, outputs, unknown)
        op, _ = call.rule.narrow(call, keeps, Fusion())
        args, kwargs = call.arguments(values)
        args, kwargs = call.rule.narrow_arguments(call, args, kwargs, keeps)
        return op(*args, **kwargs)
    widths = [int(kept.sum()) // _groups(call) for kept in (*inputs, *outputs)]
    return apply_step(call, values, _has_bias(call, merged), widths[0], widths[-1])


def operations(graph: ChannelGraph) -> list[Operation]:
    """Lists the operations of the model that conversion would give."""
    merged = merged_batchnorms(graph)
    gone = {id(norm) for norm in merged.values()}
    shapes: dict[int, list[list[tuple]]] = {}
    for node, in_shapes, _ in executions(graph.function, graph.input_shapes):
        shapes.setdefault(id(graph.calls[node.key]), []).append(in_shapes)
    found: list[Operation] = []
    taken: set[int] = set()
    free = np.ones(graph.num_channels, bool)
    free[list(graph.pins)] = False
    for call in graph.calls.values():
        if id(call) in taken or id(call.op) in gone or vanishes(call):
            continue
        steps = _grouped(graph, call, gone)
        taken.update(map(id, steps))
        for in_shapes in shapes.get(id(call), []):
            found.append(_operation(graph, steps, in_shapes, merged, free))
    return found


def _ends(widths: Sequence[int]) -> tuple[int | None, int | None]:
    return (widths[0], widths[-1]) if widths else (None, None)


def _groups(call: Call) -> int:
    return call.rule.groups(call.op) if isinstance(call.rule, Kernel) else 1


def _has_bias(call: Call, merged: dict[int, keras.Layer]) -> bool:
    if not isinstance(call.rule, (Kernel, DepthwiseConv)):
        return False
    return call.op.use_bias or id(call.op) in merged


def _grouped(graph: ChannelGraph, call: Call, gone: set[int]) -> list[Call]:
    """Lists the calls that are measured together, beginning with `call`."""
    steps = [call]
    if isinstance(call.rule, ZeroPadding):
        reader = graph.only_reader(call)
        if reader is None or not isinstance(reader.rule, (Kernel, DepthwiseConv)):
            return steps
        steps.append(reader)
    head = steps[-1]
    if not isinstance(head.rule, (Kernel, DepthwiseConv, Join)):
        return steps
    if getattr(head.op, "activation", LINEAR) is not LINEAR:
        return steps
    reader = graph.only_reader(head)
    while reader is not None and (id(reader.op) in gone or vanishes(reader)):
        reader = graph.only_reader(reader)
    if reader is not None and isinstance(reader.rule, (Activation, Elementwise)):
        steps.append(reader)
    return steps


def _operation(
    graph: ChannelGraph,
    steps: list[Call],
    in_shapes: list[tuple],
    merged: dict[int, keras.Layer],
    free: np.ndarray,
) -> Operation:
    head = next((c for c in steps if isinstance(c.rule, (Kernel, DepthwiseConv))), None)
    has_bias = head is not None and _has_bias(head, merged)
    axes = _axes(steps[0], head, free)
    shapes = tuple(tuple(shape[1:]) for shape in in_shapes)
    parts = [_describe(call, bool(axes), has_bias) for call in steps]
    parts = [part for part in parts if part]
    sizes = [
        _size(shape, tensor.axis - 1, bool(axes), tensor.dtype)
        for shape, tensor in zip(shapes, steps[0].inputs, strict=True)
    ]
    key = f"{' + '.join(parts)} on {', '.join(sizes)}"
    name = graph.label(head or steps[0])
    can_narrow = tuple(bool(free[ids].any()) for ids in axes)
    return Operation(key, name, axes, tuple(steps), shapes, has_bias, can_narrow)


def _axes(first: Call, head: Call | None, free: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the channel axes whose widths decide on an operation's time."""
    if head is not None and isinstance(head.rule, Kernel):
        made = head.outputs[0].channels
        return head.rule.inputs_of_group(head), made[: len(made) // _groups(head)]
    if isinstance(first.rule, Concatenate):
        axis, rank = first.outputs[0].axis, len(first.outputs[0].shape)
        if first.op.axis % rank != axis:
            return ()
        return (first.outputs[0].channels,)
    ids = max((t.channels for t in first.inputs), key=len)
    fixed = isinstance(first.rule, Join) and any(
        np.size(operand) > 1 for operand in fixed_operands(first)
    )
    # Operations that cannot lose channels, or whose config contains their width, are
    # measured at this width only.
    names_width = first.rule.opaque or isinstance(first.rule, _NAMING_WIDTHS)
    return () if fixed or names_width or not free[ids].any() else (ids,)


def _describe(call: Call, variable: bool, has_bias: bool) -> str:
    """Says what an operation computes, without names and widths."""
    op = call.op
    if isinstance(call.rule, Activation):
        return _activation(op.activation)
    config = op.get_config() if hasattr(op, "get_config") else {}
    told = {}
    for name, value in config.items():
        silent = name in _SILENT or name.endswith(_SILENT_ENDINGS) or value is None
        if silent or (variable and name in _WIDTHS):
            continue
        if variable and name == "groups" and isinstance(call.rule, DepthwiseConv):
            continue
        told[name] = value
    text = ", ".join(f"{name}={_plain(value)}" for name, value in told.items())
    if isinstance(call.rule, (Kernel, DepthwiseConv)):
        text += ", bias" if has_bias else ""
        text = f"{type(op).__name__}({text})"
        activation = _activation(op.activation)
        return f"{text} + {activation}" if activation != "linear" else text
    return f"{type(op).__name__}({text})"


def _activation(function: Any) -> str:
    name = getattr(function, "__name__", None)
    return name or f"{type(function).__name__}({_plain(function.get_config())})"


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(map(_plain, value))
    if isinstance(value, dict):
        shown = {k: v for k, v in value.items() if k not in _SILENT and v is not None}
        return ", ".join(f"{k}={_plain(v)}" for k, v in shown.items())
    return str(value)


def _size(shape: tuple[int, ...], axis: int, variable: bool, dtype: str) -> str:
    sides = [str(n) for n in shape]
    if variable and sides:
        sides[axis] = "C"
    return f"{'x'.join(sides)} {dtype}"
