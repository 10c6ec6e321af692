"""Measures how long the operations of a model take on this machine."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import keras
import numpy as np

from resrep_tf.budget.latency_table import LatencyTable, OperationTimes
from resrep_tf.budget.operations import build_whole, operations
from resrep_tf.budget.points import (
    BUNDLES,
    Point,
    Points,
    Shares,
    kind_of,
    largest_bundle,
    points_of,
)
from resrep_tf.budget.runtimes import Run, Runtime, machine, runtime_for
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.propagation import Link

# Whole models whose layers keep shares between these limits. The sum of operations is
# fitted to their times; the last model is left out, to test the prediction.
_THINNED = (
    ("wide layers", 0.7, 1.0),
    ("middling layers", 0.4, 0.9),
    ("narrow layers", 0.2, 0.6),
    ("hardly any channels", 0.0, 0.1),
    ("random widths", 0.3, 0.9),
)
# Copies of a short operation in one model: calling the model takes longer than it.
_COPIES = 4
# Multiply-adds up to which an operation is short.
_SHORT_WORK = 20_000_000
# The most parameters of all models that are in memory, and timed in turns, at once.
_IN_MEMORY = 60_000_000


def measure_latency(
    model: keras.Model,
    runtime: str | Runtime = "litert",
    batch_size: int = 1,
    threads: int | None = None,
    input_shape: Sequence | None = None,
    rounds: int = 15,
    verbose: bool = True,
) -> LatencyTable:
    """Measures the operations of a model, each alone, at many widths.

    The sum of the measured times predicts how long the model takes with any of its
    channels removed. Measure on the machine, and with the runtime, batch size and
    number of threads, on which the pruned model is to be fast. The prediction is an
    estimate: print the table, which compares it with your model's own latency, before
    you rely on it. `docs/budgets.md` shows how good it was in some trials.

    Args:
        model: A Functional or Sequential model; its weights do not matter.
        runtime: `"litert"`, `"saved_model"` or `"keras"`.
        batch_size: The number of examples in a call.
        threads: By default as many as the runtime chooses. With 1, CPU time is
            measured, which other programs disturb least. TensorFlow's own number of
            threads is to be set with `tf.config.threading`.
        input_shape: The shape of one example, where the model leaves it open.
        rounds: How often every operation is run; the second-fastest run counts.
        verbose: Whether to show the progress.

    Example:

    ```python
    table = resrep_tf.measure_latency(model, threads=1, rounds=2, verbose=False)
    table.save("latency.json")
    selection = resrep_tf.ChannelSelection(
        latency_target=0.3, latency_table="latency.json"
    )
    ```
    """
    _check(batch_size, rounds)
    runtime = runtime_for(runtime, threads)
    graph = ChannelGraph(model, input_shape)
    plans = points_of(operations(graph))
    points = [p for plan in plans.values() for p in plan.all()]
    overhead = _measure(points, runtime, batch_size, rounds, threads == 1, verbose)
    whole = _measure_whole(graph, runtime, batch_size, rounds)
    empty = LatencyTable(
        model=model.name,
        runtime=runtime.name,
        batch_size=batch_size,
        threads=threads,
        input_shapes=tuple(shape[1:] for shape in graph.input_shapes),
        machine=machine(),
        versions=runtime.versions(),
        overhead=overhead,
        operations={},
    )
    return _checked(_fitted(empty, graph, plans, whole), graph, whole)


def _check(batch_size: int, rounds: int) -> None:
    if batch_size < 1 or rounds < 2:
        raise ValueError(
            "`batch_size` must be at least 1 and `rounds` at least 2. "
            f"Received: batch_size={batch_size}, rounds={rounds}"
        )


# === Measuring ===


def _measure(
    points: list[Point],
    runtime: Runtime,
    batch_size: int,
    rounds: int,
    one_thread: bool,
    verbose: bool,
) -> float:
    """Sets the times of every point, and returns that of an empty model."""
    # On several threads, operations that stand side by side might run at once.
    repeats = runtime.repeats and one_thread
    bar = keras.utils.Progbar(len(points), unit_name="operation") if verbose else None
    overheads = []
    for batch in _batches(points):
        models = [_empty(), *(point.op.build(point.widths) for point in batch)]
        short = [p for p in batch if repeats and p.work * batch_size < _SHORT_WORK]
        models += [point.op.build(point.widths, _COPIES) for point in short]
        times = _take_turns(runtime.prepare(models, batch_size), runtime, rounds)
        # An empty model takes the time of the call alone. Its second run counts, as
        # the call's own code and data are always in the caches.
        cold, warm = times - times[1, 0]
        overheads.append(times[1, 0])
        for place, point in enumerate(batch, start=1):
            point.cold, point.warm = float(cold[place]), float(warm[place])
        for place, point in enumerate(short, start=1 + len(batch)):
            point.warm = float(warm[place] - point.warm) / (_COPIES - 1)
        if bar is not None:
            bar.add(len(batch))
    return float(np.median(overheads))


def _batches(points: list[Point]) -> Iterable[list[Point]]:
    """Cuts the list into parts that fit into memory."""
    batch: list[Point] = []
    size = 0
    for point in points:
        if batch and size + point.parameters > _IN_MEMORY:
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += point.parameters
    if batch:
        yield batch


def _empty() -> keras.Model:
    """Builds a model that hardly does anything: what is left is the call itself."""
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Activation("relu")(inputs))


def _take_turns(runs: Sequence[Run], runtime: Runtime, rounds: int) -> np.ndarray:
    """Times all models in turn, so that other work of the machine slows all alike.

    Returns:
        The time of the first and of the second run of each turn, `(2, models)`. Of
        all rounds, the second-fastest counts: the fastest may be luck, and slower
        ones were disturbed by other work of the machine.
    """
    taken = np.zeros((rounds, 2, len(runs)))
    for run in runs:
        run()  # Tracing and the first allocations.
    for number in range(rounds):
        for place, run in enumerate(runs):
            for again in range(2):
                begin = runtime.clock()
                run()
                taken[number, again, place] = runtime.clock() - begin
    return np.sort(taken, axis=0)[1]


def _measure_whole(
    graph: ChannelGraph, runtime: Runtime, batch_size: int, rounds: int
) -> dict[str, tuple[np.ndarray, float]]:
    """Measures the whole model and thinned ones; returns times and kept channels."""
    entered = [id(step.target) for step in graph.steps if isinstance(step, Link)]
    if len(set(entered)) < len(entered):
        return {}  # A nested model is called more than once; `build_whole` is flat.
    rng = np.random.default_rng(0)
    keeps = {"all channels": np.ones(graph.num_channels, bool)}
    for name, least, most in _THINNED:
        keeps[name] = _thinned(graph, rng, least, most)
    models = [build_whole(graph, keep) for keep in keeps.values()]
    times = _take_turns(runtime.prepare(models, batch_size), runtime, rounds).mean(0)
    return {
        name: (keep, float(seconds))
        for (name, keep), seconds in zip(keeps.items(), times, strict=True)
    }


def _thinned(
    graph: ChannelGraph, rng: np.random.Generator, least: float, most: float
) -> np.ndarray:
    """Keeps a random share of every layer's channels, between two limits."""
    kept = np.ones(graph.num_channels, bool)
    for space in graph.spaces:
        if space.prunable and space.internal:
            kept[space.channels] = rng.random(space.width) < rng.uniform(least, most)
            kept[space.channels[0]] = True
    wholes = [p.channels for space in graph.spaces for p in space.producers]
    for part in graph.parts(wholes):
        kept[part[0]] = True
    return kept


