"""Spaces of channels that can only be removed together, and the layers making them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import keras
import numpy as np

from resrep_tf.graph.fates import Refusal, blocked, refused
from resrep_tf.graph.scaling import find_scaled
from resrep_tf.rules import Call
from resrep_tf.rules.base import CONSTANT, ZERO
from resrep_tf.rules.fusion import AFFINE

if TYPE_CHECKING:
    from resrep_tf.graph.channel_graph import ChannelGraph


@dataclass(frozen=True, eq=False)
class Producer:
    """A layer behind which a compactor can stand, with the BatchNorm behind it.

    Its kernel makes channels, or it is scalable and passes its input's channels on.

    Args:
        layer: The convolution or dense layer, or the scalable one.
        calls: Its calls.
        batchnorm: The BatchNorm that reads the output of every call, and nothing else.
        tail: The calls after which a compactor stands: those of the BatchNorm if
            there is one, the layer's own otherwise.
    """

    layer: keras.Layer
    calls: tuple[Call, ...]
    batchnorm: keras.Layer | None
    tail: tuple[Call, ...]

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def channels(self) -> np.ndarray:
        return self.calls[0].outputs[0].channels

    @property
    def groups(self) -> int:
        """The number of groups of channels that the layer makes separately."""
        return self.calls[0].rule.groups(self.layer)

    def removed(self) -> np.ndarray:
        """Returns the values of the tail's channels if all of them were pruned."""
        if self.batchnorm is not None:
            return np.zeros(len(self.channels))
        return self.calls[0].rule.at_zero(self.calls[0])

    @cached_property
    def removed_status(self) -> np.ndarray:
        """The status of the tail's channels if all of them were pruned."""
        return np.where(self.removed() == 0, ZERO, CONSTANT).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class Space:
    """Channels that can only be pruned together, and the layers that make them.

    A channel is removed wherever it occurs: in all layers that make it, and at several
    positions of one layer if it occurs there more than once.

    Args:
        index: Its number in graph order.
        channels: The ids of its channels, each once.
        producers: The layers at which a compactor must stand.
        scaled: Layers that pass the channels on and also need a compactor behind them,
            with one factor for each channel, so that a zero stays zero.
        followers: Layers that make the same channels but need no compactor: their
            outputs are multiplied by channels that are zero.
        gated: True if its layers are the factors of products and are never added, as
            around a squeeze-excite gate.
        reason: Why it cannot be pruned, in words; None if it can.
    """

    index: int
    channels: np.ndarray
    producers: tuple[Producer, ...]
    followers: tuple[Producer, ...]
    gated: bool
    reason: str | None = None
    scaled: tuple[Producer, ...] = ()

    @property
    def width(self) -> int:
        return len(self.channels)

    @cached_property
    def layouts(self) -> tuple[tuple[Producer, ...], ...]:
        """The producers in parts, each of which can share one compactor.

        The producers of a part make the same channels, in the same order and groups.
        """
        return _alike(self.producers)

    @cached_property
    def scaled_layouts(self) -> tuple[tuple[Producer, ...], ...]:
        """The scaled layers in parts, each of which can share one compactor."""
        return _alike(self.scaled)

    def index_of(self, channels: np.ndarray) -> np.ndarray:
        """Returns the position of each of these channels in `self.channels`."""
        order = np.argsort(self.channels)
        return order[np.searchsorted(self.channels, channels, sorter=order)]

    @property
    def prunable(self) -> bool:
        return self.reason is None

    @property
    def internal(self) -> bool:
        """True if one layer makes it, apart from gates: it is no residual stream."""
        return len(self.producers) == 1 or self.gated


def _alike(producers: Sequence[Producer]) -> tuple[tuple[Producer, ...], ...]:
    found: dict[tuple[bytes, int], list[Producer]] = {}
    for producer in producers:
        key = producer.channels.tobytes(), producer.groups
        found.setdefault(key, []).append(producer)
    return tuple(map(tuple, found.values()))


def find_producers(graph: "ChannelGraph") -> list[Producer]:
    """Returns the layers whose kernels make channels, in graph order."""
    return [
        _producer(graph, calls)
        for calls in graph.calls_by_op()
        if calls[0].rule.produces
    ]


def _find_scalable(graph: "ChannelGraph") -> list[Producer]:
    """Returns the scalable layers that no other layer absorbs, in graph order."""
    absorbed = {id(producer.batchnorm) for producer in graph.producers}
    found = []
    for calls in graph.calls_by_op():
        if calls[0].rule.scalable and id(calls[0].op) not in absorbed:
            found.append(_producer(graph, calls))
            absorbed.add(id(found[-1].batchnorm))
    return found


def _producer(graph: "ChannelGraph", calls: list[Call]) -> Producer:
    after = graph.absorbable(calls).get(AFFINE)
    batchnorm = after[0].op if after else None
    return Producer(calls[0].op, tuple(calls), batchnorm, tuple(after or calls))


def find_spaces(graph: "ChannelGraph") -> list[Space]:
    """Returns the spaces of a graph, in graph order."""
    groups, reasons = _grouped(graph)
    products = _joined(graph, zero_absorbs=True)
    gated = products - _joined(graph, zero_absorbs=False)
    gates = {
        number: group
        for number, group in enumerate(groups)
        if number not in reasons and not products.isdisjoint(_ids(group).tolist())
    }
    leading = dict(enumerate(groups)) | _leading(graph, gates)
    made = set(graph.producers)
    return [
        Space(
            index=number,
            channels=_ids(group),
            producers=tuple(p for p in leading[number] if p in made),
            scaled=tuple(p for p in leading[number] if p not in made),
            followers=tuple(
                p for p in reversed(group) if p in made and p not in leading[number]
            ),
            gated=gated.issuperset(_ids(group).tolist()),
            reason=reasons.get(number),
        )
        for number, group in enumerate(groups)
    ]


