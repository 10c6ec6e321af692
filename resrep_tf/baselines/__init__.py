"""Methods to compare ResRep with: criteria, the minimal structure, ablations."""

# Registers the kind of compactor "filters".
from resrep_tf.baselines import filters  # noqa: F401
