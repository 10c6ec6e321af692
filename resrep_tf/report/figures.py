"""The paper's figures, from plain numbers: Figs. 2 to 4 and a few more.

Every function returns a `matplotlib.figure.Figure`; `save` writes it as PNG and SVG,
byte for byte the same each time. Nothing touches pyplot or its global state.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resrep_tf.report.plotting import (  # noqa: F401
    BLUE,
    COLUMN,
    INK,
    PAGE,
    SHADE,
    VERMILLION,
    legend,
    look,
    new_figure,
    note,
    percent,
    plain,
    save,
    styled,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More layers than this have no room for their names.
MOST_NAMES = 30
# More lines than this cannot be told apart.
MOST_LINES = 60

_STAGE = re.compile(r"stage\d+|conv\d+(?=_block)|block\d+(?=_)|layer\d+(?=[._])")


@dataclass(frozen=True)
class LayerWidth:
    """A layer's output channels, before and after.

    Attributes:
        name: The layer's name.
        before: Its width in the original model.
        after: Its width in the pruned model.
        stage: The stage it belongs to; guessed from the name if None.
    """

    name: str
    before: int
    after: int
    stage: str | None = None


@dataclass(frozen=True)
class Point:
    """What a method achieved in a run."""

    method: str
    flops_removed: float
    accuracy: float


@dataclass(frozen=True)
class Pair:
    """Two series over the same epochs.

    Attributes:
        name: The method's name.
        epochs: When.
        solid: The first series: of the whole model, or of what survives.
        dashed: The second one: of the pruned model, or of what is pruned.
    """

    name: str
    epochs: Sequence[float]
    solid: Sequence[float]
    dashed: Sequence[float]


# === Widths ===


@styled
def widths(layers: Sequence[LayerWidth]) -> "Figure":
    """The final width of every target layer, before and after (Fig. 3).

    Few layers are listed by name; many stand side by side, by their stages.
    """
    if not layers:
        raise ValueError("`layers` must not be empty. Received: layers=()")
    few = len(layers) <= MOST_NAMES
    figure = new_figure(*((COLUMN, 0.7 + 0.17 * len(layers)) if few else (PAGE, 2.4)))
    axes = figure.subplots()
    (_list_widths if few else _line_up_widths)(axes, layers)
    legend(axes)
    return figure


def _list_widths(axes: "Axes", layers: Sequence[LayerWidth]) -> None:
    rows = np.arange(len(layers))
    before = [layer.before for layer in layers]
    axes.barh(rows, before, 0.72, color=SHADE, label="original")
    axes.barh(rows, [layer.after for layer in layers], 0.72, color=BLUE, label="pruned")
    for row, layer in zip(rows, layers, strict=True):
        text = f"{layer.after} of {layer.before}"
        axes.annotate(
            text,
            (layer.before, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6,
        )
    axes.set_yticks(rows, [plain(_shortened(layer.name)) for layer in layers])
    axes.tick_params("y", length=0)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlim(0, 1.22 * max(before))  # Room for the numbers.
    whole_numbers(axes.xaxis)
    axes.set_xlabel("width (channels)")
    for start, _, _ in list(_stages(layers))[1:]:
        axes.axhline(start - 0.5, color=INK, linewidth=0.5, linestyle=(0, (4, 3)))


def _line_up_widths(axes: "Axes", layers: Sequence[LayerWidth]) -> None:
    columns = np.arange(len(layers))
    before = [layer.before for layer in layers]
    # Steps without gaps, which stay clear however many there are.
    edges = np.arange(len(layers) + 1) - 0.5
    axes.stairs(before, edges, fill=True, color=SHADE, label="original")
    axes.bar(
        columns, [layer.after for layer in layers], 0.75, color=BLUE, label="pruned"
    )
    axes.set_xlim(-0.5, len(layers) - 0.5)
    axes.set_ylim(0, 1.12 * max(before))
    whole_numbers(axes.yaxis)
    axes.set_ylabel("width (channels)")
    axes.set_xlabel("target layer, from input to output")
    stages = list(_stages(layers))
    axes.set_xticks([0, len(layers) - 1], ["1", str(len(layers))])
    for start, end, stage in stages:
        if start:
            axes.axvline(start - 0.5, color=INK, linewidth=0.5, linestyle=(0, (4, 3)))
        if len(stages) > 1 and (end - start) / len(layers) > 0.012 * len(stage):
            top = ((start + end - 1) / 2, 1.0)
            where = {"xycoords": ("data", "axes fraction"), "va": "top", "ha": "center"}
            axes.annotate(plain(stage), top, fontsize=7, **where)


def _stages(layers: Sequence[LayerWidth]) -> Iterator[tuple[int, int, str]]:
    """Runs of layers of one stage, as (start, end, name)."""
    names = []
    for layer in layers:
        found = _STAGE.search(layer.name)
        names.append(layer.stage or (found.group() if found else ""))
    start = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[start]:
            yield start, end, names[start]
            start = end


def _shortened(name: str, most: int = 32) -> str:
    """A long name without its middle: both ends tell layers apart."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


