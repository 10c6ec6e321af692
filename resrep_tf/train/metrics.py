"""Metrics of every epoch, as CSV and for TensorBoard."""

import csv
import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.cli import output
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.state import number
from resrep_tf.train import summaries

COLUMNS = (
    "phase",
    "epoch",
    "step",
    "learning_rate",
    "loss",
    "accuracy",
    "top5_accuracy",
    "val_loss",
    "val_accuracy",
    "val_top5_accuracy",
    "flops_removed",
    "forgotten",
)


class MetricsFile:
    """A CSV file with a row for each epoch, rewritten whole at each of them."""

    def __init__(self, path: Path):
        self._path = path
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self.replace([*self.rows, row])

    def replace(self, rows: list[dict[str, Any]]) -> None:
        """Goes back to the rows that a run had when its checkpoint was written."""
        self.rows = rows
        text = io.StringIO()
        writer = csv.DictWriter(
            text, COLUMNS, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(self.rows)
        output.write_text(self._path, text.getvalue())


class EpochLog(keras.callbacks.Callback):
    """Writes the metrics of every epoch.

    Args:
        phase: `"base"` or `"prune"`.
        file: The CSV file.
        folder: Where TensorBoard's files go.
        start: Epochs that are over; nothing later has been logged yet.
    """

    def __init__(self, phase: str, file: MetricsFile, folder: Path, start: int = 0):
        super().__init__()
        self._phase = phase
        self._file = file
        self._folder = folder / phase
        self._start = start
        self._writer = None

    def on_train_begin(self, logs=None):
        # What a run has logged that was killed before it could save the epoch's end.
        summaries.rewind(self._folder, self._start * self.params["steps"])
        with output.writing(self._folder):
            self._writer = tf.summary.create_file_writer(str(self._folder))

    def on_epoch_end(self, epoch, logs=None):
        # Batches, of which an optimizer may have skipped some.
        step = (epoch + 1) * self.params["steps"]
        values = {name: float(value) for name, value in (logs or {}).items()}
        values["learning_rate"] = number(self.model.optimizer.learning_rate)
        self._file.add(
            {"phase": self._phase, "epoch": epoch + 1, "step": step, **values}
        )
        with output.writing(self._folder), self._writer.as_default(step=step):
            for name, value in values.items():
                summaries.scalar(name, value)
            if isinstance(self.model, ResRepModel):
                self._write_compactors()
            self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()

    def _write_compactors(self) -> None:
        for compactor in self.model.compactors:
            norms = keras.ops.convert_to_numpy(compactor.row_norms())
            summaries.histogram(f"norms/{compactor.name}", norms)
            width = int(np.sum(keras.ops.convert_to_numpy(compactor.mask) > 0.5))
            for layer in compactor.targets:
                summaries.scalar(f"width/{layer}", width)
