"""Reads a Keras graph: its calls, and the channels of every tensor."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from resrep_tf.graph.keras_nodes import Node, nodes
from resrep_tf.graph.propagation import Link
from resrep_tf.rules import Call, Channels, Relation, Tensor, pin_all, rule_for


@dataclass(frozen=True, eq=False)
class Reading:
    """The calls of a graph, and the channels of their tensors.

    Args:
        steps: Calls, and links to and from nested models, in the order they run.
        calls: The calls by key of Keras's node.
        tensors: The tensors by id of Keras's.
        scopes: By id of an operation, the names of the nested models around it.
        num_channels: The number of different channels.
        pins: For channels that must stay, the reason.
        alive: Keras's tensors. They are kept so that their ids are not used again.
    """

    steps: list[Call | Link]
    calls: dict[int, Call]
    tensors: dict[int, Tensor]
    scopes: dict[int, str]
    num_channels: int
    pins: dict[int, str]
    alive: list[Any]


def read_graph(function: keras.Function) -> Reading:
    """Reads a graph and the graphs nested in it."""
    reader = _Reader()
    for tensor in function.inputs:
        reader.open(tensor)
    reader.read(function)
    for tensor in function.outputs:
        reader.close(tensor)
    return reader.settle()


class _Reader:
    """Reads a graph call by call, and collects the parts of a `Reading`."""

    def __init__(self):
        self._ids = Channels()
        self._steps: list[Call | Link] = []
        self._calls: dict[int, Call] = {}
        self._tensors: dict[int, Tensor] = {}
        self._alive: list[Any] = []
        self._entered: set[int] = set()
        self._scopes: dict[int, str] = {}

    def _tensor(self, keras_tensor: keras.KerasTensor) -> Tensor:
        key = id(keras_tensor)
        if key not in self._tensors:
            self._alive.append(keras_tensor)
            self._tensors[key] = Tensor(
                tuple(keras_tensor.shape), dtype=keras_tensor.dtype
            )
        return self._tensors[key]

    def open(self, keras_tensor: keras.KerasTensor) -> None:
        """Gives an input of the model its channels."""
        tensor = self._tensor(keras_tensor)
        tensor.axis = max(len(tensor.shape) - 1, 0)
        if keras.config.image_data_format() == "channels_first":
            tensor.axis = min(1, tensor.axis)
        width = tensor.shape[tensor.axis] if tensor.shape else None
        tensor.channels = self._ids.pinned(width or 0, "it is an input of the model")

    def close(self, keras_tensor: keras.KerasTensor) -> None:
        """Pins an output of the model."""
        ids = self._tensor(keras_tensor).channels
        self._ids.pin(ids, "it is an output of the model", first=True)

    def read(self, function: keras.Function, scope: str = "") -> None:
        """Reads the calls of a graph whose inputs already have channels."""
        for node in nodes(function):
            if node.inner is not None:
                self._read_nested(node, scope)
                continue
            self._scopes.setdefault(id(node.op), scope)
            call = self._relate(node)
            self._calls[node.key] = call
            self._steps.append(call)

    def _relate(self, node: Node) -> Call:
        """Makes the call of a node and gives its outputs their channels."""
        inputs = tuple(self._tensor(t) for t in node.inputs)
        outputs = tuple(self._tensor(t) for t in node.outputs)
        call = Call(
            node.op, inputs, outputs, node.arguments, rule_for(node.op), sources=inputs
        )
        if all(t.folded == 1 for t in inputs) or call.rule.follows_folded:
            relation = call.rule.relate(call, self._ids)
        else:
            reason = f"{call.describe()} reads channels that lie along several axes"
            relation = pin_all(call, self._ids, reason)
        if not isinstance(relation, Relation):
            raise TypeError(
                f"`relate` of a rule must return a `Relation`. Received: {relation!r} "
                f"from `{type(call.rule).__name__}` for {call.describe()}"
            )
        for output, found in zip(outputs, relation.outputs, strict=True):
            output.axis, output.channels = found.axis, found.channels
            output.folded = found.folded
        if relation.view is not None:
            inputs = (relation.view, *inputs[1:])
        rule = relation.rule or call.rule
        return dataclasses.replace(call, inputs=inputs, rule=rule, memo=relation.memo)

    def _read_nested(self, node: Node, scope: str) -> None:
        """Reads a nested model; its layers are read once, whatever its calls."""
        inner = node.inner
        first = id(inner) not in self._entered
        self._entered.add(id(inner))
        for outside, inside in zip(node.entering, inner.inputs, strict=True):
            self._link(self._tensor(outside), self._tensor(inside), first)
        if first:
            self.read(inner, f"{scope}{node.op.name}/")
        for inside, outside in zip(inner.outputs, node.outputs, strict=True):
            self._link(self._tensor(inside), self._tensor(outside), True)

    def _link(self, source: Tensor, target: Tensor, first: bool) -> None:
        self._steps.append(Link(source, target))
        if first:
            target.axis, target.channels = source.axis, source.channels
            target.folded = source.folded
        elif (target.axis, target.folded) == (source.axis, source.folded):
            self._ids.tie(target.channels, source.channels)
        else:
            reason = "a nested model is called on channels of different axes"
            self._ids.pin(source.channels, reason)
            self._ids.pin(target.channels, reason)

    def settle(self) -> Reading:
        """Gives every channel its final number, counted from zero."""
        reasons = self._ids.reasons()
        roots, numbers = np.unique(
            self._ids.find(np.arange(len(self._ids))), return_inverse=True
        )
        pins = {int(np.searchsorted(roots, root)): why for root, why in reasons.items()}
        tensors = set(self._tensors.values())
        tensors.update(t for call in self._calls.values() for t in call.inputs)
        for tensor in tensors:
            tensor.channels = numbers[tensor.channels]
        return Reading(
            steps=self._steps,
            calls=self._calls,
            tensors=self._tensors,
            scopes=self._scopes,
            num_channels=len(roots),
            pins=pins,
            alive=self._alive,
        )
