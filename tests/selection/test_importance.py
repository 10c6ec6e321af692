"""The order in which gradients say that channels go."""

import numpy as np
import pytest

from resrep_tf.budget.combined import CombinedBudget, Goal
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.terms import Term
from resrep_tf.selection.importance import ranks
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.selection import Constraints, select

# Two compactors of ten rows; a channel of the second costs three times as much.
ROWS = RowChannels((np.arange(10), np.arange(10, 20)))
NOTHING_MASKED = [np.ones(10), np.ones(10)]


def goals(flops=0.5):
    terms = [Term("a", 1, (ROWS[0],)), Term("b", 3, (ROWS[1],))]
    return CombinedBudget([Goal(FlopsMeter(terms, 20), flops)])


def order(ranked):
    return np.argsort(np.concatenate(ranked)).tolist()


def test_the_least_important_channel_for_its_cost_goes_first():
    importance = [np.arange(10.0) + 1, (np.arange(10.0) + 1) * 3.1]
    ranked = ranks(importance, ROWS, goals(), NOTHING_MASKED)
    # Threefold cost for 3.1 times the importance: by turns, the cheap one first.
    alternating = [
        row for pair in zip(range(8), range(10, 18), strict=True) for row in pair
    ]
    assert order(ranked)[:16] == alternating
    assert sorted(np.concatenate(ranked)) == list(range(20))


def test_the_core_of_every_layer_goes_last():
    importance = [np.arange(10.0) + 1, 1000 * (np.arange(10.0) + 1)]
    ranked = ranks(importance, ROWS, goals(), NOTHING_MASKED)
    assert order(ranked)[:8] == list(range(8))  # Not the two best of ten.
    assert order(ranked)[8:16] == list(range(10, 18))
    assert order(ranked)[16:18] == [8, 9]


def test_what_is_masked_stays_masked():
    masks = [np.ones(10), np.ones(10)]
    masks[0][[7, 9]] = 0  # Of the core, even.
    ranked = ranks([np.arange(10.0), np.arange(10.0)], ROWS, goals(), masks)
    assert set(order(ranked)[:2]) == {7, 9}
    chosen = select(ranked, ROWS, goals(), Constraints(), limit=3)
    assert chosen.masks[0][[7, 9]].sum() == 0 and chosen.masked == 3


def test_costs_are_those_of_what_is_left():
    """Another channel costs less when the one that reads it has lost its own."""
    rows = RowChannels((np.arange(2), np.arange(2, 4), np.arange(4, 6)))
    terms = [Term("a", 2, (rows[0], rows[1])), Term("b", 3, (rows[2],))]
    budget = CombinedBudget([Goal(FlopsMeter(terms, 6), 0.9)])
    importance = [np.array([9.0, 10]), np.array([9.0, 10]), np.array([8.0, 10])]
    before = ranks(importance, rows, budget, [np.ones(2)] * 3)
    # 9 / 4 and 10 / 4 twice, 8 / 3, 10 / 3.
    assert order(before) == [0, 2, 1, 3, 4, 5]
    masks = [np.ones(2), np.array([1.0, 0]), np.ones(2)]
    after = ranks(importance, rows, budget, masks)
    # The first two are worth 9 / 2 and 10 / 2 now.
    assert order(after) == [3, 2, 4, 5, 0, 1]


def test_rows_of_one_channel_have_one_rank():
    rows = RowChannels((np.tile(np.arange(5), 2), np.array([5, 6, 7, 8, 9])))
    terms = [Term("a", 1, (rows[0],)), Term("b", 1, (rows[1],))]
    budget = CombinedBudget([Goal(FlopsMeter(terms, 10), 0.9)])
    importance = [np.array([1.0, 1, 1, 1, 1, 1, 2, 3, 9, 4]), np.full(5, 1.2)]
    ranked = ranks(importance, rows, budget, [np.ones(10), np.ones(5)])
    np.testing.assert_array_equal(ranked[0][:5], ranked[0][5:])
    # Their importance is summed up, and divided by twice the cost: 1, 1.5, 2, 5, 2.5.
    # The last two are the layer's core, as one of the others' is.
    assert ranked[0][:5].tolist() == [0, 5, 6, 9, 8]


@pytest.mark.parametrize("importance", [np.zeros(10), np.full(10, np.inf)])
def test_nothing_known_and_nothing_left(importance):
    for masks in (NOTHING_MASKED, [np.zeros(10), np.zeros(10)]):
        ranked = ranks([importance, importance], ROWS, goals(), masks)
        assert sorted(np.concatenate(ranked)) == list(range(20))
    # A target that is met asks for no costs.
    ranked = ranks([importance, importance], ROWS, goals(1e-9), NOTHING_MASKED)
    assert sorted(np.concatenate(ranked)) == list(range(20))