# === Methods against each other ===


@styled
def tradeoff(points: Sequence[Point], base_accuracy: float | None = None) -> "Figure":
    """FLOPs reduction against accuracy, method by method (Fig. 4, left)."""
    figure = new_figure(COLUMN, 2.6)
    axes = figure.subplots()
    methods = list(dict.fromkeys(point.method for point in points))
    for number, method in enumerate(methods):
        found = sorted(
            (p.flops_removed, p.accuracy) for p in points if p.method == method
        )
        axes.plot(*zip(*found, strict=True), label=plain(method), **look(number, True))
    if base_accuracy is not None:
        axes.axhline(base_accuracy, color=INK, linewidth=0.8, linestyle=":")
        note(axes, "original model", base_accuracy)
    percent(axes.xaxis)
    percent(axes.yaxis)
    axes.margins(0.06, 0.1)
    axes.set_xlabel("FLOPs removed (%)")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.grid(axis="y")
    legend(axes)
    return figure


@styled
def accuracies(points: Sequence[Point], base_accuracy: float | None = None) -> "Figure":
    """The accuracy of every run, method by method; a bar is a method's mean."""
    methods = list(dict.fromkeys(point.method for point in points))
    figure = new_figure(PAGE, 0.8 + 0.24 * len(methods))
    axes = figure.subplots()
    for row, method in enumerate(methods):
        found = [point.accuracy for point in points if point.method == method]
        axes.plot(found, [row] * len(found), **{**look(0, True), "linestyle": ""})
        axes.plot(np.mean(found), row, color=INK, marker="|", markersize=11)
    if base_accuracy is not None:
        axes.axvline(base_accuracy, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            "original model",
            (base_accuracy, 1),
            (0, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=6.5,
        )
    axes.set_yticks(range(len(methods)), [plain(method) for method in methods])
    axes.tick_params("y", length=0)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.margins(x=0.04)
    percent(axes.xaxis)
    axes.set_xlabel("top-1 accuracy (%)")
    axes.grid(axis="x")
    return figure


@styled
def recovery(pairs: Sequence[Pair]) -> "Figure":
    """Accuracy before and after pruning, by epoch (Fig. 4, middle).

    Args:
        pairs: For each method, the accuracy of the whole model and of the model that
            has been pruned at that epoch to the final structure.
    """
    figure, axes = _draw_pairs(pairs, ("original", "pruned"))
    percent(axes.yaxis)
    axes.set_ylabel("top-1 accuracy (%)")
    return figure


@styled
def magnitudes(pairs: Sequence[Pair]) -> "Figure":
    """Quadratic sums of surviving and to-be-pruned parameters (Fig. 4, right).

    On a logarithmic scale. Where a sum becomes exactly zero, an arrow says so.

    Args:
        pairs: For each method, the sum of squares of the parameters that survive in
            the final structure, and of those that do not.
    """
    figure, axes = _draw_pairs(pairs, ("survive", "to be pruned"))
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylabel("sum of squared parameters")
    for number, pair in enumerate(pairs):
        colour = look(number)["color"]
        zero = [e for e, v in zip(pair.epochs, pair.dashed, strict=True) if v == 0]
        # In axes coordinates: zero has no place on a logarithmic axis.
        for epoch in zero[:1]:
            place = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(epoch, 0.02, color=colour, marker="v", **place)
            place = {"xycoords": place["transform"], "textcoords": "offset points"}
            axes.annotate("0", (epoch, 0.02), (5, 0), color=colour, **place)
    return figure


def _draw_pairs(
    pairs: Sequence[Pair], meanings: tuple[str, str]
) -> tuple["Figure", "Axes"]:
    figure = new_figure(COLUMN, 2.6)
    axes = figure.subplots()
    for number, pair in enumerate(pairs):
        prefix = f"{plain(pair.name)}, " if len(pairs) > 1 else ""
        for values, meaning, style in [
            (pair.solid, meanings[0], "-"),
            (pair.dashed, meanings[1], (0, (3, 1.5))),
        ]:
            values = np.asarray(values, float)
            axes.plot(
                pair.epochs,
                np.where(values > 0, values, np.nan),
                label=f"{prefix}{meaning}",
                **{**look(number), "linestyle": style},
            )
    _over_epochs(axes)
    legend(axes)
    return figure, axes


def _over_epochs(axes: "Axes") -> None:
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    whole_numbers(axes.xaxis)


# === A run ===

_QUANTITIES = {
    "loss": "training loss",
    "val_loss": "validation loss",
    "accuracy": "training accuracy (%)",
    "val_accuracy": "validation accuracy (%)",
    "flops_removed": "FLOPs removed (%)",
    "forgotten": "masked channels forgotten (%)",
}


@styled
def curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    columns: Sequence[str] = ("loss", "val_accuracy"),
) -> "Figure":
    """Metrics by epoch, one panel for each column (Fig. 2 with several runs).

    Args:
        runs: For each run's name, its rows of `metrics.csv`. Cells may be text, and
            may be empty.
        columns: Which metrics.
    """
    figure = new_figure(COLUMN if len(columns) == 1 else PAGE, 2.5)
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        for number, (name, rows) in enumerate(runs.items()):
            known = [row for row in rows if row.get(column) not in (None, "")]
            axes.plot(
                [float(row["epoch"]) for row in known],
                [float(row[column]) for row in known],
                label=plain(name),
                # A single epoch would be invisible as a line.
                **look(number, markers=len(known) == 1),
            )
        label = _QUANTITIES.get(column, column.replace("_", " "))
        if label.endswith("(%)"):
            percent(axes.yaxis)
        axes.set_ylabel(label)
        _over_epochs(axes)
    if len(runs) > 1:
        legend(panels[0])
    return figure


