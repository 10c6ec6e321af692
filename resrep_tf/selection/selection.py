"""Channel selection: norms of compactor rows and a target in, masks out.

Pure NumPy, no state of its own. The order in which rows are masked follows from the
norms alone; the budget only decides where to stop. That makes a selection one sort and
one walk, with the budget pricing each step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.budget import Budget
from resrep_tf.budget.combined import (
    FLOPS_TARGET,
    CombinedBudget,
    Goal,
    check_target,
    removed_fraction,
)
from resrep_tf.selection.checks import check_positive_integer


@dataclass(frozen=True)
class Constraints:
    """The fraction that a selection must remove, and the widths that it must leave.

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
        """Returns a budget together with what is to be removed of it."""
        if isinstance(budget, CombinedBudget):
            return budget
        return CombinedBudget([Goal(budget, self.target, self.argument)])


@dataclass(frozen=True, eq=False)
class Selection:
    """The compactor rows to forget, as masks.

    Attributes:
        masks: One float32 array for each compactor, 1 for rows to keep and 0 for
            rows to forget.
        removed: Fraction of the budget that goes with the masked rows; of the first
            one, if there are several.
        masked: Number of masked rows over all compactors.
        target_met: Whether all targets are reached. If not, the limit or the smallest
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
        """Number of rows that stay, for each compactor."""
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

    All rows of all compactors compete in one ascending order; equal norms go by
    compactor, then by row. Rows that would make their space narrower than allowed are
    passed over. Rows masked by an earlier selection have no special standing.

    With `round_to` above 1, rows wait in a queue per space, and a queue is masked as
    one bundle when it brings the width of the space to a multiple of `round_to`; the
    first bundle takes the remainder. Rows still waiting at the end are kept. A bundle
    that does not fit into the limit ends the selection. Passing over it instead would
    mask rows of larger norm in its place, only to release them once the limit has
    grown.

    Args:
        norms: For each compactor, the norms of its rows.
        spaces: For each compactor, the channel ids of its rows, in the same order.
        budget: Prices channels; a `CombinedBudget` for several targets. It is reset
            first, and left at the selected widths.
        constraints: The target and the allowed widths.
        limit: Largest number of rows to mask. Unlimited by default.

    Returns:
        The masks, aligned with `norms`, and what they achieve.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"`limit` must not be negative. Received: limit={limit}")
    norms = _check_norms(norms, spaces)
    channels = _as_lists(spaces)
    masked_rows: list[list[int]] = [[] for _ in spaces]
    goals = constraints.goals(budget)
    goals.reset()
    masked, met = 0, False
    for space, rows in _bundles(norms, constraints.min_width, constraints.round_to):
        if limit is not None and masked + len(rows) > limit:
            break
        for row in rows:
            budget.remove(channels[space][row])
        masked_rows[space] += rows
        masked += len(rows)
        met = goals.met()
        if met:
            break
    masks = tuple(np.ones(row_norms.size, np.float32) for row_norms in norms)
    for mask, rows in zip(masks, masked_rows, strict=True):
        mask[rows] = 0
    return Selection(
        masks=masks,
        removed=goals.goals[0].removed,
        masked=masked,
        target_met=met,
        unit=budget.unit,
    )


# === Before training ===


def largest_reduction(
    spaces: Sequence[np.ndarray],
    budget: Budget,
    min_width: int = 1,
    round_to: int = 1,
) -> float:
    """Returns the fraction that goes when every space has its smallest width.

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
    channels = _as_lists(spaces)
    norms = [np.zeros(len(ids)) for ids in channels]
    for space, rows in _bundles(norms, min_width, round_to):
        for row in rows:
            budget.remove(channels[space][row])
    return removed_fraction(budget)


def check_reachable(
    spaces: Sequence[np.ndarray], budget: Budget, constraints: Constraints
) -> None:
    """Raises if not even the narrowest model meets all targets."""
    min_width, round_to = constraints.min_width, constraints.round_to
    goals = constraints.goals(budget)
    largest_reduction(spaces, goals, min_width, round_to)
    for goal in goals.unmet():
        raise ValueError(
            f"At most {goal.removed:.1%} of the {goal.budget.unit} can be removed with "
            f"these target layers, `min_width={min_width}` and `round_to={round_to}`. "
            f"Lower `{goal.argument}`, or wrap more layers (`targets='all'`). "
            f"Received: {goal.argument}={goal.target}"
        )


def rows_for_target(
    norms: Sequence[np.ndarray],
    spaces: Sequence[np.ndarray],
    budget: Budget,
    constraints: Constraints,
) -> tuple[int, float]:
    """Estimates, before training, which rows the target will take.

    The smallest go first, and among rows of the same norm all spaces are thinned
    evenly. Training decides otherwise in detail, but the number of rows comes out
    similar: the estimate for ResNet-50 at 54.5 % is 3,675, and the network that the
    paper's authors published has lost 3,242.

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
    shares = np.concatenate([np.arange(len(ids)) / len(ids) for ids in spaces])
    places = np.empty(flat.size)
    places[np.lexsort((shares, flat))] = np.arange(flat.size)
    ends = np.cumsum([len(ids) for ids in spaces])
    chosen = select(np.split(places, ends[:-1]), spaces, budget, constraints)
    masked = np.concatenate(chosen.masks) < 0.5
    return chosen.masked, float(flat[masked].max())


def _bundles(
    norms: Sequence[np.ndarray], min_width: int, round_to: int
) -> Iterator[tuple[int, list[int]]]:
    """Yields `(space, rows)`, the rows to be masked together, in masking order."""
    floor = math.ceil(min_width / round_to) * round_to
    widths = [row_norms.size for row_norms in norms]
    queues: list[list[int]] = [[] for _ in norms]
    starts = np.cumsum([0, *widths])
    order = np.argsort(np.concatenate([*norms, []]), kind="stable")
    owners = np.searchsorted(starts, order, side="right") - 1
    rows = order - starts[owners]
    for space, row in zip(owners.tolist(), rows.tolist(), strict=True):
        if widths[space] <= floor:
            continue
        queue = queues[space]
        queue.append(row)
        if (widths[space] - len(queue)) % round_to == 0:
            widths[space] -= len(queue)
            queues[space] = []
            yield space, queue


def _as_lists(spaces: Sequence[np.ndarray]) -> list[list[int]]:
    """Returns the channel ids as plain integers, with which a walk is fastest."""
    return [np.asarray(channels).tolist() for channels in spaces]


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
