"""From a wrapped model to a plain, narrower one; also `python -m resrep_tf.convert`."""

from typing import TYPE_CHECKING

from resrep_tf import lazy

if TYPE_CHECKING:
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

__getattr__ = lazy.attributes(
    __name__,
    {
        "ConversionReport": "resrep_tf.convert.report",
        "LayerChange": "resrep_tf.convert.report",
        "UnfinishedWarning": "resrep_tf.convert.conversion",
        "Unforgotten": "resrep_tf.pruning.rows",
        "convert": "resrep_tf.convert.conversion",
        "unforgotten": "resrep_tf.pruning.rows",
    },
)