def _grouped(graph: "ChannelGraph") -> tuple[list[tuple[Producer, ...]], dict]:
    """Groups producers that share a channel, with the scaled layers that they need.

    Returns:
        The groups, and for each group that cannot be pruned, by number, the reason.
    """
    groups, reasons, refusals = _judged(graph, graph.producers)
    wanted = np.zeros(graph.num_channels, bool)
    for number, group in enumerate(groups):
        if number in reasons and _static_reason(graph, group) is None:
            wanted[_ids(group)] = True
    if not wanted.any():
        return groups, reasons
    scaled = find_scaled(graph, refusals, wanted, _find_scalable(graph))
    while scaled:
        groups, reasons, _ = _judged(graph, [*graph.producers, *scaled])
        failed = {p for number in reasons for p in groups[number]}.intersection(scaled)
        if not failed:
            return groups, reasons
        scaled = [producer for producer in scaled if producer not in failed]
    groups, reasons, _ = _judged(graph, graph.producers)
    return groups, reasons


def _judged(
    graph: "ChannelGraph", producers: Sequence[Producer]
) -> tuple[list[tuple[Producer, ...]], dict[int, str], list[Refusal]]:
    """Groups producers, and finds out which groups cannot be pruned."""
    groups = _tied(producers)
    reasons = {
        number: reason
        for number, group in enumerate(groups)
        if (reason := _static_reason(graph, group)) is not None
    }
    prunable = {n: group for n, group in enumerate(groups) if n not in reasons}
    refusals = _refused(graph, prunable)
    return groups, reasons | blocked(refusals, _owners(graph, prunable)), refusals


def _tied(producers: Sequence[Producer]) -> list[tuple[Producer, ...]]:
    """Groups producers that share a channel, in graph order."""
    owner: dict[int, int] = {}
    groups: dict[int, list[Producer]] = {}
    for number, producer in enumerate(producers):
        met = sorted({owner[c] for c in producer.channels.tolist() if c in owner})
        home = met[0] if met else number
        members = groups.setdefault(home, [])
        for other in met[1:]:
            members.extend(groups.pop(other))
        members.append(producer)
        for member in members:
            for channel in member.channels.tolist():
                owner[channel] = home
    order = {producer: number for number, producer in enumerate(producers)}
    return [tuple(sorted(group, key=order.__getitem__)) for group in groups.values()]


def _ids(group: Sequence[Producer]) -> np.ndarray:
    """Returns the channels that some producers make, each once, in their order."""
    ids = np.concatenate([producer.channels for producer in group])
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)]


def _joined(graph: "ChannelGraph", zero_absorbs: bool) -> set[int]:
    """Returns the channels of all products, or of all other joins of tensors."""
    return {
        channel
        for call in graph.calls.values()
        if call.rule.joins
        and call.rule.zero_absorbs == zero_absorbs
        and len(call.inputs) > 1
        for channel in call.outputs[0].channels.tolist()
    }


def _static_reason(graph: "ChannelGraph", group: Sequence[Producer]) -> str | None:
    """Returns why a group cannot be pruned, as far as its channels show, or None."""
    for producer in group:
        for channel in producer.channels.tolist():
            if channel in graph.pins:
                return graph.pins[channel]
    if len(_ids(group)) > 1:
        return None
    if all(len(producer.channels) == 1 for producer in group):
        return "it has only one channel"
    return (
        "its channels are tied to one another, so that they could only go all at once"
    )


# === What becomes of pruned channels ===

Groups = Mapping[int, tuple[Producer, ...]]


def _refused(graph: "ChannelGraph", groups: Groups) -> list[Refusal]:
    """Returns the channels that kernels must go on reading if producers are pruned."""
    if not groups:
        return []
    at_calls = {
        id(call): producer.removed_status
        for group in groups.values()
        for producer in group
        for call in producer.tail
    }
    return refused(graph.steps, at_calls)


def _owners(graph: "ChannelGraph", groups: Groups) -> np.ndarray:
    """Returns for each channel the number of its group; -1 for none."""
    owner = np.full(graph.num_channels, -1)
    for number, group in groups.items():
        owner[_ids(group)] = number
    return owner


def _leading(graph: "ChannelGraph", groups: Groups) -> dict[int, tuple[Producer, ...]]:
    """Returns, for each group of factors, the producers that must be zero themselves.

    The others may follow: whatever they compute, the product is zero. A later factor is
    usually the gate, so the last producers are tried first, in all groups at once.
    """
    leading = dict(groups)
    waiting = {number: list(group) for number, group in groups.items()}
    while waiting:
        trials = {}
        for number, queue in list(waiting.items()):
            kernels = [p for p in leading[number] if p.calls[0].rule.produces]
            if len(kernels) == 1 or not queue:
                del waiting[number]
                continue
            follower = queue.pop()
            trials[number] = tuple(p for p in leading[number] if p is not follower)
        held = blocked(_refused(graph, trials), _owners(graph, trials))
        leading |= {n: group for n, group in trials.items() if n not in held}
    return leading
