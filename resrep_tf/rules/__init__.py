"""What the library knows about layer types: one rule per type, nowhere else."""

# The rule modules register themselves when imported.
from resrep_tf.rules import channelwise, joins, kernels, shapes  # noqa: F401
from resrep_tf.rules.base import (
    Call,
    Channels,
    Channelwise,
    Keeps,
    Read,
    Rule,
    Tensor,
    register,
    rule_for,
)
from resrep_tf.rules.kernels import Fusion, Kernel

__all__ = [
    "Call",
    "Channels",
    "Channelwise",
    "Fusion",
    "Keeps",
    "Kernel",
    "Read",
    "Rule",
    "Tensor",
    "register",
    "rule_for",
]
