"""Names of what ResRep is compared with, known without importing TensorFlow."""

# The criteria, in the order of `criteria.CRITERIA`.
CRITERIA = ("random", "uniform", "l1", "l2", "fpgm", "bn_gamma", "taylor")
# The kind of compactor that forgets a layer's own filters.
FILTERS = "filters"
