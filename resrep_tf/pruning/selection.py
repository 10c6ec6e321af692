"""Channel selection: compactor norms and a FLOPs target in, masks out.

Pure NumPy, no state of its own. The order in which rows are masked follows from the
norms alone; FLOPs only decide where to stop. That makes a selection one sort and one
walk, with the meter pricing each step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from resrep_tf.budget.flops import FlopsMeter


@dataclass(frozen=True, eq=False)
class Selection:
    """Which compactor rows to forget.

    Attributes:
        masks: One float32 array for each compactor, 1 for rows to keep and 0 for
            rows to forget.
        flops_removed: Fraction of the network's FLOPs that goes with the masked rows.
        masked: Number of masked rows over all compactors.
        target_met: Whether `flops_removed` has reached the target. If not, the limit
            or the smallest allowed widths stopped the selection.
    """

    masks: tuple[np.ndarray, ...]
    flops_removed: float
    masked: int
    target_met: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of rows that stay, for each compactor."""
        return tuple(int(np.count_nonzero(mask)) for mask in self.masks)

    def __str__(self):
        rows = sum(mask.size for mask in self.masks)
        return (
            f"{self.masked:,} of {rows:,} rows masked, {self.flops_removed:.2%} of the "
            f"FLOPs removed (target {'met' if self.target_met else 'not met'})"
        )


def select(
    norms: Sequence[np.ndarray],
    spaces: Sequence[np.ndarray],
    meter: FlopsMeter,
    flops_target: float,
    limit: int | None = None,
    min_width: int = 1,
    round_to: int = 1,
) -> Selection:
    """Masks the rows of smallest norm until the FLOPs target or the limit is reached.

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
        meter: Counts the FLOPs. It is reset first, and left at the selected widths.
        flops_target: Fraction of the FLOPs to remove, between 0 and 1. It counts as
            met when the removed fraction, rounded to the nearest float, reaches it,
            so that a target equal to a reachable fraction is met by that fraction.
        limit: Largest number of rows to mask. Unlimited by default.
        min_width: Smallest number of rows to keep in every space.
        round_to: Pruned spaces end at a multiple of this width, at least `min_width`.
            A space that is no wider than the smallest such multiple is not pruned.

    Returns:
        The masks, aligned with `norms`, and what they achieve.
    """
    check_target(flops_target)
    if limit is not None and limit < 0:
        raise ValueError(f"`limit` must not be negative. Received: limit={limit}")
    norms = _check_norms(norms, spaces)
    channels = _as_lists(spaces)
    forgotten: list[list[int]] = [[] for _ in spaces]
    meter.reset()
    enough = meter.total - _flops_to_remove(meter.total, flops_target)
    masked = 0
    for space, rows in _bundles(norms, min_width, round_to):
        if limit is not None and masked + len(rows) > limit:
            break
        for row in rows:
            meter.remove(channels[space][row])
        forgotten[space] += rows
        masked += len(rows)
        if meter.current <= enough:
            break
    masks = tuple(np.ones(row_norms.size, np.float32) for row_norms in norms)
    for mask, rows in zip(masks, forgotten, strict=True):
        mask[rows] = 0
    return Selection(
        masks=masks,
        flops_removed=_removed_fraction(meter),
        masked=masked,
        target_met=meter.current <= enough,
    )


def largest_reduction(
    spaces: Sequence[np.ndarray],
    meter: FlopsMeter,
    min_width: int = 1,
    round_to: int = 1,
) -> float:
    """Tells how much can be removed at all: every space at its smallest width.

    Args:
        spaces: For each compactor, the channel ids of its rows.
        meter: Counts the FLOPs. It is reset first, and left at the smallest widths.
        min_width: As in `select`.
        round_to: As in `select`.

    Returns:
        The removed fraction of the FLOPs; targets above it are out of reach.
    """
    meter.reset()
    channels = _as_lists(spaces)
    norms = [np.zeros(len(ids)) for ids in channels]
    for space, rows in _bundles(norms, min_width, round_to):
        for row in rows:
            meter.remove(channels[space][row])
    return _removed_fraction(meter)


def rows_for_target(
    spaces: Sequence[np.ndarray],
    meter: FlopsMeter,
    flops_target: float,
    min_width: int = 1,
    round_to: int = 1,
) -> int:
    """Estimates, before training, how many compactor rows the target will take.

    It thins all spaces evenly. Training decides otherwise in detail, but the number
    of rows comes out similar: the estimate for ResNet-50 at 54.5 % is 3,675, and the
    network that the paper's authors published has lost 3,242.

    Args:
        spaces: For each compactor, the channel ids of its rows.
        meter: Counts the FLOPs. It is reset.
        flops_target: Fraction of the FLOPs to remove.
        min_width: As in `select`.
        round_to: As in `select`.

    Returns:
        The number of rows to mask.
    """
    ranks = [np.arange(len(channels)) / len(channels) for channels in spaces]
    rows, _ = smallest_rows(ranks, spaces, meter, flops_target, min_width, round_to)
    return rows


def smallest_rows(
    norms: Sequence[np.ndarray],
    spaces: Sequence[np.ndarray],
    meter: FlopsMeter,
    flops_target: float,
    min_width: int = 1,
    round_to: int = 1,
) -> tuple[int, float]:
    """Tells which rows the target would take by norms that differ from the start.

    Args:
        norms: For each compactor, the norms of its rows.
        spaces, meter, flops_target, min_width, round_to: As in `rows_for_target`.

    Returns:
        The number of rows to mask, and the largest norm among them.
    """
    selection = select(
        norms, spaces, meter, flops_target, min_width=min_width, round_to=round_to
    )
    if not selection.target_met:
        largest = largest_reduction(spaces, meter, min_width, round_to)
        raise ValueError(
            f"`flops_target` is out of reach: at most {largest:.4f} of the FLOPs can "
            f"be removed. Received: flops_target={flops_target}"
        )
    masked = np.concatenate(selection.masks) < 0.5
    return selection.masked, float(np.concatenate(norms)[masked].max())


def check_target(flops_target: float) -> None:
    """Raises unless `flops_target` is a fraction to remove, strictly in (0, 1)."""
    if not 0 < flops_target < 1:
        raise ValueError(
            "`flops_target` is the fraction of the FLOPs to remove and must be "
            f"between 0 and 1, both excluded. Received: flops_target={flops_target}"
        )


def _bundles(
    norms: Sequence[np.ndarray], min_width: int, round_to: int
) -> Iterator[tuple[int, list[int]]]:
    """Yields `(space, rows)`, the rows to be masked together, in masking order."""
    for name, value in (("min_width", min_width), ("round_to", round_to)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
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


def _flops_to_remove(total: int, flops_target: float) -> int:
    """Returns the smallest number whose share of `total` reaches the target.

    Python rounds the quotient of two integers correctly, so a target computed from a
    reachable number is met by that number. The exact product alone would ask for one
    FLOP more whenever the float lies above the fraction it stands for.
    """
    if total <= 0:
        raise ValueError(f"`meter` has no FLOPs to remove. Received: total={total}")
    flops_target = float(flops_target)
    needed = math.ceil(Fraction(flops_target) * total)
    while (needed - 1) / total >= flops_target:
        needed -= 1
    return needed


def _as_lists(spaces: Sequence[np.ndarray]) -> list[list[int]]:
    """Lists the channel ids: plain integers are what a walk is fastest with."""
    return [np.asarray(channels).tolist() for channels in spaces]


def _removed_fraction(meter: FlopsMeter) -> float:
    return (meter.total - meter.current) / meter.total if meter.total else 0.0


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
