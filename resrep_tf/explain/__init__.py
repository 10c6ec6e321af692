"""Explains what can be pruned; also `python -m resrep_tf.explain`."""

from resrep_tf.explain.explanation import Explanation, count_flops, explain

__all__ = ["Explanation", "count_flops", "explain"]
