"""What can be pruned and why not; also `python -m resrep_tf.explain`."""

from resrep_tf.explain.explanation import Explanation, count_flops, explain

__all__ = ["Explanation", "count_flops", "explain"]
