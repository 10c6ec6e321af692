"""Writes a Keras model to files for deployment, and loads any of these."""

from resrep_tf import lazy

# Imported on first use: checking flags needs none of them.
__getattr__ = lazy.attributes(
    __name__,
    {
        "FORMATS": "resrep_tf.export.exporting",
        "ExportReport": "resrep_tf.export.report",
        "Predictor": "resrep_tf.export.reading.loading",
        "export": "resrep_tf.export.exporting",
        "load": "resrep_tf.export.reading.loading",
    },
)

__all__ = ["FORMATS", "ExportReport", "Predictor", "export", "load"]
