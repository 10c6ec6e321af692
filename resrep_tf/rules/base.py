"""The basic classes of layer rules: tensors, calls, relations and the registry.

Everything the library knows about one type of operation is in one `Rule`,
registered by exact type. A rule answers these questions:

* `relate`: how do the output's channels relate to the input's?
* `terms`: how many multiply-adds does a call cost, as a product of widths?
* `reads`: which inputs end here (are mixed by a kernel), and what may a pruned
  channel look like there?
* `status` / `constants`: what does the operation make of a zero or constant channel?
* `role` / `contribution`: in which role can the operation be merged into the kernel
  before it? `absorbs`: which roles can a kernel absorb?
* `narrow`: what is the same operation with fewer channels?

Types without a rule get `Rule` itself: every channel they touch stays.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from resrep_tf.rules.channels import Channels
from resrep_tf.rules.fusion import Fusion
from resrep_tf.rules.weights import weights_of

# The possible statuses of a pruned channel at a place of the network, for any weights.
# Along the graph a status only ever grows, so the analysis comes to an end.
ZERO, CONSTANT, VARYING = 0, 1, 2


@dataclass(eq=False)
class Tensor:
    """A symbolic tensor: its shape, its channel axis and its channels' ids.

    Only the reader of a graph sets the axis and the channels; rules return them.
    Between the two reshapes of a channel shuffle the channels lie along `folded` axes,
    the first of which is `axis`.
    """

    shape: tuple[int | None, ...]
    axis: int = -1
    channels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    dtype: str = "float32"
    folded: int = 1

    @property
    def width(self) -> int:
        return len(self.channels)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an operation in the graph.

    Args:
        op: The Keras operation (a layer, or a `keras.ops` operation).
        inputs: The tensors it reads, in flattened argument order, as the operation sees
            them: with its own axis if it works on another axis than the channels'.
        outputs: The tensors it makes.
        arguments: Maps a list of values, one per input, to `(args, kwargs)`.
        rule: The rule of its type, unless the `Relation` of this call named another.
        memo: The `memo` of the call's `Relation`.
        sources: The tensors of the graph that the inputs stand for.
    """

    op: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arguments: Callable[[Sequence[Any]], tuple[tuple, dict]]
    rule: "Rule"
    memo: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Tensor, ...] = ()
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

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

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Returns `compute()`, computed once for this call."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]


@dataclass(frozen=True, eq=False)
class ChannelAxis:
    """The channels of a tensor: their axis, or axes, and their ids."""

    axis: int
    channels: np.ndarray
    folded: int = 1


@dataclass(frozen=True, eq=False)
class Relation:
    """The channels of one call's outputs, as a rule has found them.

    Args:
        outputs: The channels of each output.
        view: The first input as the operation sees it, if it works on another axis
            than the channels'.
        rule: The rule to use from now on, if it is another one.
        memo: Stored in `call.memo`, for the rule to use later.
    """

    outputs: tuple[ChannelAxis, ...]
    view: Tensor | None = None
    rule: "Rule | None" = None
    memo: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, axis: int, channels: np.ndarray, **kwargs) -> "Relation":
        """Returns the relation of a call with one output."""
        return cls((ChannelAxis(axis, channels),), **kwargs)


@dataclass(frozen=True)
class Read:
    """An input that a kernel reads: pruned channels end here.

    Args:
        index: The number of the input.
        accepts: `CONSTANT` if a channel of one constant value can be folded into
            the bias, `ZERO` if it must be zero.
        why: The reason, in words, if only zero is accepted.
    """

    index: int
    accepts: int
    why: str = ""


@dataclass(frozen=True)
class Keeps:
    """The channels of a call that stay, and the constants that replace the others.

    Args:
        inputs: For each input, a boolean for each channel.
        outputs: For each output, the same.
        constants: For each input, the value of each channel where it is constant.
        replaced: The constant that replaces each channel of the output, NaN for those
            that are computed. None if all are computed.
    """

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    constants: list[np.ndarray]
    replaced: np.ndarray | None = None

    @property
    def everything(self) -> bool:
        return all(keep.all() for keep in self.inputs + self.outputs)


