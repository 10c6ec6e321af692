"""From a wrapped model to a plain, narrower one; also `python -m resrep_tf.convert`."""

from resrep_tf.convert.conversion import convert
from resrep_tf.convert.report import ConversionReport, LayerChange

__all__ = ["ConversionReport", "LayerChange", "convert"]
