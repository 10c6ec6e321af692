"""Rows that make one channel are masked together, and every part keeps one."""

import numpy as np
import pytest

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.terms import Term
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.selection import (
    Constraints,
    check_reachable,
    largest_reduction,
    rows_for_target,
    select,
)
from resrep_tf.selection.walk import walk_of

# A grouped convolution reads the first compactor's channels; the second makes those of
# the first and two of its own.
CHANNELS = np.array([0, 1, 2, 0, 1, 2]), np.array([0, 1, 2, 3, 4])


def meter():
    terms = [Term("a", 1, (CHANNELS[0],)), Term("b", 1, (CHANNELS[1],))]
    return FlopsMeter(terms, 5)


def masked(selection):
    return [np.flatnonzero(mask < 0.5).tolist() for mask in selection.masks]


def test_the_mean_of_all_rows_counts():
    norms = [np.array([1, 5, 9, 1, 5, 0.0]), np.array([4, 5, 9, 3.0, 8])]
    chosen = select(norms, CHANNELS, meter(), Constraints(0.3))
    # The channels' means are 2, 5, 6, 3 and 8.
    assert masked(chosen) == [[0, 3], [0, 3]]
    assert chosen.masked == 4 and chosen.removed == 4 / 11 and chosen.target_met


def test_a_channel_whose_rows_do_not_fit_into_the_limit_waits():
    norms = [np.zeros(6), np.ones(5)]
    assert select(norms, CHANNELS, meter(), Constraints(0.9), limit=2).masked == 0
    assert select(norms, CHANNELS, meter(), Constraints(0.9), limit=5).masked == 3


def test_every_compactor_keeps_its_least_width():
    rows = RowChannels(CHANNELS)
    for least, left in [(1, 2 + 1), (2, 2 + 2), (3, 4 + 3), (5, 6 + 5)]:
        assert largest_reduction(rows, meter(), least) == pytest.approx(1 - left / 11)


def test_every_part_keeps_a_channel():
    rows = RowChannels((np.arange(4),), (np.array([0, 1]), np.array([1, 2])))
    budget = FlopsMeter([Term("a", 1, (np.arange(4),))], 4)
    chosen = select([np.array([1, 2, 3, 0.0])], rows, budget, Constraints(0.9))
    assert masked(chosen) == [[0, 2, 3]] and not chosen.target_met
    chosen = select([np.array([2, 1, 3, 0.0])], rows, budget, Constraints(0.9))
    assert masked(chosen) == [[1, 3]]  # Now both others are the last of their parts.


def test_widths_are_rounded_where_rows_go_together():
    channels = np.tile(np.arange(6), 2), np.arange(6)
    budget = FlopsMeter([Term("a", 1, (channels[0],))], 6)
    norms = [np.tile(np.arange(6.0), 2), np.arange(6.0)]
    chosen = select(norms, channels, budget, Constraints(0.5, round_to=4))
    assert chosen.widths == (8, 4) and not chosen.target_met


def test_plans_thin_bundles_as_evenly_as_single_channels():
    channels = [np.tile(np.arange(10), 4), np.arange(10, 20)]
    budget = FlopsMeter(
        [Term(n, 1, (ids,)) for n, ids in zip("ab", channels, strict=True)], 20
    )
    norms = [np.ones(40), np.ones(10)]
    check_reachable(channels, budget, Constraints(0.5))
    rows, norm = rows_for_target(norms, channels, budget, Constraints(0.5))
    assert norm == 1.0 and 20 <= rows <= 30


class Bundled(FlopsMeter):
    """A budget that knows of widths to stop at: multiples of three."""

    def stops(self, channels, counts):
        return counts[(counts % 3 == 0) | (counts == counts[-1:])]


def walk_plainly(norms, rows, min_width, round_to, bundled):
    """The definition of the walk: which channels go together, one after the other."""
    everyone = np.concatenate([*rows])
    all_norms = np.concatenate(norms)
    channels, first = np.unique(everyone, return_index=True)
    means = [all_norms[everyone == channel].mean() for channel in channels]
    widths = [len(ids) for ids in (*rows, *rows.parts)]
    floor = -(-min_width // round_to) * round_to
    rules = [(floor, round_to)] * len(rows) + [(1, 1)] * len(rows.parts)
    takes = {
        int(channel): tuple(
            (slot, count)
            for slot, ids in enumerate([*rows, *rows.parts])
            if (count := int((ids == channel).sum()))
        )
        for channel in channels
    }
    alike = {c: [d for d in takes if takes[d] == takes[c]] for c in takes}
    others = {c: [d for d in takes if takes[d] != takes[c]] for c in takes}
    alone = {
        c: not {s for s, _ in takes[c]} & {s for d in others[c] for s, _ in takes[d]}
        for c in takes
    }
    queues = {take: [] for take in takes.values()}
    gone = set()
    for *_, channel in sorted(zip(means, first, channels.tolist(), strict=True)):
        queue = queues[takes[channel]]
        queue.append(channel)
        left = [
            (widths[slot] - len(queue) * count, *rules[slot])
            for slot, count in takes[channel]
        ]
        if any(width < least for width, least, _ in left):
            queue.pop()
            continue
        if any(width % multiple for width, _, multiple in left):
            continue
        stay = len(alike[channel]) - len(queue) - len(gone & set(alike[channel]))
        if bundled and alone[channel] and stay % 3 and stay > 1:
            continue
        for slot, count in takes[channel]:
            widths[slot] -= len(queue) * count
        gone |= set(queue)
        yield queue.copy()
        queue.clear()


@pytest.mark.parametrize(
    "min_width, round_to, bundled",
    [(1, 1, False), (1, 1, True), (3, 1, False), (1, 2, False), (2, 4, False)],
)
@pytest.mark.parametrize("seed", range(10))
def test_walk_agrees_with_its_definition(seed, min_width, round_to, bundled):
    rng = np.random.default_rng(seed)
    # Compactors of their own channels, some in several rows, and some that share.
    ids, start = [], 0
    for width in rng.integers(1, 14, 5).tolist():
        own = rng.permutation(np.arange(start, start + width))
        ids.append(np.repeat(own, rng.integers(1, 3)))
        start += width
    ids.append(np.unique(rng.choice(np.concatenate(ids[:2]), 6)))
    part = np.unique(rng.choice(ids[2], 3))
    rows = RowChannels(tuple(ids), (part,) if rng.random() < 0.5 else ())
    norms = [rng.integers(0, 9, len(each)) / 8 for each in ids]
    kind = Bundled if bundled else FlopsMeter
    budget = kind([Term(f"{i}", 1, (each,)) for i, each in enumerate(ids)], start)
    walk = walk_of(norms, rows, budget, min_width, round_to)
    found = [b.tolist() for b in np.split(walk.channels, walk.ends)[:-1]]
    plain = list(walk_plainly(norms, rows, min_width, round_to, bundled))
    assert found == plain
    counts = [sum((np.concatenate(ids) == c).sum() for c in b) for b in plain]
    assert walk.rows.tolist() == np.cumsum(counts).tolist()


def test_channels_go_when_all_their_rows_do():
    keep = [np.array([0, 0, 1, 0, 1, 1.0]), np.array([False, False, True, True, False])]
    assert RowChannels(CHANNELS).masked(keep) == [0, 4]
