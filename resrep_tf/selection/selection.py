"""Selects channels: turns norms of compactor rows and a target into masks.

It is pure NumPy without a state. The order in which rows are masked depends on the
norms alone; the budget only decides where to stop. So a selection is one sort and one
walk along the sorted rows, on which the budget prices each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.budget.base import Budget
from resrep_tf.budget.combined import (
    FLOPS_TARGET,
    CombinedBudget,
    Goal,
    check_target,
    removed_fraction,
)
from resrep_tf.selection.checks import check_positive_integer
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.walk import Walk, walk_of


@dataclass(frozen=True)
class Constraints:
    """The fraction that a selection must remove, and the widths that it may leave.

    Attributes:
        target: Fraction of the budget to remove, between 0 and 1. None for a
            `CombinedBudget`, which has targets of its own.
        min_width: Smallest number of rows to keep in every space.
        round_to: Pruned spaces end at a multiple of this width, at least `min_width`.
            A space that is no wider than the smallest such multiple is not pruned.
        argument: The argument by which the user gave the target, for messages.
    """

    target: float | None = None
    min_width: int = 1
    round_to: int = 1
    argument: str = FLOPS_TARGET

    def __post_init__(self):
        if self.target is not None:
            check_target(self.target, self.argument)
        check_positive_integer("min_width", self.min_width)
        check_positive_integer("round_to", self.round_to)

    def goals(self, budget: Budget) -> CombinedBudget:
        """Returns a budget together with the fraction of it to remove."""
        if isinstance(budget, CombinedBudget):
            return budget
        return CombinedBudget([Goal(budget, self.target, self.argument)])


@dataclass(frozen=True, eq=False)
class Selection:
    """The compactor rows to forget, as masks.

    Attributes:
        masks: One float32 array for each compactor, 1 for rows to keep and 0 for
            rows to forget.
        removed: Fraction of the budget that the masked rows take; of the first budget
            if there are several.
        masked: Number of masked rows of all compactors.
        target_met: Whether all targets are met. If not, the limit or the smallest
            allowed widths stopped the selection.
        unit: The name of what that budget counts.
    """

    masks: tuple[np.ndarray, ...]
    removed: float
    masked: int
    target_met: bool
    unit: str

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of rows that stay, for each compactor."""
        return tuple(int(np.count_nonzero(mask)) for mask in self.masks)

    def __str__(self):
        rows = sum(mask.size for mask in self.masks)
        return (
            f"{self.masked:,} of {rows:,} rows masked, {self.removed:.2%} of the "
            f"{self.unit} removed (target {'met' if self.target_met else 'not met'})"
        )


