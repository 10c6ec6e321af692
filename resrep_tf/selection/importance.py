"""Which channels matter least for what they cost, by the gradients of the loss.

A row that is scaled by 1 + s changes the loss by s times the sum of its weights times
their gradients, to first order. The mean square of that sum over recent batches is the
row's importance: the Taylor criterion, measured while the network is trained.
"""

from collections.abc import Sequence

import numpy as np

from resrep_tf.budget.combined import CombinedBudget
from resrep_tf.selection.rows import RowChannels

# A layer's most important rows go only when nothing else is left: first-order terms
# know nothing of what happens to a layer that loses nearly everything.
_CORE = 0.2
# A channel that costs nearly nothing, by the steps of a latency table for instance,
# counts as this share of an average one.
_LEAST_COST = 0.1


def ranks(
    importance: Sequence[np.ndarray],
    rows: RowChannels,
    goals: CombinedBudget,
    masks: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Ranks rows: those of the least importance for what their channel costs first.

    Masked rows come before all others, so that a later selection keeps to an earlier
    one.

    Args:
        importance: For each compactor, the importance of its rows.
        rows: The channels of these rows.
        goals: The budgets, which are left without the masked channels.
        masks: For each compactor, 1 for rows that go on learning, 0 for masked ones.

    Returns:
        For each compactor, a rank for each row, as `select` takes them. The rows of a
        channel have the same.
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
