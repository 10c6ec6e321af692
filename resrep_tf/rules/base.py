"""The vocabulary of layer rules: tensors, calls, channel ids and the registry.

Everything the library knows about one type of operation stands in one `Rule`,
registered by exact type. A rule answers five questions:

* `relate`: how do the output's channels relate to the input's?
* `terms`: how many multiply-adds does a call cost, as a product of widths?
* `reads`: which inputs end here (are mixed by a kernel), and what may a pruned
  channel look like there?
* `status` / `constants`: what becomes of a channel that is zero, or constant?
* `narrow`: what is the same operation with fewer channels?

Types without a rule get `Opaque`: every channel they touch stays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

# What a pruned channel looks like somewhere in the network, whatever the weights:
# it only ever grows along the graph, which makes the analysis a fixed point.
ZERO, CONSTANT, VARYING = 0, 1, 2


@dataclass(eq=False)
class Tensor:
    """A symbolic tensor: its shape, its channel axis and its channels' ids."""

    shape: tuple[int | None, ...]
    axis: int = -1
    channels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return len(self.channels)


@dataclass(eq=False)
class Call:
    """One call of an operation in the graph.

    Args:
        op: The Keras operation (a layer, or a `keras.ops` operation).
        inputs: The tensors it reads, in flattened argument order.
        outputs: The tensors it makes.
        arguments: Maps a list of values, one per input, to `(args, kwargs)`.
        rule: What is known about the operation: the rule of its type, or `Rule`
            itself once this call turned out to be one that the type's rule cannot
            follow.
        memo: What the rule found out when it related the channels.
    """

    op: Any
    inputs: list[Tensor]
    outputs: list[Tensor]
    arguments: Callable[[Sequence[Any]], tuple[tuple, dict]]
    rule: "Rule"
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def kind(self) -> str:
        return type(self.op).__name__

    def describe(self) -> str:
        return f"`{self.name}` ({self.kind})"

    def evaluate(self, values: Sequence[Any]) -> np.ndarray:
        """Runs the operation itself, as in inference, on concrete values."""
        args, kwargs = self.arguments(values)
        kwargs.pop("training", None)
        return np.asarray(keras.ops.convert_to_numpy(self.op(*args, **kwargs)))


class Channels:
    """Channel ids under construction: which are the same, and which must stay.

    Ids are tied with a union-find, element by element, so that any static wiring
    of channels (concatenation, repetition, permutation) is followed exactly.
    """

    def __init__(self):
        self._parent = np.zeros(0, np.int64)
        self._pins: list[tuple[np.ndarray, str]] = []
        self._weights: dict[tuple[int, str], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, width: int) -> np.ndarray:
        start = len(self._parent)
        ids = np.arange(start, start + width, dtype=np.int64)
        self._parent = np.concatenate([self._parent, ids])
        return ids

    def find(self, ids: np.ndarray) -> np.ndarray:
        roots = self._parent[ids]
        while not np.array_equal(roots, above := self._parent[roots]):
            roots = above
        self._parent[ids] = roots
        return roots

    def tie(self, a: np.ndarray, b: np.ndarray) -> None:
        """Makes `a[i]` and `b[i]` the same channel for every i."""
        while True:
            a, b = self.find(a), self.find(b)
            differ = a != b
            if not differ.any():
                return
            # A root that stands here twice takes one of its partners now and meets
            # the others in the next round.
            low, high = np.minimum(a, b)[differ], np.maximum(a, b)[differ]
            self._parent[high] = low

    def pin(self, ids: np.ndarray, reason: str, first: bool = False) -> None:
        """Says that these channels must stay, and why (the first reason counts)."""
        if len(ids):
            self._pins.insert(0 if first else len(self._pins), (ids, reason))

    def pinned(self, width: int, reason: str) -> np.ndarray:
        ids = self.new(width)
        self.pin(ids, reason)
        return ids

    def of_weights(self, op: Any, side: str, ids: np.ndarray) -> np.ndarray:
        """Ties `ids` to what an operation's weights met at its earlier calls.

        A layer called at several places has one set of weights, so all its calls
        lose the same channels.
        """
        known = self._weights.setdefault((id(op), side), ids)
        self.tie(known, ids)
        return ids

    def made_by(self, op: Any, width: int) -> np.ndarray:
        """The channels a layer's weights create: the same ids at every call."""
        key = (id(op), "made")
        if key not in self._weights:
            self._weights[key] = self.new(width)
        return self._weights[key]

    def along(self, call: Call, axis: int, index: int = 0) -> np.ndarray:
        """The channels of an input along the axis an operation works on."""
        tensor = call.inputs[index]
        if tensor.axis == axis:
            return tensor.channels
        reason = f"{call.describe()} works on another axis than the channels"
        self.pin(tensor.channels, reason)
        ids = self.pinned(tensor.shape[axis] or 0, reason)
        call.inputs[index] = Tensor(tensor.shape, axis, ids, tensor.dtype)
        return ids

    def reasons(self) -> dict[int, str]:
        """The first reason given for each pinned channel, by root id."""
        found: dict[int, str] = {}
        for ids, reason in self._pins:
            for root in np.unique(self.find(ids)).tolist():
                found.setdefault(root, reason)
        return found


@dataclass(frozen=True)
class Read:
    """An input that a kernel reads: pruned channels end here.

    Args:
        index: Which input.
        accepts: `CONSTANT` if a channel of one constant value can be folded into
            the bias, `ZERO` if it must be zero.
        why: If only zero is accepted, why, in words.
    """

    index: int
    accepts: int
    why: str = ""


