"""Masked channels that stay in a converted model."""

from typing import Any

import numpy as np


def unforgotten(pruner: Any, epsilon: float) -> str:
    """Returns advice about masked rows that are not forgotten; empty if all are."""
    masked, left, largest = 0, 0, 0.0
    for compactor in pruner.compactors:
        norms = np.asarray(compactor.row_norms())
        rows = np.asarray(compactor.mask) < 0.5
        masked += int(rows.sum())
        left += int((rows & (norms >= epsilon)).sum())
        largest = max(largest, float(norms[rows].max(initial=0.0)))
    if not left:
        return ""
    return (
        f"NOTE: {left:,} of {masked:,} masked channels are not forgotten yet (norm up "
        f"to {largest:.2g}, epsilon {epsilon:g}), so they stay and less is removed "
        "than was asked for. Train for longer (`--epochs`), let the constants fit the "
        "run (`--schedule=auto`), set rows to zero when they are near it (`--snap`), "
        "or remove them as they are, at some loss: `--drop_masked`, or for this run "
        "`python -m resrep_tf.convert --pruner=pruner.keras --drop_masked`.\n"
    )
