"""Parts of the paper's ablation (Sect. 4.3): ResRep without resetting, and records.

With `LassoOnly` in place of `ChannelSelection`, all rows feel the Lasso and the
objective to the end, and none is forgotten on purpose: Rep without Res. What to remove
is decided afterwards, by `keep_largest` or by `resrep_tf.minimal.minimal_structure`.
"""

from collections.abc import Mapping

import keras
import numpy as np

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.pruning import selection
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.planning import check_reachable
from resrep_tf.pruning.replicas import number


class LassoOnly(keras.callbacks.Callback):
    """Trains a wrapped model without gradient resetting: no row is ever masked.

    Example:

    ```python
    pruner = resrep_tf.wrap(model)
    pruner.compile("sgd", loss, lasso_strength=0.003)
    pruner.fit(data, callbacks=[LassoOnly()])
    slim = resrep_tf.convert(pruner, keep=keep_largest(pruner, flops_target=0.5))
    ```
    """

    selects_channels = True  # Deliberately none: what `ResRepModel.fit` asks for.

    def on_train_begin(self, logs=None):
        self.model.set_masks([np.ones(c.width) for c in self.model.compactors])


class NormHistory(keras.callbacks.Callback):
    """Records the norms of all compactor rows, for `resrep_tf.figures.norms`.

    Args:
        interval: Steps between two records.

    Attributes:
        steps: When norms were recorded.
        norms: At each of these steps, the norms of all rows in one array.
    """

    def __init__(self, interval: int = 100):
        super().__init__()
        if interval < 1:
            raise ValueError(
                f"`interval` must be at least 1. Received: interval={interval}"
            )
        self.interval = interval
        self.steps: list[int] = []
        self.norms: list[np.ndarray] = []

    def on_train_begin(self, logs=None):
        self._record()

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution` several steps have passed since the last call.
        if number(self.model.optimizer.iterations) >= self.steps[-1] + self.interval:
            self._record()

    def _record(self) -> None:
        self.steps.append(number(self.model.optimizer.iterations))
        self.norms.append(np.concatenate(_norms(self.model)))


def keep_largest(
    pruner: ResRepModel, flops_target: float, min_width: int = 1, round_to: int = 1
) -> dict[str, np.ndarray]:
    """Chooses rows by their norms, without training: the largest stay.

    Args:
        pruner: A wrapped model.
        flops_target: The fraction of FLOPs to remove, between 0 and 1.
        min_width: The least number of channels that a layer keeps.
        round_to: Makes widths multiples of this, within the same budget.

    Returns:
        For each compactor's name, a boolean for each row, as `resrep_tf.convert`
        takes them.
    """
    spaces, meter = pruner.spaces(), FlopsMeter.of(pruner.graph)
    check_reachable(spaces, meter, flops_target, min_width, round_to)
    chosen = selection.select(
        _norms(pruner),
        spaces,
        meter,
        flops_target,
        min_width=min_width,
        round_to=round_to,
    )
    return {
        compactor.name: mask > 0.5
        for compactor, mask in zip(pruner.compactors, chosen.masks, strict=True)
    }


def quadratic_sums(
    pruner: ResRepModel, keep: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """Sums of squares of the rows that survive, and of those that do not (Fig. 4).

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
