"""Follows pruned channels, and finds where they could not be dropped exactly.

A pruned channel is a constant where it is removed. Following operations may turn it
into another constant. Where a kernel reads it, that constant is folded into the
kernel's bias if possible. One analysis follows channels through a graph, with two kinds
of facts: `Statuses`, which need no weights (is a pruned channel zero here, a constant,
or neither?), and `Constants`, the values themselves, for a model with trained weights.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.graph.propagation import Facts, Link, propagate
from resrep_tf.rules import Call, Read, Tensor
from resrep_tf.rules.base import VARYING, ZERO


@dataclass(frozen=True, eq=False)
class Refusal:
    """Channels that a kernel reads and that cannot be dropped exactly at this place.

    Args:
        call: The call of the kernel.
        tensor: The tensor that it reads them from.
        channels: Their ids.
        why: The reason, if it is not that the channels vary.
        shared: True if the layer has several calls, with one bias.
    """

    call: Call
    tensor: Tensor
    channels: np.ndarray
    why: str
    shared: bool


class Analysis(ABC):
    """Computes facts about pruned channels, and which facts a kernel accepts."""

    @abstractmethod
    def unknown(self, tensor: Tensor) -> np.ndarray:
        """Returns the facts of a tensor that does not depend on pruned channels."""

    @abstractmethod
    def transfer(self, call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the facts of a call's outputs, given those of its inputs."""

    @abstractmethod
    def join(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Returns the facts that are true at both of two calls of a nested model."""

    @abstractmethod
    def refused(
        self, read: Read, fact: np.ndarray, first: np.ndarray, shared: bool
    ) -> np.ndarray:
        """Returns, for each channel, whether a kernel must go on reading it.

        Args:
            read: The kernel's input.
            fact: Facts of the input.
            first: Those at the first call of the layer.
            shared: True if the layer has several calls, with one bias.
        """

    def follow(
        self, steps: Sequence[Call | Link], removed: Mapping[int, np.ndarray]
    ) -> Facts:
        """Returns the facts of all tensors.

        Args:
            steps: The steps of a graph.
            removed: By id of a call, the facts of its output, where channels are
                removed there.
        """

        def transfer(call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
            if id(call) in removed:
                return [removed[id(call)]]
            return self.transfer(call, inputs)

        return propagate(steps, self.unknown, transfer, self.join)

    def refusals(self, steps: Sequence[Call | Link], facts: Facts) -> Iterator[Refusal]:
        """Yields the channels that kernels must go on reading, in graph order."""
        calls = [step for step in steps if isinstance(step, Call)]
        times = Counter(id(call.op) for call in calls)
        at_first: dict[tuple[int, int], np.ndarray] = {}
        for call in calls:
            for read in call.rule.reads(call):
                tensor = call.inputs[read.index]
                fact = facts.get(id(tensor))
                if fact is None:
                    fact = self.unknown(tensor)
                first = at_first.setdefault((id(call.op), read.index), fact)
                shared = times[id(call.op)] > 1
                refused = self.refused(read, fact, first, shared)
                channels = tensor.channels[refused]
                yield Refusal(call, tensor, channels, read.why, shared)


class Statuses(Analysis):
    """The statuses of pruned channels, for any weights; see `rules.base.ZERO`."""

    def unknown(self, tensor):
        return np.full(tensor.width, VARYING, np.uint8)

    def transfer(self, call, inputs):
        return call.rule.status(call, inputs)

    def join(self, a, b):
        # Two calls of a nested model may pass different constants.
        return np.where((a == ZERO) & (b == ZERO), ZERO, VARYING)

    def refused(self, read, fact, first, shared):
        # Several calls may need different constants in the layer's one bias.
        return fact > (ZERO if shared else read.accepts)


class Constants(Analysis):
    """The values of constant channels, NaN for channels that vary."""

    def unknown(self, tensor):
        return np.full(tensor.width, np.nan)

    def transfer(self, call, inputs):
        return call.rule.constants(call, inputs)

    def join(self, a, b):
        return np.where(a == b, a, np.nan)

    def refused(self, read, fact, first, shared):
        # A layer with several calls has one bias, so their constants must be equal.
        refused = np.isnan(fact) | (fact != first)
        return refused | (fact != 0) if read.accepts == ZERO else refused


def refused(
    steps: Sequence[Call | Link], removed: Mapping[int, np.ndarray]
) -> list[Refusal]:
    """Returns the channels that kernels must go on reading, for any weights.

    Args:
        steps: The steps of a graph.
        removed: By id of a call, the status of the channels that it makes.
    """
    analysis = Statuses()
    return list(analysis.refusals(steps, analysis.follow(steps, removed)))


def blocked(refusals: Iterable[Refusal], owner: np.ndarray) -> dict[int, str]:
    """Returns which groups of channels could not be dropped, and why.

    Args:
        refusals: The channels that kernels must go on reading.
        owner: For each channel, the number of its group; -1 for none.
    """
    found: dict[int, str] = {}
    for refusal in refusals:
        met = np.unique(owner[refusal.channels])
        for group in met[met >= 0].tolist():
            found.setdefault(group, _reason(refusal))
    return found


def _reason(refusal: Refusal) -> str:
    why = refusal.why
    if refusal.shared and not why:
        why = f"{refusal.call.describe()} is called more than once with one bias"
    if why:
        return (
            "its pruned channels would be a constant other than zero where "
            f"{why}, so they could not be dropped exactly"
        )
    return (
        "its pruned channels would not be constant where "
        f"{refusal.call.describe()} reads them, so they could not be dropped exactly"
    )