class Rule:
    """All knowledge about one type of operation; see the module's text.

    This base treats the operation as opaque: its output has new channels, all channels
    that it reads or makes stay, and it is not changed.
    """

    # True if nothing is known about what the operation costs, or does with channels.
    opaque = False
    # True if the operation's weights make new channels that can be pruned.
    produces = False
    # `joins`: True if the operation joins several tensors element by element.
    # `zero_absorbs`: True if a zero in one of them makes the result zero.
    joins = False
    zero_absorbs = False
    # True if the operation can follow channels that lie along several axes.
    follows_folded = False
    # True if other weights can multiply each channel of the output by a factor.
    scalable = False
    # One of the roles in `rules.fusion`, or None if the operation cannot be merged.
    role: str | None = None
    # True if one operation can be merged into several layers, as a whole into each.
    shareable = False

    def opaque_reason(self, call: Call) -> str:
        return (
            f"{call.describe()} has no pruning rule "
            "(`resrep_tf.rules.register` can add one)"
        )

    def relate(self, call: Call, channels: Channels) -> Relation:
        """Returns the channels of every output, and ties or pins ids in `channels`."""
        return pin_all(call, channels, self.opaque_reason(call))

    def terms(
        self, call: Call, in_shapes: list[tuple], out_shapes: list[tuple]
    ) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """Returns multiply-adds as `(coefficient, factors)` of channel ids."""
        return []

    def reads(self, call: Call) -> list[Read]:
        """Returns the inputs whose channels a kernel mixes."""
        return []

    def status(self, call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the status of pruned channels: `ZERO`, `CONSTANT` or `VARYING`."""
        return [np.full(t.width, VARYING, np.uint8) for t in call.outputs]

    def constants(self, call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the value of each constant channel; NaN where a channel varies."""
        return [np.full(t.width, np.nan) for t in call.outputs]

    def at_zero(self, call: Call) -> np.ndarray:
        """Returns the output of a layer if all channels that it makes were pruned.

        They are zero before the layer's own activation, which may change them. Only for
        rules that `produces` or are `scalable`.
        """
        raise NotImplementedError(f"{call.describe()} makes no channels")

    def groups(self, op: Any) -> int:
        """Returns the number of groups of output channels that are made separately.

        A `scalable` operation makes each channel separately.
        """
        return 1

    def absorbs(self, call: Call) -> tuple[str, ...]:
        """Returns the roles of operations that can be merged into this one, in order.

        They must follow it directly, in this order; any of them may be missing.
        """
        return ()

    def contribution(self, call: Call, keeps: Keeps) -> Fusion:
        """Returns the values that this operation adds to the kernel before it."""
        raise NotImplementedError(f"{call.describe()} has no role")

    def clone(self, op: Any) -> tuple[Any, list[np.ndarray]]:
        """Returns the same operation, not yet built, and its weights."""
        return type(op).from_config(op.get_config()), weights_of(op)

    def narrow(
        self, call: Call, keeps: Keeps, fusion: Fusion
    ) -> tuple[Any, list[np.ndarray]]:
        """Returns the operation with only the kept channels, and its weights.

        Args:
            call: A call of the operation.
            keeps: The channels that stay.
            fusion: The operations that are merged into it; none unless it `absorbs`.
        """
        return self.clone(call.op)

    def narrow_arguments(
        self, call: Call, args: tuple, kwargs: dict, keeps: Keeps
    ) -> tuple[tuple, dict]:
        """Returns the call's arguments, cut where they have a channel axis too."""
        return args, kwargs


class _Opaque(Rule):
    """The rule of types without a rule."""

    opaque = True


class Channelwise(Rule):
    """An operation that treats every channel alone: channels pass through.

    Subclasses define what happens to a zero and to a constant; by default the
    operation itself is run on the constants.
    """

    def relate(self, call, channels):
        (tensor,) = call.inputs
        return Relation.of(tensor.axis, tensor.channels)

    def keeps_zero(self, call: Call) -> bool:
        """Returns whether zero stays zero for any weights."""
        (tensor,) = call.inputs
        return not self.value(call, np.zeros(tensor.width)).any()

    def keeps_constant(self, call: Call) -> bool:
        """Returns whether a constant other than zero stays constant over space."""
        return True

    def value(self, call: Call, constants: np.ndarray) -> np.ndarray:
        """Returns the output of the operation for one constant per channel."""
        (tensor,) = call.inputs
        return call.evaluate([spread(constants, tensor)]).reshape(-1)

    def _fate(self, call: Call) -> np.ndarray:
        """Returns the new status of a zero, a constant and a varying channel."""
        zero = ZERO if self.keeps_zero(call) else CONSTANT
        other = CONSTANT if self.keeps_constant(call) else VARYING
        return np.array([zero, other, VARYING], np.uint8)

    def status(self, call, inputs):
        return [call.once("fate", lambda: self._fate(call))[inputs[0]]]

    def constants(self, call, inputs):
        (values,) = inputs
        if np.isnan(values).all():
            return [values]
        out = self.value(call, np.nan_to_num(values)).astype(np.float64)
        lost = np.isnan(values)
        if not self.keeps_constant(call):
            lost = lost | (values != 0)
        out[lost | ~np.isfinite(out)] = np.nan
        return [out]


def spread(values: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Returns one value per channel, in a shape with 1 for every other axis."""
    shape = [1] * len(tensor.shape)
    shape[tensor.axis] = len(values)
    return values.astype(tensor.dtype).reshape(shape)


def along(call: Call, channels: Channels, axis: int) -> Tensor:
    """Returns a call's first input as seen along the axis that the call works on.

    It is the input itself if its channels lie there. Otherwise they are pinned.
    """
    tensor = call.inputs[0]
    if tensor.axis == axis:
        return tensor
    reason = f"{call.describe()} works on another axis than the channels"
    channels.pin(tensor.channels, reason)
    ids = channels.pinned(tensor.shape[axis] or 0, reason)
    return Tensor(tensor.shape, axis, ids, tensor.dtype)


def pin_all(call: Call, channels: Channels, reason: str) -> Relation:
    """Pins all channels that a call reads; returns the relation of an opaque call."""
    for tensor in call.inputs:
        channels.pin(tensor.channels, reason)
    outputs = []
    for output in call.outputs:
        axis = max(len(output.shape) - 1, 0)
        width = output.shape[axis] if output.shape else None
        outputs.append(ChannelAxis(axis, channels.pinned(width or 0, reason)))
    return Relation(tuple(outputs), rule=_OPAQUE)


def positions(shape: Sequence[int | None], axis: int) -> int:
    """Counts the positions that a tensor has per example beside its channel axis."""
    return math.prod(n for i, n in enumerate(shape) if i not in (0, axis))


# === Registry ===

_RULES: dict[type | str, Rule] = {}
_OPAQUE = _Opaque()


def register(*types: type | str) -> Callable[[type[Rule]], type[Rule]]:
    """Registers a rule for exact operation types, as a class decorator.

    Args:
        *types: Layer classes, or `"keras.ops.Name"` for the operations behind
            `keras.ops` functions and operators on symbolic tensors, or
            `"keras.activations.Name"` for those behind `keras.activations`, or
            `"keras.applications.Name"` for the layers inside Keras's networks.
    """

    def decorate(rule: type[Rule]) -> type[Rule]:
        for each in types:
            _RULES[each] = rule()
        return rule

    return decorate


def rule_for(op: Any) -> Rule:
    """Returns the rule of an operation's exact type; the opaque one if it has none."""
    return _RULES.get(_key(op), _OPAQUE)


def _key(op: Any) -> type | str:
    """Returns a type, or the name of one that Keras does not export."""
    kind = type(op)
    for module in ("keras.ops", "keras.activations", "keras.applications"):
        if kind.__module__.startswith(module.replace("keras.", "keras.src.")):
            return f"{module}.{kind.__name__}"
    return kind
