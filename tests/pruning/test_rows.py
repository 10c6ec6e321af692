"""Rows of compactors: which go, and which are not forgotten."""

import numpy as np
import pytest

import resrep_tf
from resrep_tf.pruning.rows import (
    Unforgotten,
    kept_rows,
    removed_by,
    row_norms,
    unforgotten,
    zeroed,
)
from support.models.small import small_model


@pytest.fixture
def pruner():
    """A wrapped model whose first compactor has rows of norm 0, 0.1, 0.2 and so on."""
    pruner = resrep_tf.wrap(small_model())
    pruner.compactors[0].kernel.assign(np.diag(np.arange(6) / 10))
    pruner.compactors[0].mask.assign([0, 0, 1, 0, 1, 1])
    return pruner


def first(rows):
    return next(iter(rows.values())).tolist()


def test_rows_below_epsilon_go(pruner):
    norms = row_norms(pruner)
    assert first(kept_rows(norms, 0.15)) == [False, False, True, True, True, True]
    assert all(rows.all() for rows in kept_rows(norms, 0.0).values())


def test_masked_rows_go_if_asked_for(pruner):
    rows = kept_rows(row_norms(pruner), 1e-5, drop_masked=True)
    assert first(rows) == [False, False, True, False, True, True]


def test_named_rows_come_first_and_are_copied(pruner):
    mine = np.array([True] + [False] * 5)
    rows = kept_rows(row_norms(pruner), 0.15, named={pruner.compactors[0]: mine})
    assert first(rows) == mine.tolist()
    assert next(iter(rows.values())) is not mine


def test_the_largest_row_stays(pruner):
    assert first(kept_rows(row_norms(pruner), 10.0)) == [False] * 5 + [True]


def test_rows_must_be_finite(pruner):
    pruner.compactors[1].kernel.assign(np.full((4, 4), np.nan))
    name = pruner.compactors[1].name
    with pytest.raises(ValueError, match=f"Received: `{name}` with 4 NaN or infinite"):
        row_norms(pruner)


def test_a_dropped_row_is_a_zero_at_the_compactor(pruner):
    rows = {c: np.ones(c.width, bool) for c in pruner.compactors}
    rows[pruner.compactors[0]][2] = False
    removed = removed_by(pruner.graph, rows)
    assert len(removed) == len(pruner.compactors)
    values = next(iter(removed.values()))
    assert values[2] == 0 and np.isnan(np.delete(values, 2)).all()


def test_rows_are_zero_for_a_while(pruner):
    before = pruner.get_weights()
    keep = np.array([True, True, False, True, True, True])
    with pytest.raises(RuntimeError), zeroed({pruner.compactors[0]: keep}):
        assert np.asarray(pruner.compactors[0].row_norms())[2] == 0
        raise RuntimeError
    for old, new in zip(before, pruner.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_masked_rows_that_are_not_forgotten_are_counted(pruner):
    left = unforgotten(pruner, 0.05)
    assert left == Unforgotten(3, 2, pytest.approx(0.3), 0.05)
    assert left
    assert str(left) == (
        "2 of 3 masked channels are not forgotten yet (norm up to 0.3, epsilon 0.05), "
        "so they stay and less is removed than was asked for."
    )


def test_no_masked_row_is_left(pruner):
    left = unforgotten(pruner, 0.5)
    assert left == Unforgotten(3, 0, 0.0, 0.5)
    assert not left
    assert str(left) == "All of 3 masked channels are forgotten."