@styled
def progress(
    rows: Sequence[Mapping[str, Any]], flops_target: float | None = None
) -> "Figure":
    """How pruning went: FLOPs of the masked channels, and how many are forgotten.

    Args:
        rows: Rows of `metrics.csv` with `epoch`, `flops_removed` and `forgotten`.
        flops_target: Where `flops_removed` was to go.
    """
    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    epochs = [float(row["epoch"]) for row in rows]
    for number, (column, label) in enumerate(
        [("flops_removed", "FLOPs masked"), ("forgotten", "masked and forgotten")]
    ):
        values = [float(row[column]) for row in rows]
        axes.plot(epochs, values, label=label, **look(number, len(rows) == 1))
    if flops_target is not None:
        axes.axhline(flops_target, color=INK, linewidth=0.8, linestyle=":")
        note(axes, "target", flops_target)
    percent(axes.yaxis)
    axes.set_ylim(-0.02, 1.04)
    axes.set_ylabel("share (%)")
    _over_epochs(axes)
    legend(axes)
    return figure


@styled
def norms(
    steps: Sequence[float],
    values: np.ndarray,
    kept: Sequence[bool],
    epsilon: float | None = None,
    unit: str = "training step",
) -> "Figure":
    """How the norms of compactor rows went apart during training.

    Args:
        steps: When norms were taken.
        values: One row for each of `steps`, with a norm for each compactor row.
        kept: For each compactor row, whether it survived.
        epsilon: The norm below which rows are dropped.
        unit: What `steps` counts.
    """
    values, kept = np.asarray(values, float), np.asarray(kept, bool)
    if values.shape != (len(steps), len(kept)):
        raise ValueError(
            f"`values` must be {len(steps)} steps by {len(kept)} rows. "
            f"Received: values of shape {values.shape}"
        )
    figure = new_figure(COLUMN, 2.6)
    axes = figure.subplots()
    # Exact zeros have no place on a logarithmic axis; they stand at its foot.
    floor = 0.1 * min(values[values > 0].min(initial=1.0), epsilon or 1.0)
    for group, colour, label in [
        (kept, BLUE, f"survive ({int(kept.sum()):,})"),
        (~kept, VERMILLION, f"forgotten ({int((~kept).sum()):,})"),
    ]:
        rows = np.flatnonzero(group)
        # Evenly spaced among their final norms, so that the spread is shown.
        rows = rows[np.argsort(values[-1, rows], kind="stable")]
        rows = rows[:: math.ceil(len(rows) / MOST_LINES) or 1]
        lines = np.maximum(values[:, rows], floor)
        alpha = float(np.clip(12 / max(len(rows), 1), 0.12, 0.8))
        axes.plot(steps, lines, color=colour, linewidth=0.8, alpha=alpha)
        axes.plot([], [], color=colour, label=label)
    axes.set_yscale("log")
    axes.minorticks_off()
    if epsilon is not None:
        axes.axhline(epsilon, color=INK, linewidth=0.8, linestyle=":")
        note(axes, f"epsilon = {epsilon:g}", epsilon)
    axes.set_xlabel(unit)
    axes.set_ylabel("norm of a compactor row")
    whole_numbers(axes.xaxis)
    legend(axes)
    return figure
