import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from resrep_tf.budget.base import Budget
from resrep_tf.budget.combined import CombinedBudget, Goal
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.terms import Term
from resrep_tf.selection.selection import (
    Constraints,
    Selection,
    largest_reduction,
    rows_for_target,
)
from resrep_tf.selection.selection import select as select_rows

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "selection.py"


def select(norms, spaces, budget, target, limit=None, min_width=1, round_to=1):
    constraints = Constraints(target, min_width, round_to)
    return select_rows(norms, spaces, budget, constraints, limit)


def random_network(rng, widest=9):
    """Returns terms, spaces and the number of channels of a random small network.

    Consecutive spaces are joined by a term each; some terms repeat the channels of a
    factor, some stay within one space, and some channels belong to no compactor.
    """
    widths = rng.integers(1, widest + 1, rng.integers(2, 6))
    ends = np.cumsum(widths)
    spaces = [
        np.arange(end - width, end) for width, end in zip(widths, ends, strict=True)
    ]
    num_channels = int(ends[-1]) + 3
    pinned = np.arange(ends[-1], num_channels)
    terms = []
    chain = [pinned, *spaces, pinned]
    for index in range(len(chain) - 1):
        inputs, outputs = chain[index], chain[index + 1]
        if rng.random() < 0.3:
            inputs = np.repeat(inputs, rng.integers(1, 4))
        terms.append(Term(f"conv{index}", int(rng.integers(1, 20)), (inputs, outputs)))
    tied = spaces[rng.integers(len(spaces))]
    terms.append(Term("stream", int(rng.integers(0, 5)), (tied, tied)))
    terms.append(Term("depthwise", 9, (spaces[0],)))
    # Ids in any order: nothing may depend on a space being a range.
    return terms, [rng.permutation(space) for space in spaces], num_channels


def random_norms(rng, spaces):
    """Norms with many ties."""
    return [rng.integers(0, 5, len(space)) / 4 for space in spaces]


def flops_without(terms, removed):
    total = 0
    for term in terms:
        widths = [sum(i not in removed for i in ids) for ids in term.factors]
        total += term.coefficient * math.prod(widths)
    return total


def select_plainly(norms, spaces, goals, limit, min_width, round_to):
    """The definition of a selection, with all terms counted anew for every pick.

    Each goal is a list of terms and the fraction of it to remove.
    """

    def fractions(removed):
        for terms, _ in goals:
            total = flops_without(terms, set())
            yield (total - flops_without(terms, removed)) / total

    ranking = sorted(
        (norms[i][j], i, j) for i in range(len(spaces)) for j in range(len(spaces[i]))
    )
    floor = min(w for w in range(min_width, 99) if w % round_to == 0)
    masks = [[1] * len(space) for space in spaces]
    waiting = {i: [] for i in range(len(spaces))}
    removed = set()
    for _, i, j in ranking:
        if sum(masks[i]) <= floor:
            continue
        waiting[i].append(j)
        if (sum(masks[i]) - len(waiting[i])) % round_to:
            continue
        if limit is not None and len(removed) + len(waiting[i]) > limit:
            break
        for row in waiting[i]:
            masks[i][row] = 0
            removed.add(spaces[i][row])
        waiting[i] = []
        pairs = zip(fractions(removed), goals, strict=True)
        if all(fraction >= target for fraction, (_, target) in pairs):
            break
    return masks, list(fractions(removed))


