"""Tables of latencies that nobody measured."""

import numpy as np

from resrep_tf.budget.latency_table import LatencyTable, OperationTimes
from resrep_tf.budget.operations import operations


def made_up_table(graph, overhead=1e-4):
    """A table for any model, of times that nobody measured."""
    by_key = {}
    for op in operations(graph):
        by_key.setdefault(op.key, []).append(op.widths)
    times = {}
    for key, widths in by_key.items():
        tops = [max(axis) for axis in zip(*widths, strict=True)]
        grids = tuple((1, 16 * (top // 16), top) for top in tops)
        grids = tuple(tuple(sorted({max(w, 1) for w in grid})) for grid in grids)
        points = np.meshgrid(*grids, indexing="ij") if grids else [np.array(1)]
        seconds = 1e-9 * np.prod(points, axis=0)
        times[key] = OperationTimes(grids, seconds, ({16: 0.5},) * len(grids))
    model = graph.model.name
    return LatencyTable(
        model, "litert", 1, 1, ((224, 224, 3),), {}, {}, overhead, times
    )
