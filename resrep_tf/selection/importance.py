"""Ranks channels by their importance for the loss, relative to their cost.

Scaling a row by 1 + s changes the loss, to first order, by s times the sum of its
weights times their gradients. The mean square of that sum over recent batches is the
row's importance. This is the Taylor criterion, measured while the network is trained.
"""

from collections.abc import Sequence

import numpy as np

from resrep_tf.budget.combined import CombinedBudget
from resrep_tf.selection.rows import RowChannels

# The share of a layer's rows, the most important ones, that go only when no others are
# left: first-order terms cannot predict what happens to a layer that loses nearly all.
_CORE = 0.2
# The cost of a channel counts as at least this share of the average cost. By the steps
# of a latency table, for example, some channels cost nearly nothing.
_LEAST_COST = 0.1


def ranks(
    importance: Sequence[np.ndarray],
    rows: RowChannels,
    goals: CombinedBudget,
    masks: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Ranks rows by their importance relative to the cost of their channel.

    The least important rows come first, but masked rows come before all others, so that
    a later selection agrees with an earlier one.

    Args:
        importance: For each compactor, the importance of its rows.
        rows: The channels of these rows.
        goals: The budgets; the masked channels are removed from them.
        masks: For each compactor, 1 for rows to keep, 0 for masked ones.

    Returns:
        For each compactor, a rank for each row, as `select` takes them. The rows of a
        channel have the same rank.
    """
    masked = rows.masked(masks)
    goals.reset()
    goals.remove_all(np.array(masked, np.int64))
    channels, inverse = np.unique(np.concatenate([*rows]), return_inverse=True)
    total = np.bincount(inverse, np.concatenate([*importance]))
    costs = np.zeros(len(channels))
    is_masked = np.isin(channels, masked)
    for place in np.flatnonzero(~is_masked):
        costs[place] = goals.share(int(channels[place]))
    least = _LEAST_COST * costs[~is_masked].mean() if not is_masked.all() else 0.0
    worth = total / np.maximum(costs, least or 1.0)
    core = np.bincount(inverse, np.concatenate([_core(i) for i in importance])) > 0
    order = np.lexsort((worth, core, ~is_masked))
    place_of = np.empty(len(channels))
    place_of[order] = np.arange(len(channels))
    ends = np.cumsum([len(ids) for ids in rows])
    return np.split(place_of[inverse], ends[:-1])


def _core(importance: np.ndarray) -> np.ndarray:
    """Returns 1 for the most important rows of a compactor, 0 for the others."""
    core = np.zeros(len(importance))
    core[np.argsort(-importance, kind="stable")[: round(_CORE * len(core))]] = 1
    return core
