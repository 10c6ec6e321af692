"""Scalars and histograms for TensorBoard, without TensorBoard.

`tf.summary.scalar` and `tf.summary.histogram` are implemented in the package
tensorboard, which TensorFlow does not bring along. What they write is simple: a
tensor, and the name of the plugin that shows it.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from resrep_tf.cli import output

BUCKETS = 30


def scalar(name: str, value: float) -> None:
    """Writes a number, to the default writer at its default step."""
    metadata = _metadata("scalars", "DATA_CLASS_SCALAR")
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)


def histogram(name: str, values: np.ndarray) -> None:
    """Writes a distribution: rows of left edge, right edge and count."""
    counts, edges = np.histogram(np.asarray(values, np.float64), BUCKETS)
    rows = np.stack([edges[:-1], edges[1:], counts], axis=1)
    metadata = _metadata("histograms", "DATA_CLASS_TENSOR")
    tf.summary.write(name, tf.constant(rows, tf.float64), metadata=metadata)


def rewind(folder: Path, step: int) -> None:
    """Removes all that was written after a step, by a run that was then killed."""
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
