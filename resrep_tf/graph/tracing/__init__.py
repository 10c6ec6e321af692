"""`trace()`: turns models without a graph into Functional models."""

from resrep_tf.graph.keras_calls import has_graph
from resrep_tf.graph.tracing.report import Opaque, TraceReport, check_copyable
from resrep_tf.graph.tracing.trace_model import needs_tracing, trace

__all__ = [
    "Opaque",
    "TraceReport",
    "check_copyable",
    "has_graph",
    "needs_tracing",
    "trace",
]