# === From points to tables ===


def _checked(
    table: LatencyTable, graph: ChannelGraph, whole: dict[str, tuple[np.ndarray, float]]
) -> LatencyTable:
    """Returns the table with its predictions for the whole models."""
    checks = {
        name: {"measured": seconds, "predicted": table.predict(graph, keep)}
        for name, (keep, seconds) in whole.items()
    }
    return replace(table, checks=checks)


def _fitted(
    table: LatencyTable,
    graph: ChannelGraph,
    plans: dict[str, Points],
    whole: dict[str, tuple[np.ndarray, float]],
) -> LatencyTable:
    """Returns the table with operation times that are fitted to whole models.

    When an operation is timed alone, its caches are either cold or warm, and the time
    to start it cannot be separated from that of the call. So the times of whole models
    at several widths decide the weights of both measurements, and the overhead.
    """
    known = [whole[name] for name in list(whole)[:-1]]
    if not known:
        return _filled(table, plans, (0.5, 0.5))
    alone = replace(table, overhead=0.0)
    sides = [_filled(alone, plans, shares) for shares in ((1.0, 0.0), (0.0, 1.0))]
    # In units of the whole model's time, so that a thin model counts as much.
    equations = [
        (np.array([*(side.predict(graph, keep) for side in sides), 1e-3]) / time, 1.0)
        for keep, time in known
    ]
    cold, warm, milliseconds = _nonnegative_fit(equations).tolist()
    return _filled(replace(table, overhead=1e-3 * milliseconds), plans, (cold, warm))


