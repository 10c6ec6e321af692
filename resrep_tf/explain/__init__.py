"""Explains what can be pruned; also `python -m resrep_tf.explain`."""

from typing import TYPE_CHECKING

from resrep_tf import lazy

if TYPE_CHECKING:
    from resrep_tf.explain.explanation import Explanation, count_flops, explain

__all__ = ["Explanation", "count_flops", "explain"]

__getattr__ = lazy.attributes(
    __name__, dict.fromkeys(__all__, "resrep_tf.explain.explanation")
)
