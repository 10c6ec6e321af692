"""All knowledge about layer types: one rule for each type, and nowhere else."""

# The rule modules register themselves when imported.
from resrep_tf.rules import across, channelwise, joins, kernels, shapes  # noqa: F401
from resrep_tf.rules.base import (
    Call,
    ChannelAxis,
    Channelwise,
    Keeps,
    Read,
    Relation,
    Rule,
    Tensor,
    pin_all,
    register,
    rule_for,
)
from resrep_tf.rules.channels import Channels
from resrep_tf.rules.fusion import Fusion
from resrep_tf.rules.kernels import Kernel

__all__ = [
    "Call",
    "ChannelAxis",
    "Channels",
    "Channelwise",
    "Fusion",
    "Keeps",
    "Kernel",
    "Read",
    "Relation",
    "Rule",
    "Tensor",
    "pin_all",
    "register",
    "rule_for",
]
