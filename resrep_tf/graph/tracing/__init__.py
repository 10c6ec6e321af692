"""Draws models that nobody has drawn: `trace`."""

from resrep_tf.graph.tracing.report import Opaque, TraceReport, check_copyable
from resrep_tf.graph.tracing.trace_model import needs_tracing, trace

__all__ = ["Opaque", "TraceReport", "check_copyable", "needs_tracing", "trace"]
