"""The cost of operations, as products of widths.

One FLOP is one multiply-add (MAC) throughout the library. The MACs of an operation
are a constant times the widths of the channel axes that it works on. So a network is a
list of `Term`s, and everything here is integer arithmetic over channel ids.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Term:
    """MACs of one operation: its coefficient times the widths of its factors.

    A convolution is `Term(name, kernel_area * output_pixels, (inputs, outputs))`, a
    depthwise convolution has one factor, and an operation has none if none of its
    channels can be removed.

    Args:
        name: Name of the layer. Terms of one layer may share it.
        coefficient: MACs when every factor has width 1.
        factors: For each channel axis, the channel id of every position along it. An
            id may repeat within a factor (Flatten, depthwise multipliers) and may
            stand in several factors (a convolution inside a residual stream); the
            width of a factor is the number of positions whose channel is kept.
    """

    name: str
    coefficient: int
    factors: tuple[np.ndarray, ...]

    def __post_init__(self):
        object.__setattr__(self, "coefficient", operator.index(self.coefficient))
        object.__setattr__(
            self, "factors", tuple(_channel_ids(ids, "factors") for ids in self.factors)
        )
        if self.coefficient < 0:
            raise ValueError(
                "`coefficient` must not be negative. "
                f"Received: coefficient={self.coefficient}"
            )

    def macs(self, keep: np.ndarray | None = None) -> int:
        """Returns the multiply-adds of this operation; `keep` is as in `count`."""
        if keep is None:
            widths = (ids.size for ids in self.factors)
        else:
            keep = np.asarray(keep, bool)
            widths = (int(np.count_nonzero(keep[ids])) for ids in self.factors)
        return self.coefficient * math.prod(widths)

    def __str__(self):
        widths = "".join(f" x {ids.size:,}" for ids in self.factors)
        return f"{self.name}: {self.coefficient:,}{widths} = {self.macs():,} MACs"


def count(terms: Iterable[Term], keep: np.ndarray | None = None) -> int:
    """Counts the FLOPs of a network from scratch.

    Args:
        terms: The operations of the network.
        keep: One boolean for each channel id, true where the channel stays. All of
            them stay by default.

    Returns:
        The exact number of multiply-adds.
    """
    return sum(term.macs(keep) for term in terms)


def count_by_name(
    terms: Iterable[Term], keep: np.ndarray | None = None
) -> dict[str, int]:
    """Counts FLOPs as `count` does, summed per layer name in order of appearance."""
    macs: dict[str, int] = defaultdict(int)
    for term in terms:
        macs[term.name] += term.macs(keep)
    return dict(macs)


def _channel_ids(ids, argument: str) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(
            f"`{argument}` must be one-dimensional integer arrays. "
            f"Received: an array of shape {ids.shape} and type {ids.dtype}"
        )
    if ids.size and ids.min() < 0:
        raise ValueError(
            f"`{argument}` must hold channel ids of at least 0. Received: {ids.min()}"
        )
    return ids.astype(np.int64)
