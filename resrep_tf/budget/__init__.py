"""Budgets: the cost of a network while its channels are removed."""

from resrep_tf import lazy

# Imported on first use: checking flags needs none of them.
__getattr__ = lazy.attributes(
    __name__,
    {"Budget": "resrep_tf.budget.base", "FlopsMeter": "resrep_tf.budget.flops"},
)

__all__ = ["Budget", "FlopsMeter"]