@pytest.mark.parametrize("round_to", [1, 4])
@pytest.mark.parametrize("seed", range(12))
def test_several_targets_agree_with_the_definition(seed, round_to):
    rng = np.random.default_rng(seed)
    for limit in (None, 0, 5, 12):
        terms, spaces, num_channels = random_network(rng)
        # Another budget of the same channels, as parameters are beside FLOPs.
        others = [
            Term(term.name, int(rng.integers(1, 9)), term.factors) for term in terms
        ]
        norms = random_norms(rng, spaces)
        goals = [(t, float(rng.uniform(0.05, 0.9))) for t in (terms, others)]
        budget = CombinedBudget(
            [
                Goal(FlopsMeter(terms, num_channels), goals[0][1]),
                Goal(FlopsMeter(others, num_channels), goals[1][1], "params_target"),
            ]
        )
        selection = select(norms, spaces, budget, None, limit, 1, round_to)
        masks, found = select_plainly(norms, spaces, goals, limit, 1, round_to)
        assert [mask.tolist() for mask in selection.masks] == masks
        assert [goal.removed for goal in budget.goals] == found
        assert selection.removed == found[0]
        assert selection.target_met == all(
            fraction >= target
            for fraction, (_, target) in zip(found, goals, strict=True)
        )


@pytest.mark.parametrize("round_to", [1, 2, 4])
@pytest.mark.parametrize("min_width", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_the_definition(seed, min_width, round_to):
    rng = np.random.default_rng(seed)
    for limit in (None, 0, 1, 5, 12):
        terms, spaces, num_channels = random_network(rng)
        norms = random_norms(rng, spaces)
        target = float(rng.uniform(0.05, 0.95))
        meter = FlopsMeter(terms, num_channels)
        settings = (target, limit, min_width, round_to)
        selection = select(norms, spaces, meter, *settings)
        masks, (reduction,) = select_plainly(
            norms, spaces, [(terms, target)], *settings[1:]
        )
        assert [mask.tolist() for mask in selection.masks] == masks
        assert selection.removed == reduction
        assert selection.target_met == (reduction >= target)
        assert selection.masked == sum(mask.count(0) for mask in masks)
        assert selection.widths == tuple(map(sum, masks))
        assert limit is None or selection.masked <= limit


@pytest.mark.parametrize("round_to", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(10))
def test_widths_and_nesting(seed, round_to):
    rng = np.random.default_rng(seed)
    terms, spaces, num_channels = random_network(rng, widest=20)
    meter = FlopsMeter(terms, num_channels)
    norms = random_norms(rng, spaces)
    previous = [np.ones(len(space)) for space in spaces]
    for limit in range(sum(map(len, spaces)) + 1):
        selection = select(
            norms, spaces, meter, 0.999, limit, min_width=3, round_to=round_to
        )
        floor = math.ceil(3 / round_to) * round_to
        for space, width in zip(spaces, selection.widths, strict=True):
            untouched = width == len(space)
            assert untouched or (width % round_to == 0 and width >= floor)
        # A larger limit adds rows to a selection and never releases one.
        for mask, before in zip(selection.masks, previous, strict=True):
            assert (mask <= before).all()
        previous = selection.masks
    assert selection.removed == largest_reduction(spaces, meter, 3, round_to)


def chain(*widths):
    """A chain of layers of these widths; all but the first and last have spaces."""
    ends = np.cumsum(widths)
    axes = [np.arange(end - w, end) for w, end in zip(widths, ends, strict=True)]
    terms = [
        Term(f"conv{i}", 1, (axes[i], axes[i + 1])) for i in range(len(widths) - 1)
    ]
    return axes[1:-1], FlopsMeter(terms, int(ends[-1]))


@pytest.mark.parametrize("width", [3, 7, 10, 49, 300])
def test_a_reachable_fraction_is_met_by_that_fraction(width):
    # Each row is exactly 1 / width of the FLOPs: 0.1, as a float, is more than 1/10.
    spaces, meter = chain(1, width, 1)
    for rows in range(1, width):
        selection = select([np.arange(width)], spaces, meter, rows / width)
        assert selection.masked == rows
        assert selection.target_met
        assert selection.removed == rows / width


def test_a_target_just_above_a_reachable_fraction_takes_one_row_more():
    spaces, meter = chain(1, 10, 1)
    selection = select([np.arange(10)], spaces, meter, np.nextafter(0.3, 1))
    assert selection.masked == 4


def test_ties_go_by_space_then_row():
    spaces, meter = chain(1, 3, 3, 1)
    selection = select([np.ones(3), np.ones(3)], spaces, meter, 0.99, limit=3)
    assert [mask.tolist() for mask in selection.masks] == [[0, 0, 1], [0, 1, 1]]


def test_rows_at_the_floor_are_passed_over_for_larger_ones():
    spaces, meter = chain(1, 3, 3, 1)
    norms = [np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])]
    selection = select(norms, spaces, meter, 0.99, limit=3)
    assert [mask.tolist() for mask in selection.masks] == [[0, 0, 1], [0, 1, 1]]
    selection = select(norms, spaces, meter, 0.99, min_width=3)
    assert selection.masked == 0
    assert not selection.target_met


