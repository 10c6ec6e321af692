"""The points at which operations are measured: at which widths, and how many."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from resrep_tf.budget.operations import Operation

# Shares of an axis's full width at which times are measured.
LEVELS = (1.0, 0.5, 0.1875)
# The cost of a bundle is measured with so many of its channels missing.
SHORT = (1, 4, 8, 12, 15, 16, 24, 31)
BUNDLES = (4, 8, 16, 32)
# How many operations of each kind this is measured on.
SAMPLES = 2
# The weights of an operation's time with cold caches and of its time with warm ones.
Shares = tuple[float, float]


@dataclass
class Point:
    """One operation at some widths, and its time.

    When an operation is timed alone, its input, weights and code are not in the caches
    (cold); when it is run again at once, all of them are (warm). Inside of a model, its
    time is in between.
    """

    op: Operation
    widths: tuple[int, ...]
    cold: float = math.nan
    warm: float = math.nan

    @property
    def parameters(self) -> int:
        """Its number of parameters, roughly."""
        sizes = [getattr(call.op, "kernel_size", ()) for call in self.op.steps]
        return math.prod(self.widths) * math.prod(max(sizes, key=len))

    @property
    def work(self) -> int:
        """Its multiply-adds for one example, roughly."""
        tensor, shape = self.op.steps[0].inputs[0], self.op.in_shapes[0]
        places = [n for i, n in enumerate(shape, start=1) if i != tensor.axis]
        return self.parameters * math.prod(places)

    def seconds(self, shares: Shares) -> float:
        cold, warm = shares
        return max(cold * self.cold + warm * self.warm, 0.0)


@dataclass
class Points:
    """The points at which the operations of one key are measured."""

    grids: tuple[tuple[int, ...], ...]
    grid: list[Point] = field(default_factory=list)
    short: dict[int, list[Point]] = field(default_factory=dict)  # By axis.

    def all(self) -> list[Point]:
        return [*self.grid, *(p for points in self.short.values() for p in points)]

    def grid_times(self, shares: Shares) -> np.ndarray:
        seconds = np.array([point.seconds(shares) for point in self.grid])
        return seconds.reshape([len(grid) for grid in self.grids])


def points_of(ops: Sequence[Operation]) -> dict[str, Points]:
    """Chooses the points for operations, those of equal keys together."""
    by_key: dict[str, list[Operation]] = {}
    for op in ops:
        by_key.setdefault(op.key, []).append(op)
    found = {}
    for key, alike in by_key.items():
        grids = tuple(_widths(alike, axis) for axis in range(len(alike[0].axes)))
        points = found[key] = Points(grids)
        points.grid = [Point(alike[0], widths) for widths in product(*grids)]
    for key, axis in _samples(by_key, found):
        grids = found[key].grids
        tops = [grid[-1] for grid in grids]
        largest = largest_bundle(tops[axis])
        full = tops[axis] - tops[axis] % largest
        found[key].short[axis] = [
            Point(by_key[key][0], (*tops[:axis], full - less, *tops[axis + 1 :]))
            for less in (0, *SHORT)
            if less < largest
        ]
    return found


def _samples(
    by_key: dict[str, list[Operation]], found: dict[str, Points]
) -> Iterator[tuple[str, int]]:
    """Chooses the axes on which the cost of bundles is measured.

    Of the operations of a kind, the narrowest that have room for the largest bundles:
    there a bundle is the largest part of the whole time.
    """
    wide: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for key, alike in by_key.items():
        for axis, grid in enumerate(found[key].grids):
            largest = largest_bundle(grid[-1])
            if largest and any(op.free[axis] for op in alike):
                kind = (kind_of(key), axis)
                wide.setdefault(kind, []).append((-largest, grid[-1], key))
    for (_, axis), candidates in wide.items():
        best = sorted(candidates)[:SAMPLES]
        yield from ((key, axis) for size, _, key in best if size == best[0][0])


def largest_bundle(width: int) -> int:
    """Returns the largest bundle of which a width has two, or 0."""
    return max((size for size in BUNDLES if 2 * size <= width), default=0)


def _widths(ops: Sequence[Operation], axis: int) -> tuple[int, ...]:
    """Chooses widths up to the largest one, at full bundles where there are any."""
    chosen = {op.widths[axis] for op in ops}
    if not any(op.free[axis] for op in ops):
        return tuple(sorted(chosen))
    top = max(chosen)
    chosen = {1, top}
    for level in LEVELS:
        width = level * top
        step = 32 if width >= 48 else 16 if width >= 12 else 4
        chosen.add(min(max(round(width / step) * step, 1), top))
    return tuple(sorted(chosen))


def kind_of(key: str) -> str:
    """Returns the kind of a key's operations, without the sizes of their images."""
    return key.rsplit(" on ", 1)[0]
