"""The order in which channels are masked, and which are masked together."""

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
        ends: The numbers of masked channels at which a selection may stop. The channels
            between two of these numbers are masked together.
        rows: The number of rows that are masked at each of `ends`.
    """

    channels: np.ndarray
    ends: np.ndarray
    rows: np.ndarray

    def first(self, stops: int) -> "Walk":
        """Returns the part of the walk with the first `stops` of its `ends`."""
        channels = self.channels[: self.ends[stops - 1] if stops else 0]
        return Walk(channels, self.ends[:stops], self.rows[:stops])

    def up_to(self, limit: int) -> "Walk":
        """Returns the part of the walk with at most `limit` rows."""
        return self.first(int(np.searchsorted(self.rows, limit, side="right")))


@dataclass(frozen=True, eq=False)
class _Group:
    """Channels that take the same number of positions in the same compactors.

    Attributes:
        members: The channels, as indices into a sorted list of all, smallest first.
        slots: The compactors, or parts of their channels, in which they take positions.
        positions: For each slot, the number of positions that one channel takes.
        alone: Whether no other channels take positions in these slots.
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
        budget: Its `stops` say at which widths a selection may stop; nothing is
        removed from it yet.
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
    # For each channel, the place of the channel that completes its bundle.
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
    """The slots that must not become too narrow: compactors, and parts of channels."""

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
        """Returns, for each member, the member that completes its bundle.

        Args:
            group: A group that is alone, so that nothing else changes its widths.
            channels: All channels.
            budget: Its `stops` say at which widths a selection may stop.

        Returns:
            Indices of members; for those that are not masked, the number of members.
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
        """Finds the bundles of groups that take positions in the same slots.

        A position that one channel takes is lost for the others, so the channels are
        handled one after the other.
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
    """Groups channels that take positions in the same slots."""
    if not len(channels):
        return []
    parts = [np.searchsorted(channels, part) for part in rows.parts]
    lengths = [*map(len, rows), *map(len, parts)]
    indices = np.concatenate([inverse, *parts])
    slots = np.repeat(np.arange(len(lengths)), lengths)
    taken, positions = np.unique(indices * len(lengths) + slots, return_counts=True)
    owner, slot = np.divmod(taken, len(lengths))
    _, kind = np.unique(slot * (positions.max() + 1) + positions, return_inverse=True)
    # Channels belong together if all their slots and positions are equal, which are
    # compared one after the other.
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
