"""Latency tables with invented times, and a model wide enough for them."""

import keras
import numpy as np
from keras import layers as L

import resrep_tf
from resrep_tf.budget.latency_table import LatencyTable, OperationTimes
from resrep_tf.budget.operations import operations


def made_up_table(graph, overhead=1e-4, share=0.5):
    """Returns a table for any model, with invented times."""
    by_key = {}
    for op in operations(graph):
        by_key.setdefault(op.key, []).append(op.widths)
    times = {}
    for key, widths in by_key.items():
        tops = [max(axis) for axis in zip(*widths, strict=True)]
        grids = tuple((0, 16 * (top // 16), top) for top in tops)
        grids = tuple(tuple(sorted(set(grid))) for grid in grids)
        points = np.meshgrid(*grids, indexing="ij") if grids else [np.array(1)]
        seconds = 1e-9 * np.prod(points, axis=0)
        times[key] = OperationTimes(grids, seconds, ({16: share},) * len(grids))
    model = graph.model.name
    return LatencyTable(
        model, "litert", 1, 1, ((224, 224, 3),), {}, {}, overhead, times
    )


def goals_of(graph, budget):
    """The targets of a run, by the budget that is asked for."""
    table = made_up_table(graph, overhead=1e-9, share=0.0)
    return {
        "flops": {"flops_target": 0.6},
        "params": {"params_target": 0.6},
        "latency": {"latency_target": 0.6, "latency_table": table},
        "all": {
            "flops_target": 0.3,
            "params_target": 0.6,
            "latency_target": 0.5,
            "latency_table": table,
        },
    }[budget]


def flags_of(model, budget, path):
    """The same as flags of the training command; the table is written to `path`."""
    goals = goals_of(resrep_tf.ChannelGraph(model), budget)
    if "latency_table" in goals:
        goals["latency_table"].save(path)
        goals["latency_table"] = path
    return [f"--{name}={value}" for name, value in goals.items()]


def wide_model(width=64):
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(width, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = L.BatchNormalization(name="bn1")(x)
    x = L.ReLU(name="relu1")(x)
    skip = L.Conv2D(width // 2, 1, activation="relu", name="conv2")(x)
    x = L.Conv2D(width // 2, 3, padding="same", name="conv3")(skip)
    x = L.Add(name="add")([skip, x])
    x = L.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, L.Dense(4, name="logits")(x), name="wide")
