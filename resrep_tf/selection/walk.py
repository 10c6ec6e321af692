"""The order in which channels are masked, and which of them go together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.budget.base import Budget
from resrep_tf.selection.rows import RowChannels


@dataclass(frozen=True, eq=False)
class Walk:
    """Channels in the order in which they are masked.

    Attributes:
        channels: The channels, each of them once.
        ends: How many of them are masked at each point at which a selection may stop.
            Those in between go together.
        rows: How many rows they have.
    """

    channels: np.ndarray
    ends: np.ndarray
    rows: np.ndarray

    def first(self, stops: int) -> "Walk":
        """Returns the walk as far as a number of its `ends`."""
        channels = self.channels[: self.ends[stops - 1] if stops else 0]
        return Walk(channels, self.ends[:stops], self.rows[:stops])

    def up_to(self, limit: int) -> "Walk":
        """Returns the part of the walk with at most `limit` rows."""
        return self.first(int(np.searchsorted(self.rows, limit, side="right")))


@dataclass(frozen=True, eq=False)
class _Group:
    """Channels that take the same number of positions of the same widths.

    Attributes:
        members: The channels, as indices into a sorted list of all, smallest first.
        slots: The widths: compactors, or parts of what they make.
        positions: How many positions of each width one channel takes.
        alone: Whether no other channels take positions of these widths.
    """

    members: np.ndarray
    slots: np.ndarray
    positions: np.ndarray
    alone: bool


def walk_of(
    norms: Sequence[np.ndarray],
    rows: RowChannels,
    budget: Budget,
    min_width: int,
    round_to: int,
) -> Walk:
    """Returns the channels in the order in which they are masked.

    Args:
        norms: For each compactor, the norms of its rows.
        rows: The channels of these rows.
        budget: Knows at which widths it is worth stopping; nothing is removed yet.
        min_width: As in `resrep_tf.selection.selection.Constraints`.
        round_to: As there.
    """
    flat = np.concatenate([*norms, []])
    ids = np.concatenate([*rows, []]).astype(np.int64)
    channels, first, inverse, counts = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    means = np.bincount(inverse, flat) / counts
    order = np.lexsort((first, means))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    slots = _Slots(rows, min_width, round_to)
    groups = _groups(channels, inverse, rows)
    # For each channel the place of that with which its bundle is complete.
    when = np.full(len(channels), len(channels))
    for group in groups:
        if group.alone:
            members = group.members[np.argsort(place[group.members])]
            last = slots.bundles(group, channels, budget)
            found = last < len(members)
            when[members[found]] = place[members[last[found]]]
    slots.mask_in_turn([group for group in groups if not group.alone], place, when)
    goes = order[when[order] < len(channels)]
    goes = goes[np.argsort(when[goes], kind="stable")]
    ends = np.flatnonzero(np.diff(when[goes], append=-1)) + 1
    return Walk(channels[goes], ends, np.cumsum(counts[goes])[ends - 1])


class _Slots:
    """What must not become too narrow: compactors, and parts of what they make."""

    def __init__(self, rows: RowChannels, min_width: int, round_to: int):
        floor = math.ceil(min_width / round_to) * round_to
        self.widths = np.array([*map(len, rows), *map(len, rows.parts)], np.int64)
        self.floors = np.array([floor] * len(rows) + [1] * len(rows.parts), np.int64)
        self.multiples = np.array(
            [round_to] * len(rows) + [1] * len(rows.parts), np.int64
        )

    def bundles(
        self, group: _Group, channels: np.ndarray, budget: Budget
    ) -> np.ndarray:
        """Returns for each member in turn, with which one its bundle is complete.

        Args:
            group: A group that is alone, so that nothing else changes its widths.
            channels: All channels.
            budget: Knows at which widths it is worth stopping.

        Returns:
            Numbers of members; those that are not masked have the number of all.
        """
        size = len(group.members)
        gone = np.arange(1, size + 1)[:, None]
        left = self.widths[group.slots] - gone * group.positions
        allowed = (left >= self.floors[group.slots]) & (
            left % self.multiples[group.slots] == 0
        )
        counts = size - 1 - np.flatnonzero(allowed.all(axis=1))
        stops = budget.stops(channels[group.members], counts)
        last = np.append(size - 1 - stops, size)
        return last[np.searchsorted(last, np.arange(size))]

    def mask_in_turn(
        self, groups: Sequence[_Group], place: np.ndarray, when: np.ndarray
    ) -> None:
        """Finds the bundles of groups that take positions of the same widths.

        What one of them takes is no longer there for the others, so one channel has
        to be looked at after the other.
        """
        group_of = {i: group for group in groups for i in group.members.tolist()}
        queues: dict[int, list[int]] = {id(group): [] for group in groups}
        widths = self.widths.copy()
        for index in sorted(group_of, key=place.__getitem__):
            group = group_of[index]
            queue = queues[id(group)]
            queue.append(index)
            left = widths[group.slots] - len(queue) * group.positions
            if (left < self.floors[group.slots]).any():
                queue.pop()
            elif (left % self.multiples[group.slots] == 0).all():
                widths[group.slots] = left
                when[queue] = place[index]
                queue.clear()


def _groups(
    channels: np.ndarray, inverse: np.ndarray, rows: RowChannels
) -> list[_Group]:
    """Puts channels together that take the same positions."""
    if not len(channels):
        return []
    parts = [np.searchsorted(channels, part) for part in rows.parts]
    lengths = [*map(len, rows), *map(len, parts)]
    indices = np.concatenate([inverse, *parts])
    slots = np.repeat(np.arange(len(lengths)), lengths)
    taken, positions = np.unique(indices * len(lengths) + slots, return_counts=True)
    owner, slot = np.divmod(taken, len(lengths))
    _, kind = np.unique(slot * (positions.max() + 1) + positions, return_inverse=True)
    # Channels are alike if all that they take is: compare one kind after the other.
    begin = np.searchsorted(owner, np.arange(len(channels) + 1))
    number = np.arange(len(owner)) - begin[owner]
    label = np.zeros(len(channels), np.int64)
    for turn in range(number.max() + 1):
        label *= kind.max() + 2
        label[owner[number == turn]] += kind[number == turn] + 1
        _, label = np.unique(label, return_inverse=True)
    members = np.split(
        np.argsort(label, kind="stable"), np.cumsum(np.bincount(label))[:-1]
    )
    takes = [slice(begin[alike[0]], begin[alike[0] + 1]) for alike in members]
    users = np.bincount(np.concatenate([slot[take] for take in takes]))
    return [
        _Group(alike, slot[take], positions[take], bool((users[slot[take]] == 1).all()))
        for alike, take in zip(members, takes, strict=True)
    ]
