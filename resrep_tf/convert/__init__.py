"""From a wrapped model to a plain, narrower one; also `python -m resrep_tf.convert`."""

from resrep_tf.convert.conversion import UnfinishedWarning, convert
from resrep_tf.convert.report import ConversionReport, LayerChange
from resrep_tf.pruning.rows import Unforgotten, unforgotten

__all__ = [
    "ConversionReport",
    "LayerChange",
    "UnfinishedWarning",
    "Unforgotten",
    "convert",
    "unforgotten",
]