def test_the_first_bundle_takes_the_remainder():
    spaces, meter = chain(1, 11, 1)
    widths = [
        select([np.arange(11)], spaces, meter, 0.999, limit, round_to=4).widths[0]
        for limit in range(12)
    ]
    assert widths == [11, 11, 11, 8, 8, 8, 8, 4, 4, 4, 4, 4]


def test_a_bundle_beyond_the_limit_ends_the_selection():
    spaces, meter = chain(1, 4, 5, 1)
    # The rows of the first space are the smallest, but come in bundles of two; the
    # first bundle of the second space is a single row and would fit into the limit.
    norms = [np.zeros(4), np.ones(5)]
    assert select(norms, spaces, meter, 0.99, 1, round_to=2).masked == 0
    assert select(norms, spaces, meter, 0.99, 2, round_to=2).widths == (2, 5)
    assert select(norms, spaces, meter, 0.99, 3, round_to=2).widths == (2, 4)


def test_largest_reduction():
    spaces, meter = chain(2, 4, 9, 2)
    total = 2 * 4 + 4 * 9 + 9 * 2
    assert largest_reduction(spaces, meter) == (total - 5) / total
    assert largest_reduction(spaces, meter, 2) == (total - 12) / total
    assert largest_reduction(spaces, meter, 3, 4) == (total - 32) / total
    # A space narrower than the floor stays as it is.
    assert largest_reduction(spaces, meter, 5) == (total - 38) / total
    assert largest_reduction(spaces, meter, 10) == 0
    assert largest_reduction([], meter) == 0


def test_arguments_are_left_alone_and_masks_are_float32():
    spaces, meter = chain(1, 4, 1)
    norms = np.array([4.0, 1.0, 3.0, 2.0], np.float32)
    before = norms.copy()
    for _ in range(2):  # The meter's state does not leak from one call to the next.
        selection = select([norms], spaces, meter, 0.5)
        assert selection.masks[0].dtype == np.float32
        assert selection.masks[0].tolist() == [1, 0, 1, 0]
        assert meter.current == meter.total / 2
    np.testing.assert_array_equal(norms, before)


def test_prints_well():
    spaces, meter = chain(1, 4, 1)
    selection = select([np.arange(4)], spaces, meter, 0.5)
    assert isinstance(selection, Selection)
    assert str(selection) == (
        "2 of 4 rows masked, 50.00% of the FLOPs removed (target met)"
    )
    assert "not met" in str(select([np.arange(4)], spaces, meter, 0.5, limit=1))


def test_errors_name_the_argument():
    spaces, meter = chain(1, 4, 1)
    norms = [np.arange(4.0)]
    for target in (0, 1, -0.5, 54.5, float("nan")):
        with pytest.raises(ValueError, match=f"`flops_target`.*flops_target={target}"):
            select(norms, spaces, meter, target)
    with pytest.raises(ValueError, match=r"`norms`.*NaN.*Received: norms\[0\]=.*nan"):
        select([np.array([1, 2, np.nan, 3])], spaces, meter, 0.5)
    with pytest.raises(ValueError, match=r"`norms`.*\(3,\).*widths \[4\]"):
        select([np.arange(3.0)], spaces, meter, 0.5)
    with pytest.raises(ValueError, match=r"`limit`.*Received: limit=-1"):
        select(norms, spaces, meter, 0.5, -1)
    with pytest.raises(ValueError, match=r"`min_width`.*Received: min_width=0"):
        select(norms, spaces, meter, 0.5, min_width=0)
    with pytest.raises(ValueError, match=r"`round_to`.*Received: round_to=0"):
        largest_reduction(spaces, meter, round_to=0)
    with pytest.raises(ValueError, match=r"`budget` has no FLOPs.*Received: total=0"):
        select([np.arange(2.0)], [np.arange(2)], FlopsMeter([], 2), 0.5)


