"""All of it in one call, for those who want no parts."""

from resrep_tf.prune.changes import difference
from resrep_tf.prune.pruned import PruneReport, prune

__all__ = ["PruneReport", "difference", "prune"]
