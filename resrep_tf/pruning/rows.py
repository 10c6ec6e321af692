"""The rows of compactors: which ones to drop, and which are not forgotten yet."""

import contextlib
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.rules.weights import stored

Rows = Mapping[Compactor, np.ndarray]


def row_norms(pruner: ResRepModel) -> dict[Compactor, np.ndarray]:
    """Returns the norms of all rows, or raises if one of them is not finite."""
    found = {}
    for compactor in pruner.compactors:
        norms = keras.ops.convert_to_numpy(compactor.row_norms())
        if not np.isfinite(norms).all():
            raise ValueError(
                "Every compactor row must be finite. Go back to a checkpoint from "
                f"before training diverged. Received: `{compactor.name}` with "
                f"{int((~np.isfinite(norms)).sum())} NaN or infinite rows"
            )
        found[compactor] = norms
    return found


def check_epsilon(epsilon: float) -> None:
    """Raises unless `epsilon` is a norm that only forgotten rows can be below.

    Rows start with a norm of about 1, so a larger number would drop all of them.
    """
    if isinstance(epsilon, bool) or not isinstance(epsilon, numbers.Real):
        raise TypeError(
            "`epsilon` must be a number: rows of smaller norm are dropped. "
            f"Received: epsilon={epsilon!r} (of type {type(epsilon).__name__})"
        )
    if not 0 <= epsilon < 1:
        raise ValueError(
            "`epsilon` must be at least 0 and below 1, the norm that rows start with; "
            f"1e-5 is usual. Received: epsilon={epsilon}"
        )


def masked_rows(compactor: Compactor) -> np.ndarray:
    """Returns a boolean for each row, true where it is to be forgotten."""
    return stored(compactor.mask) < 0.5


def kept_rows(
    norms: Rows,
    epsilon: float,
    drop_masked: bool = False,
    named: Rows | None = None,
) -> dict[Compactor, np.ndarray]:
    """Returns for each compactor which rows stay; at least one row always does.

    Args:
        norms: The norms of each compactor's rows.
        epsilon: Rows of smaller norm are dropped.
        drop_masked: True to drop masked rows too, whatever their norm.
        named: For some compactors, the rows to keep; norms do not matter for these.
    """
    rows = {}
    for compactor, lengths in norms.items():
        kept = lengths >= epsilon
        if drop_masked:
            kept &= ~masked_rows(compactor)
        kept = (named or {}).get(compactor, kept).copy()
        if not kept.any():
            kept[lengths.argmax()] = True
        rows[compactor] = kept
    return rows


def removed_by(graph: ChannelGraph, rows: Rows) -> dict[int, np.ndarray]:
    """Returns `removed` for `surgery.decide`: a zero for each dropped row."""
    return {
        id(call): np.where(rows[call.op], np.nan, 0.0)
        for call in graph.calls.values()
        if isinstance(call.op, Compactor)
    }


@contextlib.contextmanager
def zeroed(rows: Rows) -> Iterator[None]:
    """Sets the rows that are not kept to zero inside the block."""
    before = {c: keras.ops.convert_to_numpy(c.kernel) for c in rows}
    try:
        for compactor, keep in rows.items():
            compactor.kernel.assign(before[compactor] * keep)
        yield
    finally:
        for compactor, kernel in before.items():
            compactor.kernel.assign(kernel)


@dataclass(frozen=True)
class Unforgotten:
    """The masked rows that are not forgotten: their norm is not below epsilon.

    It is true if there are any, and prints as a sentence about them.

    Attributes:
        masked: The number of masked rows.
        left: The number of masked rows that are not forgotten.
        largest_norm: The largest norm of these; 0 if there are none.
        epsilon: The norm below which a row is forgotten.
    """

    masked: int
    left: int
    largest_norm: float
    epsilon: float

    def __bool__(self):
        return self.left > 0

    def __str__(self):
        if not self.left:
            return f"All of {self.masked:,} masked channels are forgotten."
        return (
            f"{self.left:,} of {self.masked:,} masked channels are not forgotten yet "
            f"(norm up to {self.largest_norm:.2g}, epsilon {self.epsilon:g}), so they "
            "stay and less is removed than was asked for."
        )


def unforgotten(pruner: ResRepModel, epsilon: float) -> Unforgotten:
    """Counts the masked rows whose norm is not below `epsilon`."""
    masked, left, largest = 0, 0, 0.0
    for compactor, norms in row_norms(pruner).items():
        rows = masked_rows(compactor)
        waiting = norms[rows & (norms >= epsilon)]
        masked += int(rows.sum())
        left += len(waiting)
        largest = max(largest, float(waiting.max(initial=0.0)))
    return Unforgotten(masked, left, largest, epsilon)
