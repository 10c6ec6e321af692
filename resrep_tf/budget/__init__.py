"""Budgets: the cost of a network while its channels are removed."""

from resrep_tf import lazy

# Imported when asked for: flags need none of them.
__getattr__ = lazy.attributes(
    __name__,
    {"Budget": "resrep_tf.budget.base", "FlopsMeter": "resrep_tf.budget.flops"},
)

__all__ = ["Budget", "FlopsMeter"]
