"""The interface of all budgets, and what those that are sums have in common."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Budget(Protocol):
    """The cost of a network while its channels are removed one after the other.

    This is all that a selection asks for, so that anything which can be counted or
    measured (FLOPs, parameters, latency) can take its place.
    """

    @property
    def unit(self) -> str:
        """The name of what is counted, in the plural, for messages."""

    @property
    def total(self) -> float:
        """The cost with every channel present."""

    @property
    def current(self) -> float:
        """The cost without the channels removed since the last `reset`."""

    def cost(self, channel: int) -> float:
        """Returns by how much `current` would fall if `channel` were removed now."""

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""

    def reset(self) -> None:
        """Brings every removed channel back."""


class Meter:
    """A cost that is a sum over parts, each a function of some widths.

    A part is an operation or a weight. A channel touches a handful of them, so its
    removal is a handful of integer operations, where a recount visits every part. The
    parts of each channel are looked up once; `reset` restores the full network without
    looking them up again.

    Costs are integers, hence exact: their sum is the same in whatever order channels
    are removed.

    Args:
        parts: For each part, the channel ids along each of its axes. The width of an
            axis is the number of ids whose channels are present.
        num_channels: Number of channel ids; the parts use ids below it.
        constant: What the network costs beside its parts.
    """

    def __init__(
        self,
        parts: Sequence[tuple[np.ndarray, ...]],
        num_channels: int,
        constant: int = 0,
    ):
        self.num_channels = num_channels
        self._full_widths = [[len(ids) for ids in axes] for axes in parts]
        self._full_costs = [
            self._price(part, widths) for part, widths in enumerate(self._full_widths)
        ]
        self._touches = _index_touches(parts, num_channels)
        self._total = sum(self._full_costs) + constant
        self.reset()

    def _price(self, part: int, widths: list[int]) -> int:
        """Returns the cost of a part at some widths."""
        raise NotImplementedError

    @property
    def total(self) -> int:
        """The cost with every channel present."""
        return self._total

    @property
    def current(self) -> int:
        """The cost without the channels removed since the last `reset`."""
        return self._current

    def reset(self) -> None:
        """Brings every removed channel back."""
        self._widths = [widths.copy() for widths in self._full_widths]
        self._costs = self._full_costs.copy()
        self._removed = bytearray(self.num_channels)
        self._current = self._total

    def cost(self, channel: int) -> int:
        """Returns by how much `current` would fall if `channel` were removed now.

        It is 0 for a channel that is already removed, and negative for one without
        which the network would cost more.
        """
        self._check(channel)
        if self._removed[channel]:
            return 0
        cost = 0
        for part, touched in self._touches[channel]:
            widths = self._widths[part].copy()
            for axis, multiplicity in touched:
                widths[axis] -= multiplicity
            cost += self._costs[part] - self._price(part, widths)
        return cost

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""
        self._check(channel)
        if self._removed[channel]:
            raise ValueError(
                f"`channel` has been removed already. Received: channel={channel}"
            )
        self._removed[channel] = 1
        costs = self._costs
        for part, touched in self._touches[channel]:
            widths = self._widths[part]
            for axis, multiplicity in touched:
                widths[axis] -= multiplicity
            cost = self._price(part, widths)
            self._current += cost - costs[part]
            costs[part] = cost

    def _check(self, channel: int) -> None:
        if not 0 <= channel < self.num_channels:
            raise ValueError(
                f"`channel` must be at least 0 and below {self.num_channels}. "
                f"Received: channel={channel}"
            )


def _index_touches(
    parts: Sequence[tuple[np.ndarray, ...]], num_channels: int
) -> list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]]:
    """Lists for each channel its `(part, ((axis, multiplicity), ...))`."""
    touches: list[dict[int, tuple]] = [{} for _ in range(num_channels)]
    for part, axes in enumerate(parts):
        for axis, ids in enumerate(axes):
            channels, multiplicities = np.unique(ids, return_counts=True)
            for channel, multiplicity in zip(
                channels.tolist(), multiplicities.tolist(), strict=True
            ):
                touched = touches[channel].get(part, ())
                touches[channel][part] = (*touched, (axis, multiplicity))
    return [tuple(touched.items()) for touched in touches]
