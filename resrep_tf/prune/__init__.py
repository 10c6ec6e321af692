"""`prune()`: wrap, train, shrink and convert in one call."""

from resrep_tf.prune.changes import difference
from resrep_tf.prune.pruned import PruneReport, prune

__all__ = ["PruneReport", "difference", "prune"]
