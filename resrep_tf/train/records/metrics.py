"""Writes the metrics of every epoch, as CSV and for TensorBoard."""

import csv
import io
import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.cli import output
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.rows import masked_rows
from resrep_tf.pruning.state import number

# The key for the channels of each layer, in rows of a wrapped model.
CHANNELS = "channels"

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
    CHANNELS,
)

# The key for the CPU time of an epoch: in rows, but not in the file.
CPU_SECONDS = "cpu_seconds"

# The bars of a histogram.
BUCKETS = 30


class MetricsFile:
    """A CSV file with a row for each epoch; each new row rewrites the file."""

    def __init__(self, path: Path):
        self._path = path
        self.rows: list[dict[str, Any]] = []

    def restore(self, phases: Collection[str]) -> None:
        """Reads the rows of phases from the file, if it exists and is complete.

        When a run is complete, it has no checkpoint any more; the file has all rows.
        """
        try:
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = [_parsed(row) for row in csv.DictReader(file)]
                self.rows = [row for row in rows if row["phase"] in phases]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, csv.Error):
            self.rows = []

    def add(self, row: dict[str, Any]) -> None:
        """Adds the row of an epoch."""
        self.replace([*self.rows, row])

    def replace(self, rows: list[dict[str, Any]]) -> None:
        """Replaces all rows, by those of a checkpoint."""
        self.rows = rows
        text = io.StringIO()
        writer = csv.DictWriter(
            text, COLUMNS, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(map(_printable, self.rows))
        output.write_text(self._path, text.getvalue())


def _printable(row: Mapping[str, Any]) -> dict[str, Any]:
    if CHANNELS not in row:
        return dict(row)
    return {**row, CHANNELS: json.dumps(row[CHANNELS], separators=(",", ":"))}


def _parsed(row: Mapping[str, str]) -> dict[str, Any]:
    """Returns a row of the file as it was before it was written."""
    found: dict[str, Any] = {name: value for name, value in row.items() if value}
    for name in found.keys() - {"phase", "epoch", "step", CHANNELS}:
        found[name] = float(found[name])
    found |= {name: int(found[name]) for name in ("epoch", "step")}
    if CHANNELS in found:
        found[CHANNELS] = json.loads(found[CHANNELS])
    return found


class EpochLog(keras.callbacks.Callback):
    """Writes the metrics of every epoch.

    Args:
        phase: The name of the phase.
        file: The CSV file.
        folder: The folder for TensorBoard's files.
        start: The number of finished epochs; later ones are logged again.
    """

    def __init__(self, phase: str, file: MetricsFile, folder: Path, start: int = 0):
        super().__init__()
        self._phase = phase
        self._file = file
        self._folder = folder / phase
        self._start = start
        self._writer = None
        self._since, self._steps = 0.0, 0

    def on_train_begin(self, logs=None):
        # A run that is killed between logging and saving an epoch would log it twice.
        _rewind(self._folder, self._start * self.params["steps"])
        with output.writing(self._folder):
            self._writer = tf.summary.create_file_writer(str(self._folder))

    def on_epoch_begin(self, epoch, logs=None):
        self._since, self._steps = time.process_time(), 0

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1

    def on_epoch_end(self, epoch, logs=None):
        # Batches, of which an optimizer may have skipped some.
        step = (epoch + 1) * self.params["steps"]
        values = {name: float(value) for name, value in (logs or {}).items()}
        values["learning_rate"] = number(self.model.optimizer.learning_rate)
        pruned = isinstance(self.model, ResRepModel)
        row = {"phase": self._phase, "epoch": epoch + 1, "step": step, **values}
        row[CPU_SECONDS] = self._cost()
        self._file.add(row | ({CHANNELS: _channels(self.model)} if pruned else {}))
        with output.writing(self._folder), self._writer.as_default(step=step):
            for name, value in values.items():
                _write_scalar(name, value)
            if pruned:
                self._write_compactors()
            self._writer.flush()

    def _cost(self) -> float:
        """Returns the CPU seconds of an epoch, also of one that was resumed."""
        share = self.params["steps"] / max(1, self._steps)
        return share * (time.process_time() - self._since)

    def on_train_end(self, logs=None):
        self._writer.close()

    def _write_compactors(self) -> None:
        for compactor in self.model.compactors:
            norms = keras.ops.convert_to_numpy(compactor.row_norms())
            _write_histogram(f"norms/{compactor.name}", norms)
            width = int(np.sum(~masked_rows(compactor)))
            for layer in compactor.targets:
                _write_scalar(f"width/{layer}", width)


# === Channels ===


def _channels(pruner: ResRepModel) -> dict[str, list[int]]:
    """Returns each target's numbers of channels: all, kept, and not forgotten."""
    epsilon = number(pruner.state.epsilon)
    return {
        compactor.targets[0]: [
            compactor.width,
            int(np.sum(~masked_rows(compactor))),
            int(np.sum(keras.ops.convert_to_numpy(compactor.row_norms()) >= epsilon)),
        ]
        for compactor in pruner.compactors
    }


def channel_history(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns the channels of each layer by epoch, or None if they were not counted.

    Before the first of these epochs all channels are there. Behind the last one the
    network is shrunk, and does not change any more.
    """
    counted = [row for row in rows if CHANNELS in row]
    if not counted:
        return None
    first, last = counted[0]["epoch"] - 1, counted[-1]["epoch"]
    after = [row["epoch"] for row in rows[rows.index(counted[-1]) + 1 :]]
    layers = {}
    for name, (width, _, _) in counted[0][CHANNELS].items():
        kept, left = (
            [width, *(row[CHANNELS][name][place] for row in counted)]
            for place in (1, 2)
        )
        layers[name] = {
            "width": width,
            "kept": _as_text(kept + kept[-1:] * len(after)),
            "left": _as_text(left + kept[-1:] * len(after)),
        }
    epochs = [*range(first, last + 1), *after]
    return {"epochs": _as_text(epochs), "layers": layers}


def cpu_seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the CPU seconds of all epochs; None if one was not recorded."""
    if not rows or not all(CPU_SECONDS in row for row in rows):
        return None
    return sum(row[CPU_SECONDS] for row in rows)


def _as_text(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))  # In JSON each would have a line otherwise.


# === TensorBoard's files ===
#
# `tf.summary.scalar` and `tf.summary.histogram` are implemented in the package
# tensorboard, which TensorFlow does not bring along. What they write is simple: a
# tensor, and the name of the plugin that shows it.


def _write_scalar(name: str, value: float) -> None:
    """Writes a number, to the default writer at its default step."""
    metadata = _metadata("scalars", "DATA_CLASS_SCALAR")
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)


def _write_histogram(name: str, values: np.ndarray) -> None:
    """Writes a distribution: rows of left edge, right edge and count."""
    counts, edges = np.histogram(np.asarray(values, np.float64), BUCKETS)
    rows = np.stack([edges[:-1], edges[1:], counts], axis=1)
    metadata = _metadata("histograms", "DATA_CLASS_TENSOR")
    tf.summary.write(name, tf.constant(rows, tf.float64), metadata=metadata)


def _rewind(folder: Path, step: int) -> None:
    """Removes the events after a step, which a killed run has written."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        kept = []
        try:
            for record in tf.data.TFRecordDataset(str(path)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                if event.step <= step:
                    kept.append(record.numpy())
        except tf.errors.DataLossError:
            pass  # The end of a file that was being written.
        with (
            output.atomic(path) as temporary,
            tf.io.TFRecordWriter(str(temporary)) as writer,
        ):
            for record in kept:
                writer.write(record)


def _metadata(plugin: str, data_class: str) -> tf.compat.v1.SummaryMetadata:
    return tf.compat.v1.SummaryMetadata(
        plugin_data={"plugin_name": plugin}, data_class=data_class
    )
