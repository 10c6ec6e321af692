"""From a Keras model to the files that are deployed, and back from any of them."""

from resrep_tf.export.exporting import FORMATS, export
from resrep_tf.export.reading.loading import Predictor, load
from resrep_tf.export.report import ExportReport

# `resrep_tf.export` is the function, which hides this package: `resrep_tf.export.load`
# is found on the function.
export.load = load  # type: ignore[attr-defined]

__all__ = ["FORMATS", "ExportReport", "Predictor", "export", "load"]
