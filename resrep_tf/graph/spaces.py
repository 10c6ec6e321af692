"""Channel spaces: channels that live and die together, and the layers making them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import keras
import numpy as np

from resrep_tf.graph.fates import blocked
from resrep_tf.rules import Call
from resrep_tf.rules.base import CONSTANT, ZERO
from resrep_tf.rules.fusion import AFFINE

if TYPE_CHECKING:
    from resrep_tf.graph.channel_graph import ChannelGraph


@dataclass(frozen=True, eq=False)
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
        """How many groups of channels the layer makes apart from one another."""
        return self.calls[0].rule.groups(self.layer)

    def removed(self) -> np.ndarray:
        """Returns the values of the tail's channels if all of them were pruned."""
        if self.batchnorm is not None:
            return np.zeros(len(self.channels))
        return self.calls[0].rule.at_zero(self.calls[0])


@dataclass(frozen=True, eq=False)
class Space:
    """Channels that are pruned together with the layers that make them.

    A channel lives and dies wherever it occurs: in all layers that make it, and at
    several positions of one layer if it stands there more than once.

    Args:
        index: Its number in graph order.
        channels: The ids of its channels, each once.
        producers: The layers at which a compactor must stand.
        followers: Layers that make the same channels but need no compactor, since
            a zero in the other factor of a product makes theirs irrelevant.
        gated: True if its layers are the factors of products and never summed up,
            as around a squeeze-excite gate.
        reason: Why it cannot be pruned, in words; None if it can.
    """

    index: int
    channels: np.ndarray
    producers: tuple[Producer, ...]
    followers: tuple[Producer, ...]
    gated: bool
    reason: str | None = None

    @property
    def width(self) -> int:
        return len(self.channels)

    @cached_property
    def layouts(self) -> tuple[tuple[Producer, ...], ...]:
        """The producers in parts, each of which can share one compactor.

        They make the same channels in the same order, in as many groups.
        """
        found: dict[tuple[bytes, int], list[Producer]] = {}
        for producer in self.producers:
            key = producer.channels.tobytes(), producer.groups
            found.setdefault(key, []).append(producer)
        return tuple(map(tuple, found.values()))

    def index_of(self, channels: np.ndarray) -> np.ndarray:
        """Returns where in `self.channels` each of these channels stands."""
        order = np.argsort(self.channels)
        return order[np.searchsorted(self.channels, channels, sorter=order)]

    @property
    def prunable(self) -> bool:
        return self.reason is None

    @property
    def internal(self) -> bool:
        """True if one layer makes it, gates aside: it is no residual stream."""
        return len(self.producers) == 1 or self.gated


def find_producers(graph: "ChannelGraph") -> list[Producer]:
    """Returns the layers whose kernels make channels, in graph order."""
    producers = []
    for calls in graph.calls_by_op():
        if calls[0].rule.produces:
            after = graph.absorbable(calls).get(AFFINE)
            batchnorm = after[0].op if after else None
            tail = tuple(after or calls)
            producers.append(Producer(calls[0].op, tuple(calls), batchnorm, tail))
    return producers


def find_spaces(graph: "ChannelGraph") -> list[Space]:
    """Returns the spaces of a graph, in graph order."""
    groups = _tied(graph.producers)
    products = _joined(graph, zero_absorbs=True)
    gated = products - _joined(graph, zero_absorbs=False)
    reasons = {
        number: reason
        for number, group in enumerate(groups)
        if (reason := _static_reason(graph, group)) is not None
    }
    prunable = {n: group for n, group in enumerate(groups) if n not in reasons}
    removed = _removed(prunable)
    reasons |= _blocked(graph, prunable, removed)
    gates = {
        number: group
        for number, group in prunable.items()
        if number not in reasons and not products.isdisjoint(_ids(group).tolist())
    }
    leading = dict(enumerate(groups)) | _leading(graph, gates, removed)
    return [
        Space(
            index=number,
            channels=_ids(group),
            producers=leading[number],
            followers=tuple(p for p in reversed(group) if p not in leading[number]),
            gated=gated.issuperset(_ids(group).tolist()),
            reason=reasons.get(number),
        )
        for number, group in enumerate(groups)
    ]


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
    """Returns the channels that some producers make, each once, as they are met."""
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
    """Returns why a group cannot be pruned, as far as its channels tell."""
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


def _removed(groups: Groups) -> dict[Producer, np.ndarray]:
    """Returns the status of each producer's channels if they are pruned."""
    return {
        producer: np.where(producer.removed() == 0, ZERO, CONSTANT).astype(np.uint8)
        for group in groups.values()
        for producer in group
    }


def _blocked(
    graph: "ChannelGraph", groups: Groups, removed: Mapping[Producer, np.ndarray]
) -> dict[int, str]:
    """Returns which groups could not be dropped if these producers were pruned."""
    if not groups:
        return {}
    owner = np.full(graph.num_channels, -1)
    for number, group in groups.items():
        owner[_ids(group)] = number
    at_calls = {
        id(call): removed[producer]
        for group in groups.values()
        for producer in group
        for call in producer.tail
    }
    return blocked(graph.steps, at_calls, owner)


def _leading(
    graph: "ChannelGraph", groups: Groups, removed: Mapping[Producer, np.ndarray]
) -> dict[int, tuple[Producer, ...]]:
    """Returns for factors of products the producers that must be zero themselves.

    The others follow: whatever they compute, the product is zero. A later factor is
    usually the gate, so the last producers are tried first, in all groups at once.
    """
    leading = dict(groups)
    waiting = {number: list(group) for number, group in groups.items()}
    while waiting:
        trials = {}
        for number, queue in list(waiting.items()):
            if len(leading[number]) == 1 or not queue:
                del waiting[number]
                continue
            follower = queue.pop()
            trials[number] = tuple(p for p in leading[number] if p is not follower)
        refused = _blocked(graph, trials, removed)
        leading |= {n: group for n, group in trials.items() if n not in refused}
    return leading