class Rule:
    """What the library knows about one type of operation; see the module's text.

    This base treats the operation as opaque: its output is new, whatever it
    touches stays, and nothing about it changes.
    """

    # Whether the operation's weights make new channels that can be pruned.
    produces = False

    @property
    def opaque(self) -> bool:
        """Whether this is the rule of types that nothing is known about."""
        return type(self) is Rule

    def opaque_reason(self, call: Call) -> str:
        return (
            f"{call.describe()} has no pruning rule "
            "(`resrep_tf.rules.register` can add one)"
        )

    def relate(self, call: Call, channels: Channels) -> None:
        """Sets `axis` and `channels` of every output tensor."""
        pin_all(call, channels, self.opaque_reason(call))

    def terms(
        self, call: Call, in_shapes: list[tuple], out_shapes: list[tuple]
    ) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """Multiply-adds as `(coefficient, factors)`; factors are channel ids."""
        return []

    def reads(self, call: Call) -> list[Read]:
        return []

    def status(self, call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The fate of pruned channels: `ZERO`, `CONSTANT` or `VARYING`."""
        return [np.full(t.width, VARYING, np.uint8) for t in call.outputs]

    def constants(self, call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The value of each constant channel; NaN where a channel varies."""
        return [np.full(t.width, np.nan) for t in call.outputs]

    def clone(self, op: Any) -> tuple[Any, list[np.ndarray]]:
        """The same operation, not yet built, and its weights."""
        weights = op.get_weights() if isinstance(op, keras.Layer) else []
        return type(op).from_config(op.get_config()), weights

    def narrow(self, call: Call, keeps: "Keeps") -> tuple[Any, list[np.ndarray]]:
        """The operation with only the kept channels, and its weights."""
        return self.clone(call.op)

    def narrow_arguments(
        self, call: Call, args: tuple, kwargs: dict, keeps: "Keeps"
    ) -> tuple[tuple, dict]:
        """The call's arguments, where some of them have a channel axis too."""
        return args, kwargs


@dataclass(frozen=True)
class Keeps:
    """Which channels of a call stay, and what the dropped ones were.

    Args:
        inputs: Per input, a boolean per channel.
        outputs: Per output, likewise.
        constants: Per input, the value of each channel where it is constant.
    """

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    constants: list[np.ndarray]

    @property
    def everything(self) -> bool:
        return all(keep.all() for keep in self.inputs + self.outputs)


class Channelwise(Rule):
    """An operation that treats every channel alone: channels pass through.

    Subclasses say what happens to a zero and to a constant; by default the
    operation itself is evaluated on the constants.
    """

    def relate(self, call, channels):
        (tensor,), (output,) = call.inputs, call.outputs
        output.axis, output.channels = tensor.axis, tensor.channels

    def keeps_zero(self, call: Call) -> bool:
        """Whether zero stays zero, whatever the weights."""
        (tensor,) = call.inputs
        return not self.value(call, np.zeros(tensor.width)).any()

    def keeps_constant(self, call: Call) -> bool:
        """Whether a constant other than zero stays constant over space."""
        return True

    def value(self, call: Call, constants: np.ndarray) -> np.ndarray:
        """The operation on one constant per channel."""
        (tensor,) = call.inputs
        return call.evaluate([spread(constants, tensor)]).reshape(-1)

    def status(self, call, inputs):
        if "fate" not in call.memo:
            zero = ZERO if self.keeps_zero(call) else CONSTANT
            other = CONSTANT if self.keeps_constant(call) else VARYING
            call.memo["fate"] = np.array([zero, other, VARYING], np.uint8)
        return [call.memo["fate"][inputs[0]]]

    def constants(self, call, inputs):
        (values,) = inputs
        if np.isnan(values).all():
            return [values]
        out = self.value(call, np.nan_to_num(values)).astype(np.float64)
        lost = np.isnan(values)
        if not self.keeps_constant(call):
            lost = lost | (values != 0)
        out[lost] = np.nan
        return [out]


def spread(values: np.ndarray, tensor: Tensor) -> np.ndarray:
    """One value per channel as a tensor of extent 1 along every other axis."""
    shape = [1] * len(tensor.shape)
    shape[tensor.axis] = len(values)
    return values.astype(tensor.dtype).reshape(shape)


def pin_all(call: Call, channels: Channels, reason: str) -> None:
    """Pins everything a call touches and makes the call opaque."""
    call.rule = _OPAQUE
    for tensor in call.inputs:
        channels.pin(tensor.channels, reason)
    for output in call.outputs:
        output.axis = max(len(output.shape) - 1, 0)
        width = output.shape[output.axis] if output.shape else None
        output.channels = channels.pinned(width or 0, reason)


def positions(shape: Sequence[int | None], axis: int) -> int:
    """How many positions a tensor has per example beside its channel axis."""
    return math.prod(n for i, n in enumerate(shape) if i not in (0, axis))


# === Registry ===

_RULES: dict[type | str, Rule] = {}
_OPAQUE = Rule()


def register(*types: type | str) -> Callable[[type[Rule]], type[Rule]]:
    """Registers a rule for exact operation types, as a class decorator.

    Args:
        *types: Layer classes, or `"keras.ops.Name"` for the operations behind
            `keras.ops` functions and operators on symbolic tensors, or
            `"keras.applications.Name"` for the layers inside Keras's networks.
    """

    def decorate(rule: type[Rule]) -> type[Rule]:
        for each in types:
            _RULES[each] = rule()
        return rule

    return decorate


def rule_for(op: Any) -> Rule:
    """The rule of an operation's exact type; opaque if there is none."""
    return _RULES.get(_key(op), _OPAQUE)


def _key(op: Any) -> type | str:
    """Keras does not export some of its own classes; they go by name."""
    kind = type(op)
    for module in ("keras.ops", "keras.applications"):
        if kind.__module__.startswith(module.replace("keras.", "keras.src.")):
            return f"{module}.{kind.__name__}"
    return kind
