"""Reads a Keras model into a `ChannelGraph`: calls, channel spaces and FLOPs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np

from resrep_tf.graph import propagation as flow
from resrep_tf.graph.keras_nodes import (
    arguments,
    as_function,
    check_model,
    entering,
    executions,
    input_shapes,
    nodes,
)
from resrep_tf.graph.propagation import Link
from resrep_tf.graph.terms import Term
from resrep_tf.rules import Call, Channels, Read, Tensor, rule_for
from resrep_tf.rules.base import VARYING, ZERO
from resrep_tf.rules.joins import Join


@dataclass(eq=False)
class Producer:
    """A layer whose kernel makes channels, with the BatchNorm that it feeds.

    Args:
        layer: The convolution or dense layer.
        calls: Its calls.
        batchnorm: The BatchNorm that every call feeds, and nothing else does.
        tail: The calls after which a compactor stands: those of the BatchNorm if
            there is one, the layer's own otherwise.
    """

    layer: keras.Layer
    calls: list[Call]
    batchnorm: keras.Layer | None
    tail: list[Call]

    @property
    def name(self) -> str:
        return self.layer.name


@dataclass(eq=False)
class Space:
    """Channels that live and die together, wherever they occur.

    Args:
        index: Its number in graph order.
        channels: The ids of its channels.
        producers: The layers at which a compactor must stand.
        followers: Layers that make the same channels but need no compactor, since
            a zero in the other factor of a product makes theirs irrelevant.
        gated: Whether its layers are the factors of products and never summed up,
            as around a squeeze-excite gate.
        reason: Why it cannot be pruned, in words; None if it can.
    """

    index: int
    channels: np.ndarray
    producers: list[Producer]
    followers: list[Producer]
    gated: bool
    reason: str | None = None

    @property
    def width(self) -> int:
        return len(self.channels)

    @property
    def prunable(self) -> bool:
        return self.reason is None

    @property
    def internal(self) -> bool:
        """Whether one layer makes it, gates aside: it is no residual stream."""
        return len(self.producers) == 1 or self.gated


class ChannelGraph:
    """A model's calls, its channel spaces and what its operations cost.

    Args:
        model: A Functional or built Sequential model; it is only read.
        input_shape: The shape of one example, where the model leaves it open.
            A list for several inputs. Extents that stay open count as 224.
    """

    def __init__(self, model: keras.Model, input_shape: Sequence | None = None):
        self.model = model
        self.function = check_model(model)
        self.input_shapes = input_shapes(self.function, input_shape)
        self.steps: list[Call | Link] = []
        self.calls: dict[int, Call] = {}  # By id of Keras's node.
        self._ids = Channels()
        self._tensors: dict[int, Tensor] = {}
        self._keras_tensors: list[Any] = []  # Keeps the ids above alive.
        self._sources: dict[int, list[Tensor]] = {}
        self._entered: set[int] = set()
        self._scopes: dict[int, str] = {}  # Where each operation is nested.
        for tensor in self.function.inputs:
            self._open(self.tensor(tensor), "it is an input of the model")
        self._read(self.function)
        for tensor in self.function.outputs:
            ids = self.tensor(tensor).channels
            self._ids.pin(ids, "it is an output of the model", first=True)
        self._settle()

    def __repr__(self):
        return (
            f"<ChannelGraph of `{self.model.name}`: {len(self.producers)} layers with "
            f"kernels, {len(self.spaces)} spaces, "
            f"{sum(s.prunable for s in self.spaces)} prunable>"
        )

    # === Reading ===

    def tensor(self, keras_tensor: keras.KerasTensor) -> Tensor:
        """This graph's tensor for one of Keras's."""
        key = id(keras_tensor)
        if key not in self._tensors:
            self._keras_tensors.append(keras_tensor)
            self._tensors[key] = Tensor(
                tuple(keras_tensor.shape), dtype=keras_tensor.dtype
            )
        return self._tensors[key]

    def _open(self, tensor: Tensor, reason: str) -> None:
        tensor.axis = max(len(tensor.shape) - 1, 0)
        if keras.config.image_data_format() == "channels_first":
            tensor.axis = min(1, tensor.axis)
        width = tensor.shape[tensor.axis] if tensor.shape else None
        tensor.channels = self._ids.pinned(width or 0, reason)

    def _read(self, function: keras.Function, scope: str = "") -> None:
        for node in nodes(function):
            inner = as_function(node.operation)
            entered = None if inner is None else entering(node, inner)
            if entered is not None:
                self._read_nested(node, inner, entered, scope)
                continue
            self._scopes.setdefault(id(node.operation), scope)
            call = Call(
                node.operation,
                [self.tensor(t) for t in node.input_tensors],
                [self.tensor(t) for t in node.outputs],
                arguments(node),
                rule_for(node.operation),
            )
            # Rules may give a call its own view of an input; who reads what stays.
            self._sources[id(call)] = list(call.inputs)
            call.rule.relate(call, self._ids)
            self.calls[id(node)] = call
            self.steps.append(call)

    def _read_nested(
        self, node: Any, inner: keras.Function, entered: list, scope: str
    ) -> None:
        """A nested model is one set of layers, however often it is called."""
        first = id(inner) not in self._entered
        self._entered.add(id(inner))
        for outside, inside in zip(entered, inner.inputs, strict=True):
            self._link(self.tensor(outside), self.tensor(inside), first)
        if first:
            self._read(inner, f"{scope}{node.operation.name}/")
        for inside, outside in zip(inner.outputs, node.outputs, strict=True):
            self._link(self.tensor(inside), self.tensor(outside), True)

    def _link(self, source: Tensor, target: Tensor, first: bool) -> None:
        self.steps.append(Link(source, target))
        if first:
            target.axis, target.channels = source.axis, source.channels
        elif target.axis == source.axis:
            self._ids.tie(target.channels, source.channels)
        else:
            reason = "a nested model is called on channels of different axes"
            self._ids.pin(source.channels, reason)
            self._ids.pin(target.channels, reason)

    def _settle(self) -> None:
        """Gives every channel its final number, counted from zero."""
        reasons = self._ids.reasons()
        roots, numbers = np.unique(
            self._ids.find(np.arange(len(self._ids))), return_inverse=True
        )
        self.num_channels = len(roots)
        self.pins = {
            int(np.searchsorted(roots, root)): why for root, why in reasons.items()
        }
        tensors = set(self._tensors.values())
        tensors.update(t for c in self.calls.values() for t in c.inputs)
        for tensor in tensors:
            tensor.channels = numbers[tensor.channels]

    # === Producers and spaces ===

    @cached_property
    def _users(self) -> dict[int, list[Any]]:
        """Who reads each tensor; the model's own output counts as a reader."""
        users: dict[int, list[Any]] = {}
        for step in self.steps:
            nested = isinstance(step, Link)
            sources = [step.source] if nested else self._sources[id(step)]
            for tensor in sources:
                users.setdefault(id(tensor), []).append(step)
        for tensor in self.function.outputs:
            users.setdefault(id(self.tensor(tensor)), []).append(None)
        return users

    def is_output(self, tensor: Tensor) -> bool:
        return None in self._users.get(id(tensor), [])

    def only_reader(self, call: Call) -> Call | None:
        """The call that reads this one's output, if nothing else does."""
        users = self._users.get(id(call.outputs[0]), [])
        return users[0] if len(users) == 1 and isinstance(users[0], Call) else None

    @cached_property
    def _calls_by_op(self) -> dict[int, list[Call]]:
        found: dict[int, list[Call]] = {}
        for step in self.steps:
            if isinstance(step, Call):
                found.setdefault(id(step.op), []).append(step)
        return found

    def calls_by_op(self) -> list[list[Call]]:
        """The calls of each operation, in graph order."""
        return list(self._calls_by_op.values())

    @cached_property
    def _names(self) -> Counter:
        return Counter(calls[0].name for calls in self.calls_by_op())

    def label(self, call: Call) -> str:
        """An operation's name, with the nested model's if another has the same."""
        scope = self._scopes[id(call.op)] if self._names[call.name] > 1 else ""
        return f"{scope}{call.name}"

    def batchnorm_after(self, calls: list[Call]) -> list[Call] | None:
        """The BatchNorm calls that can be merged into a layer's kernel.

        None unless every output of the layer goes to one BatchNorm and nowhere
        else, and that BatchNorm reads nothing else.
        """
        if calls[0].op.activation is not keras.activations.linear:
            return None
        after = [self.only_reader(call) for call in calls]
        if None in after or type(after[0].op) is not keras.layers.BatchNormalization:
            return None
        same = all(call.op is after[0].op for call in after)
        if not same or len(self._calls_by_op[id(after[0].op)]) != len(calls):
            return None
        if after[0].inputs[0].axis != calls[0].outputs[0].axis:
            return None
        return after

    # Counting FLOPs and converting need neither of the following two.

    @cached_property
    def producers(self) -> list[Producer]:
        """The layers whose kernels make channels, in graph order."""
        producers = []
        for calls in self.calls_by_op():
            if not calls[0].rule.produces:
                continue
            after = self.batchnorm_after(calls)
            batchnorm = after[0].op if after else None
            producers.append(Producer(calls[0].op, calls, batchnorm, after or calls))
        return producers

    @cached_property
    def spaces(self) -> list[Space]:
        """The groups of channels that live and die together, in graph order."""
        spaces = []
        gated = self._joined(zero_absorbs=True) - self._joined(zero_absorbs=False)
        for group in self._tied_producers():
            channels = group[0].calls[0].outputs[0].channels
            reason = self._reason(group, channels)
            is_gated = gated.issuperset(channels.tolist())
            spaces.append(Space(len(spaces), channels, group, [], is_gated, reason))
        self._check_fates(spaces)
        return spaces

    def _tied_producers(self) -> list[list[Producer]]:
        """Groups producers that share a channel, in graph order."""
        owner: dict[int, int] = {}
        groups: dict[int, list[Producer]] = {}
        for number, producer in enumerate(self.producers):
            channels = producer.calls[0].outputs[0].channels.tolist()
            met = sorted({owner[c] for c in channels if c in owner})
            home = met[0] if met else number
            members = groups.setdefault(home, [])
            for other in met[1:]:
                members.extend(groups.pop(other))
            members.append(producer)
            for member in members:
                for channel in member.calls[0].outputs[0].channels.tolist():
                    owner[channel] = home
        order = {id(p): i for i, p in enumerate(self.producers)}
        return [sorted(g, key=lambda p: order[id(p)]) for g in groups.values()]

    def _joined(self, zero_absorbs: bool) -> set[int]:
        """The channels of all products, or of all other joins of several tensors."""
        return {
            channel
            for call in self.calls.values()
            if isinstance(call.rule, Join)
            and call.rule.zero_absorbs == zero_absorbs
            and len(call.inputs) > 1
            for channel in call.outputs[0].channels.tolist()
        }

    def _reason(self, group: list[Producer], channels: np.ndarray) -> str | None:
        for producer in group:
            for channel in producer.calls[0].outputs[0].channels.tolist():
                if channel in self.pins:
                    return self.pins[channel]
        outputs = [producer.calls[0].outputs[0].channels for producer in group]
        if len(set(channels.tolist())) < len(channels) or any(
            not np.array_equal(other, channels) for other in outputs
        ):
            names = ", ".join(f"`{p.name}`" for p in group)
            return (
                f"the channels of {names} are tied in a pattern that one shared "
                "compactor cannot follow"
            )
        if len(channels) < 2:
            return "it has only one channel"
        return None

    # === What becomes of pruned channels ===

    def _check_fates(self, spaces: list[Space]) -> None:
        """Pins spaces whose pruned channels could not be dropped exactly.

        Also finds followers: of the producers of a gated space, those whose
        channels need not be zero themselves.
        """
        for space, reason in self._blocked([s for s in spaces if s.prunable]).items():
            space.reason = reason
        products = self._joined(zero_absorbs=True)
        # A later factor is usually the gate, so the last producers are tried first.
        waiting = {
            space: list(space.producers)
            for space in spaces
            if space.prunable and int(space.channels[0]) in products
        }
        while waiting:
            trials = {}
            for space, queue in list(waiting.items()):
                if len(space.producers) == 1 or not queue:
                    del waiting[space]
                    continue
                trials[space] = space.producers
                follower = queue.pop()
                space.producers = [p for p in space.producers if p is not follower]
                space.followers.append(follower)
            for space in self._blocked(list(trials)):
                space.producers = trials[space]
                space.followers.pop()

    def _blocked(self, spaces: list[Space]) -> dict[Space, str]:
        """Which of these spaces could not be dropped if pruned, and why."""
        if not spaces:
            return {}
        owner = np.full(self.num_channels, -1)
        for number, space in enumerate(spaces):
            owner[space.channels] = number
        tails = {
            id(call): producer
            for space in spaces
            for producer in space.producers
            for call in producer.tail
        }

        def transfer(call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
            producer = tails.get(id(call))
            if producer is None:
                return call.rule.status(call, inputs)
            if producer.batchnorm is not None:
                return [np.zeros(call.outputs[0].width, np.uint8)]
            return [call.rule.pruned_status(call)]

        facts = flow.propagate(
            self.steps,
            lambda tensor: np.full(tensor.width, VARYING, np.uint8),
            transfer,
            # Two calls of a nested model need not bring the same constant.
            lambda a, b: np.where((a == ZERO) & (b == ZERO), ZERO, VARYING),
        )
        blocked: dict[Space, str] = {}
        for call in self.calls.values():
            for read in call.rule.reads(call):
                if len(self._calls_by_op[id(call.op)]) > 1 and not read.why:
                    why = f"{call.describe()} is called more than once with one bias"
                    read = Read(read.index, ZERO, why)
                tensor = call.inputs[read.index]
                fact = facts.get(id(tensor))
                if fact is None:
                    continue
                met = np.unique(owner[tensor.channels[fact > read.accepts]])
                for number in met[met >= 0].tolist():
                    blocked.setdefault(spaces[number], _blocked_reason(call, read))
        return blocked

    # === FLOPs ===

    @cached_property
    def terms(self) -> list[Term]:
        """The model's multiply-adds as products of widths."""
        coefficients: dict[tuple[int, int], int] = {}
        factors: dict[tuple[int, int], tuple] = {}
        names: dict[int, str] = {}
        for node, in_shapes, out_shapes in executions(self.function, self.input_shapes):
            call = self.calls[id(node)]
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


def _blocked_reason(call: Call, read: Read) -> str:
    if read.why:
        return (
            "its pruned channels would be a constant other than zero where "
            f"{read.why}, so they could not be dropped exactly"
        )
    return (
        "its pruned channels would not be constant where "
        f"{call.describe()} reads them, so they could not be dropped exactly"
    )
