"""Imports every class that Keras must know to load a model of this package."""

from resrep_tf.baselines import filters
from resrep_tf.data import heads
from resrep_tf.graph.tracing import lifted
from resrep_tf.pruning import compactor, model, replicas
from resrep_tf.teacher import distillation

__all__ = [
    "compactor",
    "distillation",
    "filters",
    "heads",
    "lifted",
    "model",
    "replicas",
]
