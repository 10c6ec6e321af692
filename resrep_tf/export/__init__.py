"""From a Keras model to the files that are deployed, and back from any of them."""

from resrep_tf import lazy

# Imported when asked for: flags need none of them.
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
