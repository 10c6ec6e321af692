"""The interface of all budgets, and the base class of those that are sums."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np


class Budget(Protocol):
    """The cost of a network while its channels are removed one after the other.

    A selection needs nothing else, so anything that can be counted or measured
    (FLOPs, parameters, latency) can be a budget. A subclass has to define `unit`,
    `total`, `current`, `cost`, `remove` and `reset`.
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

    def remove_all(self, channels: np.ndarray) -> np.ndarray:
        """Removes channels one after the other; returns `current` after each."""
        path = []
        for channel in channels.tolist():
            self.remove(channel)
            path.append(self.current)
        return np.array(path)

    def rate(self, channel: int) -> float:
        """Returns how much `current` falls per channel when some like this one go."""
        return self.cost(channel)

    def stops(self, channels: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns the numbers of channels at which removing them may stop.

        A selection calls this before it removes any channel.

        Args:
            channels: Channels of a layer, any of which can take another one's place.
            counts: The numbers of them that may be left, descending.

        Returns:
            Some of `counts`, the last one always among them. By default all; fewer if
            the network is faster at some widths than at others nearby.
        """
        return counts


class Meter(Budget):
    """A cost that is a sum over parts, each a function of some widths.

    A part is an operation or a weight. Each channel belongs to a few of them, so its
    removal takes a few integer operations, where a recount would visit every part. The
    parts of each channel are looked up once; `reset` restores the full network without
    looking them up again.

    Costs are integers, hence exact: their sum does not depend on the order in which
    channels are removed.

    Args:
        parts: For each part, the channel ids along each of its axes. The width of an
            axis is the number of ids whose channels are present.
        num_channels: Number of channel ids; the parts use ids below it.
        constant: The cost of the network beside its parts.
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
            int(self._price(part, widths))
            for part, widths in enumerate(self._full_widths)
        ]
        # The channels along each axis of each part, and how often each stands there.
        self._axes = [
            [np.unique(ids, return_counts=True) for ids in axes] for axes in parts
        ]
        self._total = sum(self._full_costs) + constant
        self.reset()

    def _price(self, part: int, widths: list) -> Any:
        """Returns the cost of a part at some widths: numbers, or arrays of them."""
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
        self._removed = np.zeros(self.num_channels, bool)
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
            cost += self._costs[part] - int(self._price(part, widths))
        return cost

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""
        self._check(channel)
        if self._removed[channel]:
            raise _removed_already(channel)
        self._removed[channel] = True
        for part, touched in self._touches[channel]:
            widths = self._widths[part]
            for axis, multiplicity in touched:
                widths[axis] -= multiplicity
            cost = int(self._price(part, widths))
            self._current += cost - self._costs[part]
            self._costs[part] = cost

    def remove_all(self, channels: np.ndarray) -> np.ndarray:
        """Removes channels one after the other; returns `current` after each.

        The result is the same as with `remove`, but each part is priced in one call
        at all the widths that it has on the way, which is many times faster.
        """
        channels = np.asarray(channels, np.int64)
        self._check_all(channels)
        place = np.full(self.num_channels, -1)
        place[channels] = np.arange(len(channels))
        changes = np.zeros(len(channels), np.int64)
        for part, axes in enumerate(self._axes):
            taken = [_taken(place, *axis) for axis in axes]
            moments = np.unique(np.concatenate([[], *(places for places, _ in taken)]))
            if not len(moments):
                continue
            moments = moments.astype(np.int64)
            widths = [
                width - _sums(moments, *lost)
                for width, lost in zip(self._widths[part], taken, strict=True)
            ]
            costs = self._price(part, widths)
            changes[moments] += np.diff(costs, prepend=self._costs[part])
            self._widths[part] = [int(width[-1]) for width in widths]
            self._costs[part] = int(costs[-1])
        path = self._current + np.cumsum(changes)
        self._removed[channels] = True
        self._current = int(path[-1]) if len(path) else self._current
        return path

    @cached_property
    def _touches(self) -> list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]]:
        """The parts that each channel is in: `(part, ((axis, multiplicity), ...))`."""
        touches: list[dict[int, tuple]] = [{} for _ in range(self.num_channels)]
        for part, axes in enumerate(self._axes):
            for axis, (channels, multiplicities) in enumerate(axes):
                for channel, multiplicity in zip(
                    channels.tolist(), multiplicities.tolist(), strict=True
                ):
                    touched = touches[channel].get(part, ())
                    touches[channel][part] = (*touched, (axis, multiplicity))
        return [tuple(touched.items()) for touched in touches]

    def _check_all(self, channels: np.ndarray) -> None:
        found, counts = np.unique(channels, return_counts=True)
        for channel in found[(found < 0) | (found >= self.num_channels)].tolist():
            self._check(channel)
        for channel in found[self._removed[found] | (counts > 1)].tolist():
            raise _removed_already(channel)

    def _check(self, channel: int) -> None:
        if not 0 <= channel < self.num_channels:
            raise ValueError(
                f"`channel` must be at least 0 and below {self.num_channels}. "
                f"Received: channel={channel}"
            )


def _removed_already(channel: int) -> ValueError:
    return ValueError(
        f"`channel` has been removed already. Received: channel={channel}"
    )


def _taken(
    place: np.ndarray, channels: np.ndarray, multiplicities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the moments at which an axis loses positions, and how many each time."""
    places = place[channels]
    gone = places >= 0
    return places[gone], multiplicities[gone]


def _sums(
    moments: np.ndarray, places: np.ndarray, multiplicities: np.ndarray
) -> np.ndarray:
    """Returns how many positions an axis has lost at each moment."""
    lost = np.zeros(len(moments), np.int64)
    lost[np.searchsorted(moments, places)] = multiplicities
    return np.cumsum(lost)
