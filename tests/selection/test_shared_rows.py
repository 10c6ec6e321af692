"""Rows that make one channel are masked together, and every part keeps one."""

import numpy as np
import pytest

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.terms import Term
from resrep_tf.selection.selection import (
    Constraints,
    RowChannels,
    check_reachable,
    largest_reduction,
    rows_for_target,
    select,
)

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


def test_channels_go_when_all_their_rows_do():
    keep = [np.array([0, 0, 1, 0, 1, 1.0]), np.array([False, False, True, True, False])]
    assert RowChannels(CHANNELS).masked(keep) == [0, 4]
