"""Draws the progress of a run, epoch by epoch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from resrep_tf.report.plotting import (
    BLUE,
    COLUMN,
    INK,
    MOST_NAMES,
    PAGE,
    SHADE,
    VERMILLION,
    legend,
    look,
    new_figure,
    note,
    over_epochs,
    percent,
    plain,
    shortened,
    styled,
    whole_numbers,
)

# More lines than this cannot be distinguished.
MOST_LINES = 60
_QUANTITIES = {
    "loss": "training loss",
    "val_loss": "held-out loss",
    "accuracy": "training accuracy (%)",
    "val_accuracy": "held-out accuracy (%)",
    "flops_removed": "FLOPs removed (%)",
    "forgotten": "masked channels forgotten (%)",
}


@dataclass(frozen=True)
class LayerHistory:
    """A layer's output channels over the epochs.

    Attributes:
        name: The layer's name.
        width: Its width in the base.
        kept: The number of channels that are not masked, at each epoch.
        left: The number that are not forgotten, masked or not.
    """

    name: str
    width: int
    kept: Sequence[int]
    left: Sequence[int]


@styled
def curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    columns: Sequence[str] = ("loss", "val_accuracy"),
) -> Figure:
    """Draws metrics by epoch, one panel for each column (Fig. 2 with several runs).

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
        over_epochs(axes)
    if len(runs) > 1:
        legend(panels[0])
    return figure


@styled
def progress(
    rows: Sequence[Mapping[str, Any]], flops_target: float | None = None
) -> Figure:
    """Draws the FLOPs of masked channels, and the share of them that is forgotten.

    Args:
        rows: Rows of `metrics.csv` with `epoch`, `flops_removed` and `forgotten`.
        flops_target: The target of `flops_removed`.
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
    over_epochs(axes)
    legend(axes)
    return figure


@styled
def channels(epochs: Sequence[float], layers: Sequence[LayerHistory]) -> Figure:
    """Draws how channels are masked and forgotten: a ribbon for each layer, by epoch.

    Args:
        epochs: The epochs.
        layers: For each layer, its channels at these epochs.
    """
    if not layers:
        raise ValueError("`layers` must not be empty. Received: layers=()")
    few = len(layers) <= MOST_NAMES
    # Inches for each layer; with many layers, the ribbons become thin.
    each = 0.19 if few else min(0.08, 6 / len(layers))
    figure = new_figure(COLUMN, 0.75 + each * len(layers))
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        foot = row + 0.42
        for counts, colour, label in [
            ([layer.width] * len(epochs), SHADE, "forgotten"),
            (layer.left, VERMILLION, "masked, not forgotten yet"),
            (layer.kept, BLUE, "kept"),
        ]:
            tops = foot - 0.84 * np.asarray(counts, float) / layer.width
            axes.fill_between(
                epochs, foot, tops, color=colour, lw=0, label=None if row else label
            )
    if few:
        names = [plain(shortened(layer.name)) for layer in layers]
        axes.set_yticks(range(len(layers)), names)
    else:
        axes.set_yticks([0, len(layers) - 1], ["1", str(len(layers))])
        axes.set_ylabel("target layer, from input to output")
    axes.tick_params("y", length=0)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlim(epochs[0], epochs[-1])
    axes.set_xlabel("epoch")
    whole_numbers(axes.xaxis)
    legend(axes)
    return figure


@styled
def norms(
    steps: Sequence[float],
    values: np.ndarray,
    kept: Sequence[bool],
    epsilon: float | None = None,
    unit: str = "training step",
) -> Figure:
    """Draws the norms of compactor rows during training.

    Args:
        steps: The steps at which norms were taken.
        values: One row for each of `steps`, with a norm for each compactor row.
        kept: For each compactor row, whether it stayed.
        epsilon: The norm below which rows are dropped.
        unit: The unit of `steps`.
    """
    values, kept = np.asarray(values, float), np.asarray(kept, bool)
    if values.shape != (len(steps), len(kept)):
        raise ValueError(
            f"`values` must be {len(steps)} steps by {len(kept)} rows. "
            f"Received: values of shape {values.shape}"
        )
    figure = new_figure(COLUMN, 2.6)
    axes = figure.subplots()
    # A logarithmic axis has no zero, so exact zeros are drawn at its lower end.
    floor = 0.1 * min(values[values > 0].min(initial=1.0), epsilon or 1.0)
    for group, colour, label in [
        (kept, BLUE, f"survive ({int(kept.sum()):,})"),
        (~kept, VERMILLION, f"forgotten ({int((~kept).sum()):,})"),
    ]:
        rows = np.flatnonzero(group)
        # The rows shown are evenly spaced among the sorted final norms, to show the
        # spread.
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
