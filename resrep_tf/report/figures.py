"""Draws the paper's Figs. 2 to 4, and a few more, from plain numbers.

Every function returns a `matplotlib.figure.Figure`; `save` writes it as PNG and SVG,
with the same bytes each time. pyplot and its global state are not used.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resrep_tf.report.plotting import (
    BLUE,
    COLUMN,
    INK,
    MOST_NAMES,
    PAGE,
    SHADE,
    legend,
    look,
    new_figure,
    note,
    over_epochs,
    percent,
    plain,
    save,
    shortened,
    styled,
    whole_numbers,
)
from resrep_tf.report.progress_figures import (
    LayerHistory,
    channels,
    curves,
    norms,
    progress,
)

__all__ = [
    "LayerHistory",
    "LayerWidth",
    "Pair",
    "Point",
    "accuracies",
    "channels",
    "curves",
    "magnitudes",
    "norms",
    "progress",
    "recovery",
    "save",
    "tradeoff",
    "widths",
]

_STAGE = re.compile(r"stage\d+|conv\d+(?=_block)|block\d+(?=_)|layer\d+(?=[._])")


@dataclass(frozen=True)
class LayerWidth:
    """A layer's output channels, before and after.

    Attributes:
        name: The layer's name.
        before: Its width in the base.
        after: Its width in the pruned model.
        stage: The stage it belongs to; guessed from the name if None.
    """

    name: str
    before: int
    after: int
    stage: str | None = None


@dataclass(frozen=True)
class Point:
    """The result of a method in a run."""

    method: str
    flops_removed: float
    accuracy: float


@dataclass(frozen=True)
class Pair:
    """Two series over the same epochs.

    Attributes:
        name: The method's name.
        epochs: The epochs.
        solid: The first series: of the whole model, or of the rows that stay.
        dashed: The second series: of the pruned model, or of the pruned rows.
    """

    name: str
    epochs: Sequence[float]
    solid: Sequence[float]
    dashed: Sequence[float]


# === Widths ===


@styled
def widths(layers: Sequence[LayerWidth]) -> Figure:
    """Draws the width of every target layer, before and after (Fig. 3).

    A few layers are listed by name; many are shown side by side, by stages.
    """
    if not layers:
        raise ValueError("`layers` must not be empty. Received: layers=()")
    few = len(layers) <= MOST_NAMES
    figure = new_figure(*((COLUMN, 0.7 + 0.17 * len(layers)) if few else (PAGE, 2.4)))
    axes = figure.subplots()
    (_list_widths if few else _line_up_widths)(axes, layers)
    legend(axes)
    return figure


def _list_widths(axes: Axes, layers: Sequence[LayerWidth]) -> None:
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
    axes.set_yticks(rows, [plain(shortened(layer.name)) for layer in layers])
    axes.tick_params("y", length=0)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlim(0, 1.22 * max(before))  # Room for the numbers.
    whole_numbers(axes.xaxis)
    axes.set_xlabel("width (channels)")
    for start, _, _ in list(_stages(layers))[1:]:
        axes.axhline(start - 0.5, color=INK, linewidth=0.5, linestyle=(0, (4, 3)))


def _line_up_widths(axes: Axes, layers: Sequence[LayerWidth]) -> None:
    columns = np.arange(len(layers))
    before = [layer.before for layer in layers]
    # Bars without gaps stay readable however many there are.
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
    """Yields groups of neighbouring layers of one stage: start, end and name."""
    names = []
    for layer in layers:
        found = _STAGE.search(layer.name)
        names.append(layer.stage or (found.group() if found else ""))
    start = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[start]:
            yield start, end, names[start]
            start = end


# === Comparing methods ===


@styled
def tradeoff(points: Sequence[Point], base_accuracy: float | None = None) -> Figure:
    """Draws FLOPs reduction against accuracy, method by method (Fig. 4, left)."""
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
        note(axes, "base", base_accuracy)
    percent(axes.xaxis)
    percent(axes.yaxis)
    axes.margins(0.06, 0.1)
    axes.set_xlabel("FLOPs removed (%)")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.grid(axis="y")
    legend(axes)
    return figure


@styled
def accuracies(points: Sequence[Point], base_accuracy: float | None = None) -> Figure:
    """Draws the accuracy of every run, method by method, and each mean as a bar."""
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
            "base",
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
def recovery(pairs: Sequence[Pair]) -> Figure:
    """Draws accuracy before and after pruning, by epoch (Fig. 4, middle).

    Args:
        pairs: For each method, the accuracy of the whole model and of the model that
            has been pruned at that epoch to the final structure.
    """
    figure, axes = _draw_pairs(pairs, ("original", "pruned"))
    percent(axes.yaxis)
    axes.set_ylabel("top-1 accuracy (%)")
    return figure


@styled
def magnitudes(pairs: Sequence[Pair]) -> Figure:
    """Draws squared sums of parameters that stay or are pruned (Fig. 4, right).

    The scale is logarithmic. Where a sum becomes exactly zero, an arrow marks it.

    Args:
        pairs: For each method, the sum of squares of the parameters that stay in the
            final structure, and of those that do not.
    """
    figure, axes = _draw_pairs(pairs, ("survive", "to be pruned"))
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylabel("sum of squared parameters")
    for number, pair in enumerate(pairs):
        colour = look(number)["color"]
        zero = [e for e, v in zip(pair.epochs, pair.dashed, strict=True) if v == 0]
        # In axes coordinates, since a logarithmic axis has no zero.
        for epoch in zero[:1]:
            place = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(epoch, 0.02, color=colour, marker="v", **place)
            place = {"xycoords": place["transform"], "textcoords": "offset points"}
            axes.annotate("0", (epoch, 0.02), (5, 0), color=colour, **place)
    return figure


def _draw_pairs(
    pairs: Sequence[Pair], meanings: tuple[str, str]
) -> tuple[Figure, Axes]:
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
    over_epochs(axes)
    legend(axes)
    return figure, axes
