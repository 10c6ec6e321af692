"""Budgets: the cost of a network while its channels are removed."""

from resrep_tf.budget.base import Budget
from resrep_tf.budget.flops import FlopsMeter

__all__ = ["Budget", "FlopsMeter"]