def select(
    norms: Sequence[np.ndarray],
    spaces: Sequence[np.ndarray],
    budget: Budget,
    constraints: Constraints,
    limit: int | None = None,
) -> Selection:
    """Masks the rows of smallest norm until all targets or the limit are reached.

    All rows of all compactors are sorted in one ascending order; equal norms are sorted
    by compactor, then by row. The rows of one channel are masked together, by their
    mean norm. Rows that would make their space narrower than allowed are skipped. Rows
    that an earlier selection masked are not treated differently.

    With `round_to` above 1, rows wait in a queue for each space (or part of a space
    that the same layers make). A queue is masked as one bundle when that brings the
    widths of these layers to multiples of `round_to`; the first bundle takes the
    remainder. A budget that knows at which widths the network is faster
    (`Budget.stops`) makes larger bundles, which end at these widths, whatever
    `round_to` is. Rows that still wait at the end are kept. A bundle that does not
    fit into the limit ends the selection. If it were skipped, rows of larger norm
    would be masked in its place, and kept again once the limit has grown.

    Args:
        norms: For each compactor, the norms of its rows.
        spaces: For each compactor, the channel ids of its rows, in the same order; or
            `RowChannels`, which have parts too.
        budget: Prices channels; a `CombinedBudget` for several targets. It is reset
            first, and left at the selected widths.
        constraints: The target and the allowed widths.
        limit: Largest number of rows to mask. Unlimited by default.

    Returns:
        The masks, in the order of `norms`, and the fraction that they remove.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"`limit` must not be negative. Received: limit={limit}")
    norms = _check_norms(norms, spaces)
    masks = tuple(np.ones(row_norms.size, np.float32) for row_norms in norms)
    goals = constraints.goals(budget)
    goals.reset()
    walk = _walk(norms, spaces, goals, constraints.min_width, constraints.round_to)
    if limit is not None:
        walk = walk.up_to(limit)
    met = goals.met_behind(walk.channels)[walk.ends - 1]
    if met.any():
        walk = walk.first(int(np.argmax(met)) + 1)
    goals.reset()
    goals.remove_all(walk.channels)
    masks = tuple((~np.isin(ids, walk.channels)).astype(np.float32) for ids in spaces)
    return Selection(
        masks=masks,
        removed=goals.goals[0].removed,
        masked=sum(int(np.count_nonzero(mask == 0)) for mask in masks),
        target_met=bool(met.any()),
        unit=budget.unit,
    )


# === Before training ===


def largest_reduction(
    spaces: Sequence[np.ndarray],
    budget: Budget,
    min_width: int = 1,
    round_to: int = 1,
) -> float:
    """Returns the fraction that is removed when every space has its smallest width.

    Args:
        spaces: For each compactor, the channel ids of its rows.
        budget: Prices channels. It is reset first, and left at the smallest widths.
        min_width: As in `Constraints`.
        round_to: As in `Constraints`.

    Returns:
        The removed fraction; targets above it are out of reach.
    """
    check_positive_integer("min_width", min_width)
    check_positive_integer("round_to", round_to)
    budget.reset()
    norms = [np.zeros(len(ids)) for ids in spaces]
    budget.remove_all(_walk(norms, spaces, budget, min_width, round_to).channels)
    return removed_fraction(budget)


def largest_bundle(
    spaces: Sequence[np.ndarray], budget: Budget, constraints: Constraints
) -> int:
    """Returns the largest number of channels that a selection masks together.

    Args:
        spaces: For each compactor, the channel ids of its rows.
        budget: Prices channels. It is reset.
        constraints: The allowed widths.
    """
    budget.reset()
    norms = [np.zeros(len(ids)) for ids in spaces]
    walk = _walk(norms, spaces, budget, constraints.min_width, constraints.round_to)
    return int(np.diff(walk.ends, prepend=0).max(initial=1))


def check_reachable(
    spaces: Sequence[np.ndarray], budget: Budget, constraints: Constraints
) -> None:
    """Raises if not even the narrowest model meets all targets."""
    min_width, round_to = constraints.min_width, constraints.round_to
    goals = constraints.goals(budget)
    largest_reduction(spaces, goals, min_width, round_to)
    for goal in goals.unmet():
        why = (
            f"At most {goal.removed:.1%} of the {goal.budget.unit} can be removed with "
            f"these target layers, `min_width={min_width}` and `round_to={round_to}`."
        )
        received = f"Received: {goal.argument}={goal.target}"
        largest_reduction(spaces, goals)
        if goal.met:
            remedy = "Lower `min_width` or `round_to`: with 1 it can be reached."
        else:
            remedy = f"Lower `{goal.argument}`, or wrap more layers (`targets='all'`)."
        raise ValueError(f"{why} {remedy} {received}")


def rows_for_target(
    norms: Sequence[np.ndarray],
    spaces: Sequence[np.ndarray],
    budget: Budget,
    constraints: Constraints,
) -> tuple[int, float]:
    """Estimates, before training, how many rows have to be masked for the target.

    The smallest rows are masked first, and among rows of the same norm all spaces lose
    the same share. Training will choose other rows, but about as many: the estimate for
    ResNet-50 at 54.5 % is 3,675, and the network that the paper's authors published has
    lost 3,242.

    Args:
        norms: For each compactor, the norms of its rows before training.
        spaces: For each compactor, the channel ids of its rows.
        budget: Prices channels. It is reset.
        constraints: The target and the allowed widths.

    Returns:
        The number of rows to mask, and the largest norm among them.
    """
    check_reachable(spaces, budget, constraints)
    flat = np.concatenate(norms)
    shares = np.concatenate([_shares(ids) for ids in spaces])
    places = np.empty(flat.size)
    places[np.lexsort((shares, flat))] = np.arange(flat.size)
    ends = np.cumsum([len(ids) for ids in spaces])
    chosen = select(np.split(places, ends[:-1]), spaces, budget, constraints)
    masked = np.concatenate(chosen.masks) < 0.5
    return chosen.masked, float(flat[masked].max())


def _shares(ids: np.ndarray) -> np.ndarray:
    """Returns, for each row, the share of its compactor's channels before it."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse] / len(first)


def _walk(
    norms: Sequence[np.ndarray],
    spaces: Sequence[np.ndarray],
    budget: Budget,
    min_width: int,
    round_to: int,
) -> Walk:
    if not isinstance(spaces, RowChannels):
        spaces = RowChannels(tuple(np.asarray(ids) for ids in spaces))
    return walk_of(norms, spaces, budget, min_width, round_to)


def _check_norms(
    norms: Sequence[np.ndarray], spaces: Sequence[np.ndarray]
) -> list[np.ndarray]:
    norms = [np.asarray(row_norms) for row_norms in norms]
    shapes = [row_norms.shape for row_norms in norms]
    if shapes != [(len(channels),) for channels in spaces]:
        raise ValueError(
            "`norms` must hold one norm for each channel of `spaces`. Received: "
            f"norms of shapes {shapes} for spaces of widths {list(map(len, spaces))}"
        )
    for space, row_norms in enumerate(norms):
        if np.isnan(row_norms).any():
            raise ValueError(
                "`norms` must not be NaN; training has probably diverged. "
                f"Received: norms[{space}]={row_norms}"
            )
    return norms
