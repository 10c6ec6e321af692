"""Parts of the paper's ablation (Sect. 4.3): ResRep without resetting gradients.

With `LassoOnly` in place of `ChannelSelection`, the Lasso and the objective act on all
rows to the end, and none is masked: Rep without Res. The rows to remove are chosen
afterwards, by `keep_largest` or by `resrep_tf.minimal.minimal_structure`.
"""

from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.selection.selection import Constraints, check_reachable, select


class LassoOnly(keras.callbacks.Callback):
    """Trains a wrapped model without gradient resetting: no row is ever masked.

    Example:

    ```python
    pruner = resrep_tf.wrap(model)
    pruner.compile("sgd", loss, lasso_strength=0.003)
    pruner.fit(data, callbacks=[resrep_tf.ablation.LassoOnly()])
    keep = resrep_tf.ablation.keep_largest(pruner, flops_target=0.5)
    slim = resrep_tf.convert(pruner, keep=keep)
    ```
    """

    # It selects none, on purpose. Without this, `fit` would refuse to run.
    selects_channels = True

    def on_train_begin(self, logs=None):
        self.model.state.rows_learn.assign(1.0)
        self.model.set_masks([np.ones(c.width) for c in self.model.compactors])


def keep_largest(
    pruner: ResRepModel,
    flops_target: float | None = None,
    min_width: int = 1,
    round_to: int = 1,
    params_target: float | None = None,
    latency_target: float | None = None,
    latency_table: LatencyTable | str | Path | None = None,
) -> dict[str, np.ndarray]:
    """Chooses rows by their norms, without training: the largest stay.

    Args:
        pruner: A wrapped model.
        flops_target: The fraction of FLOPs to remove, between 0 and 1.
        min_width: The least number of channels that a layer keeps.
        round_to: Makes widths multiples of this, within the same budget.
        params_target: As in `ChannelSelection`.
        latency_target: As in `ChannelSelection`.
        latency_table: As in `ChannelSelection`.

    Returns:
        For each compactor's name, a boolean for each row, as `resrep_tf.convert`
        takes them.
    """
    goals = Goals(flops_target, params_target, latency_target, latency_table)
    constraints = Constraints(None, min_width, round_to)
    spaces, budget = pruner.compactor_channels(), goals.budget(pruner.graph)
    check_reachable(spaces, budget, constraints)
    chosen = select(_norms(pruner), spaces, budget, constraints)
    return {
        compactor.name: mask > 0.5
        for compactor, mask in zip(pruner.compactors, chosen.masks, strict=True)
    }


def quadratic_sums(
    pruner: ResRepModel, keep: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """Returns the sums of squares of the rows that survive and of the others (Fig. 4).

    Args:
        pruner: A wrapped model, at any point of its training.
        keep: The final structure: for each compactor's or target layer's name, a
            boolean for each row. Compactors that are not named survive whole.
    """
    surviving, pruned = 0.0, 0.0
    for compactor, norms in zip(pruner.compactors, _norms(pruner), strict=True):
        squares = norms.astype(np.float64) ** 2
        names = (compactor.name, *compactor.targets)
        kept = next(
            (np.asarray(keep[name], bool) for name in names if name in keep),
            np.ones(len(norms), bool),
        )
        surviving += float(squares[kept].sum())
        pruned += float(squares[~kept].sum())
    return surviving, pruned


def _norms(pruner: ResRepModel) -> list[np.ndarray]:
    return [np.asarray(compactor.row_norms()) for compactor in pruner.compactors]