def _filled(
    table: LatencyTable, plans: dict[str, Points], shares: Shares
) -> LatencyTable:
    """Returns the table with the times of all operations."""
    bundles = _fit_bundles(plans, shares)
    times = {
        key: OperationTimes(plan.grids, plan.grid_times(shares), bundles[key])
        for key, plan in plans.items()
    }
    return replace(table, operations=times, shares=shares)


def _fit_bundles(
    plans: dict[str, Points], shares: Shares
) -> dict[str, tuple[dict[int, float], ...]]:
    """Returns, for each axis, the share of an incomplete bundle's missing cost.

    Single measurements are too noisy for it, so operations of the same kind, for all
    sizes of images, are fitted together.
    """
    rows: dict[tuple[str, int], list[tuple[np.ndarray, float]]] = {}
    for key, plan in plans.items():
        times = plan.grid_times(shares)
        plain = OperationTimes(plan.grids, times, ({},) * len(plan.grids))
        for axis, points in plan.short.items():
            kind = (kind_of(key), axis)
            rows.setdefault(kind, []).extend(_bundle_rows(plain, axis, points, shares))
    found = {kind: _nonnegative_fit(each) for kind, each in rows.items() if each}
    return {
        key: tuple(
            {
                size: float(share)
                for size, share in zip(
                    BUNDLES, found.get((kind_of(key), axis), ()), strict=False
                )
                if share > 0.05
            }
            for axis in range(len(plan.grids))
        )
        for key, plan in plans.items()
    }


def _bundle_rows(
    plain: OperationTimes, axis: int, points: list[Point], shares: Shares
) -> list[tuple[np.ndarray, float]]:
    """Returns equations for the shares, in units of the whole operation's time."""
    full, *others = points
    largest = largest_bundle(full.widths[axis])
    low = list(full.widths)
    low[axis] -= largest
    slope = (plain.at(full.widths) - plain.at(low)) / largest
    whole = full.seconds(shares)
    if whole <= 0 or slope <= 0:
        return []
    rows = []
    sizes = np.array(BUNDLES)
    for point in others:
        missing = np.where(sizes <= largest, -point.widths[axis] % sizes, 0)
        less = full.widths[axis] - point.widths[axis]
        # The cost above the straight line through the full bundles.
        paid = point.seconds(shares) - (whole - slope * less)
        rows.append((missing * slope / whole, paid / whole))
    return rows


def _nonnegative_fit(equations: list[tuple[np.ndarray, float]]) -> np.ndarray:
    """Solves least squares for a few unknowns that must not be negative."""
    left = np.array([row for row, _ in equations])
    right = np.array([value for _, value in equations])
    solutions = [np.zeros(left.shape[1])]
    for free in product((False, True), repeat=left.shape[1]):
        columns = np.flatnonzero(free)
        found = np.zeros(left.shape[1])
        found[columns] = np.linalg.lstsq(left[:, columns], right, rcond=None)[0]
        if (found >= 0).all():
            solutions.append(found)
    return min(solutions, key=lambda found: np.square(left @ found - right).sum())
