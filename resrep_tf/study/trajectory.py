"""The cost of pruning at each epoch of a run (Fig. 4 of the paper)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from resrep_tf.baselines import ablation
from resrep_tf.cli import output
from resrep_tf.convert.report import read_structure
from resrep_tf.evaluate import accuracy
from resrep_tf.pruning.rows import zeroed
from resrep_tf.study.results import Result
from resrep_tf.train import settings, training
from resrep_tf.train.records import snapshots


@dataclasses.dataclass(frozen=True)
class Moment:
    """A run's model at one epoch, whole and pruned to the final structure.

    Attributes:
        epoch: Epochs since the start.
        accuracy: The accuracy of the model as it was.
        pruned_accuracy: The accuracy without the channels that are removed at the end.
        surviving: The sum of squares of the rows that stay.
        pruned: The sum of squares of the rows that do not.
        norms: The norms of all rows.
    """

    epoch: int
    accuracy: float
    pruned_accuracy: float
    surviving: float
    pruned: float
    norms: np.ndarray


@dataclasses.dataclass(frozen=True)
class Trace:
    """A run, epoch by epoch.

    Attributes:
        result: Its result.
        moments: Its snapshots.
        kept: For each row, whether it stays.
        epsilon: The norm below which rows were dropped.
    """

    result: Result
    moments: Sequence[Moment]
    kept: np.ndarray
    epsilon: float

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of trajectory.csv."""
        return [
            {
                "method": self.result.case.name,
                "seed": self.result.seed,
                "epoch": moment.epoch,
                "accuracy": round(moment.accuracy, 6),
                "pruned_accuracy": round(moment.pruned_accuracy, 6),
                "surviving": f"{moment.surviving:.6g}",
                "pruned": f"{moment.pruned:.6g}",
            }
            for moment in self.moments
        ]


def trace(result: Result) -> Trace:
    """Returns the accuracy of every snapshot of a run, whole and pruned."""
    folder = result.folder
    found, _ = settings.parse([f"--flagfile={folder / output.FLAGS}"])
    dataset = training.load_data(found)
    pruner = keras.models.load_model(folder / output.PRUNER, compile=False)
    structure = read_structure(result.report["conversion"])
    rows = {c: np.array(structure[c.targets[0]]) for c in pruner.compactors}
    predict = accuracy.predictor(pruner)
    moments = []
    print(f"\n=== {result.case.name}, seed {result.seed}: pruning every snapshot")
    for epoch, weights in snapshots.read(folder / output.SNAPSHOTS):
        pruner.set_weights(weights)
        whole = accuracy.score(predict, dataset, found.eval_steps)
        with zeroed(rows):
            pruned = accuracy.score(predict, dataset, found.eval_steps)
        norms = [np.asarray(compactor.row_norms()) for compactor in pruner.compactors]
        moments.append(
            Moment(
                epoch,
                whole.accuracy,
                pruned.accuracy,
                *ablation.quadratic_sums(pruner, structure),
                np.concatenate(norms),
            )
        )
        print(f"epoch {epoch}: {whole.accuracy:.2%}, pruned {pruned.accuracy:.2%}")
    kept = np.concatenate(list(rows.values()))
    return Trace(result, moments, kept, found.epsilon)