# === Before training ===


def rows_of(norms, spaces, budget, *constraints, **more):
    return rows_for_target(norms, spaces, budget, Constraints(*constraints, **more))


def test_rows_for_target():
    # One layer between pinned ones: rows and FLOPs are proportional.
    terms = [
        Term("a", 1, ([0], np.arange(1, 11))),
        Term("b", 1, (np.arange(1, 11), [0])),
    ]
    arguments = [np.ones(10)], [np.arange(1, 11)], FlopsMeter(terms, 11)
    assert rows_of(*arguments, 0.3) == (3, 1.0)
    assert rows_of(*arguments, 0.31) == (4, 1.0)
    assert rows_of(*arguments, 0.3, round_to=4) == (6, 1.0)
    with pytest.raises(ValueError, match=r"At most 90\.0%.*flops_target=0\.95"):
        rows_of(*arguments, 0.95)
    with pytest.raises(ValueError, match=r"At most 50\.0%.*flops_target=0\.6"):
        rows_of(*arguments, 0.6, min_width=5)


def test_rows_of_different_norms_for_a_target():
    # Two layers between pinned ones: rows and FLOPs are proportional.
    ids = [np.arange(1, 6), np.arange(6, 11)]
    terms = [Term(f"{i}", 1, ([0], channels)) for i, channels in enumerate(ids)]
    meter = FlopsMeter(terms, 11)
    norms = [np.array([7.0, 8, 1, 9, 10]), np.array([2.0, 3, 4, 5, 6])]
    assert rows_of(norms, ids, meter, 0.3) == (3, 3.0)
    # The last row of the second layer stays, so it takes one of norm 7.
    assert rows_of(norms, ids, meter, 0.6) == (6, 7.0)
    assert rows_of(norms, ids, meter, 0.6, min_width=2) == (6, 8.0)
    with pytest.raises(ValueError, match=r"At most 80\.0%.*flops_target=0\.9"):
        rows_of(norms, ids, meter, 0.9)


def test_rows_of_equal_norms_thin_all_spaces_evenly():
    # Of the first space, a row costs 1 + 4; of the second 1 + 8.
    spaces, meter = chain(1, 8, 4, 1)
    norms = [np.ones(8), np.ones(4)]
    even = [np.arange(8) / 8, np.arange(4) / 4]
    for target in (0.2, 0.5, 0.8):
        expected = select(even, spaces, meter, target).masked
        assert rows_of(norms, spaces, meter, target) == (expected, 1.0)


def test_rows_for_target_of_resnet50():
    terms, spaces, num_channels = runpy.run_path(str(BENCHMARK))["resnet50"]()
    norms = [np.ones(len(space)) for space in spaces]
    rows, _ = rows_of(norms, spaces, FlopsMeter(terms, num_channels), 0.545)
    assert rows == 3675


# === Other budgets ===


class Count(Budget):
    """The simplest of budgets: how many channels are left."""

    unit = "channels"
    total = current = 8.0

    def reset(self):
        self.current = self.total

    def cost(self, channel):
        return 1

    def remove(self, channel):
        self.current -= 0.5  # Measured budgets are no integers.


def test_any_budget_will_do():
    spaces, norms = [np.arange(4), np.arange(4, 8)], [np.arange(4), np.arange(4)]
    chosen = select(norms, spaces, Count(), 0.25)
    assert chosen.widths == (2, 2) and chosen.removed == 0.25
    assert "25.00% of the channels removed" in str(chosen)
    with pytest.raises(ValueError, match=r"At most 37\.5% of the channels.*`weight`"):
        rows_of(norms, spaces, Count(), 0.5, argument="weight")
