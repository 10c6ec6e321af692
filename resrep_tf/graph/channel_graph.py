"""A Keras model as a `ChannelGraph`: calls, channel spaces and multiply-adds."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np

from resrep_tf.graph.keras_nodes import check_model, executions, input_shapes
from resrep_tf.graph.propagation import Link
from resrep_tf.graph.reading import read_graph
from resrep_tf.graph.spaces import Producer, Space, find_producers, find_spaces
from resrep_tf.graph.terms import Term
from resrep_tf.graph.tracing import has_graph, trace
from resrep_tf.rules import Call, Tensor
from resrep_tf.rules.fusion import MATRIX


class ChannelGraph:
    """A model's calls, its spaces of channels and the cost of its operations.

    Args:
        model: A model, which is not changed. It is traced first if it is not Functional
            or has layers that are made of others.
        input_shape: The shape of one example, where the model leaves it open.
            A list for several inputs. Sizes that stay open count as 224.

    Attributes:
        model: The model, or the result of `resrep_tf.trace` if it was traced.
        trace_report: The report of tracing.
        steps: Calls, and links to and from nested models, in the order they run.
        calls: The calls by key of Keras's node.
        num_channels: The number of different channels.
        pins: For channels that must stay, the reason.
    """

    def __init__(self, model: keras.Model, input_shape: Sequence | None = None):
        traced: Any = trace(model, input_shape, return_report=True)
        self.model, self.trace_report = traced
        self.function = check_model(self.model)
        # A model without a graph was traced for exactly this shape.
        open_shape = input_shape if has_graph(model) else None
        self.input_shapes = input_shapes(self.function, open_shape)
        self._reading = read_graph(self.function)
        self.steps = self._reading.steps
        self.calls = self._reading.calls
        self.num_channels = self._reading.num_channels
        self.pins = self._reading.pins

    def __repr__(self):
        return (
            f"<ChannelGraph of `{self.model.name}`: {len(self.producers)} layers with "
            f"kernels, {len(self.spaces)} spaces, "
            f"{sum(s.prunable for s in self.spaces)} prunable>"
        )

    # === Who reads what ===

    def tensor(self, keras_tensor: keras.KerasTensor) -> Tensor:
        """Returns this graph's tensor for one of Keras's."""
        return self._reading.tensors[id(keras_tensor)]

    @cached_property
    def _users(self) -> dict[int, list[Any]]:
        """The calls that read each tensor; None stands for the model's own output."""
        users: dict[int, list[Any]] = {}
        for step in self.steps:
            sources = (step.source,) if isinstance(step, Link) else step.sources
            for tensor in sources:
                users.setdefault(id(tensor), []).append(step)
        for tensor in self.function.outputs:
            users.setdefault(id(self.tensor(tensor)), []).append(None)
        return users

    def is_output(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is an output of the model."""
        return None in self._users.get(id(tensor), [])

    def only_reader(self, call: Call) -> Call | None:
        """Returns the only call that reads this one's output; None if others do."""
        users = self._users.get(id(call.outputs[0]), [])
        return users[0] if len(users) == 1 and isinstance(users[0], Call) else None

    @cached_property
    def _calls_by_op(self) -> dict[int, list[Call]]:
        found: dict[int, list[Call]] = {}
        for call in self.calls.values():
            found.setdefault(id(call.op), []).append(call)
        return found

    def calls_by_op(self) -> list[list[Call]]:
        """Returns the calls of each operation, in graph order."""
        return list(self._calls_by_op.values())

    @cached_property
    def _names(self) -> Counter:
        return Counter(calls[0].name for calls in self.calls_by_op())

    def label(self, call: Call) -> str:
        """Returns an operation's name, with its nested model's if two share it."""
        scope = self._reading.scopes[id(call.op)] if self._names[call.name] > 1 else ""
        return f"{scope}{call.name}"

    def absorbable(self, calls: Sequence[Call]) -> dict[str, list[Call]]:
        """Returns the operations behind a layer that can be merged into it.

        Args:
            calls: All calls of the layer.

        Returns:
            For each role, in the order of the graph, the calls of one operation: one
            for each call of the layer. Nothing else reads the layer's outputs, and an
            operation that cannot be shared has no other inputs.
        """
        found: dict[str, list[Call]] = {}
        tail = list(calls)
        for role in calls[0].rule.absorbs(calls[0]):
            readers = [self.only_reader(call) for call in tail]
            after = [r for r in readers if r is not None and r.rule.role == role]
            if len(after) < len(tail):
                continue
            first = after[0]
            alone = len(self._calls_by_op[id(first.op)]) == len(calls)
            if (
                any(call.op is not first.op for call in after)
                or not (alone or first.rule.shareable)
                or first.inputs[0].axis != tail[0].outputs[0].axis
            ):
                continue
            found[role] = tail = after
        return found

    def merged(self, calls: Sequence[Call], fuse_bn: bool = True) -> dict:
        """Returns, in the form of `absorbable`, what conversion merges into a layer.

        A compactor is always merged, with the BatchNorm before it. A BatchNorm alone
        stays if `fuse_bn` is False, or if it makes an output of the model: the name of
        the layer is then the name of the output.
        """
        found = self.absorbable(calls)
        if MATRIX in found:
            return found
        ends = any(self.is_output(c.outputs[0]) for p in found.values() for c in p)
        return found if fuse_bn and not ends else {}

    # Computed on first use: counting multiply-adds and converting do not need them.

    @cached_property
    def producers(self) -> list[Producer]:
        """The layers whose kernels make channels, in graph order."""
        return find_producers(self)

    @cached_property
    def spaces(self) -> list[Space]:
        """The groups of channels that can only be removed together, in graph order."""
        return find_spaces(self)

    def parts(self, wholes: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Returns the parts of layers' outputs that must keep at least one channel.

        Such parts come from a split, for example: one channel of each part has to stay,
        not only one channel of the layer.

        Args:
            wholes: For each layer that can lose channels, all channels that it makes.
        """
        free = np.zeros(self.num_channels, bool)
        first: dict[int, list[np.ndarray]] = {}
        for channels in wholes:
            free[channels] = True
            first.setdefault(int(channels[0]), []).append(channels)
        known = {channels.tobytes() for channels in wholes}
        found = []
        for call in self.calls.values():
            for tensor in call.outputs:
                key = tensor.channels.tobytes()
                if key in known or not free[tensor.channels].all():
                    continue
                known.add(key)
                inside = np.zeros(self.num_channels, bool)
                inside[tensor.channels] = True
                begun = [
                    w for c in set(tensor.channels.tolist()) for w in first.get(c, ())
                ]
                if tensor.width and not any(inside[whole].all() for whole in begun):
                    found.append(tensor.channels)
        return tuple(found)

    # === FLOPs ===

    @cached_property
    def terms(self) -> list[Term]:
        """The model's multiply-adds as products of widths."""
        coefficients: dict[tuple[int, int], int] = {}
        factors: dict[tuple[int, int], tuple] = {}
        names: dict[int, str] = {}
        for node, in_shapes, out_shapes in executions(self.function, self.input_shapes):
            call = self.calls[node.key]
            names[id(call)] = self.label(call)
            for part, (coefficient, sides) in enumerate(
                call.rule.terms(call, in_shapes, out_shapes)
            ):
                key = (id(call), part)
                coefficients[key] = coefficients.get(key, 0) + coefficient
                factors[key] = sides
        return [
            Term(names[key[0]], coefficient, factors[key])
            for key, coefficient in coefficients.items()
        ]
