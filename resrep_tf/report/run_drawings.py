"""The figures of a run's report."""

from collections.abc import Mapping, Sequence
from typing import Any

from resrep_tf.report import figures
from resrep_tf.report.drawing import Drawing
from resrep_tf.report.plotting import svg

# The names of phases in figures. Training of the shrunk network is the same line.
PHASES = {"base": "base", "prune": "pruning", "recover": "pruning"}


def draw(
    report: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> list[Drawing]:
    """Returns the figures for which there are metrics."""
    return [
        *_widths(report["conversion"]["layers"]),
        *_channels(report.get("channels")),
        *_accuracy(metrics),
        *_progress(report, metrics),
    ]


def narrower(layers: Sequence[Mapping[str, Any]]) -> list[figures.LayerWidth]:
    """Returns the layers of a conversion that have fewer channels than before."""
    return [
        figures.LayerWidth(layer["name"], layer["width"], layer["new_width"])
        for layer in layers
        if layer["new_width"] < layer["width"]
    ]


def _widths(layers: Sequence[Mapping[str, Any]]) -> list[Drawing]:
    found = narrower(layers)
    if not found:
        return []
    before, after = (sum(getattr(x, k) for x in found) for k in ("before", "after"))
    return [
        Drawing(
            svg(figures.widths(found)),
            "Width of the layers that became narrower.",
            f"{len(found)} layers became narrower: {after:,} of {before:,} output "
            "channels are left. The table below has the widths.",
        )
    ]


def _channels(history: Mapping[str, Any] | None) -> list[Drawing]:
    """Returns the figure of masked and forgotten channels, from `report.json`."""
    if not history:
        return []
    layers = [
        figures.LayerHistory(
            name, layer["width"], _numbers(layer["kept"]), _numbers(layer["left"])
        )
        for name, layer in history["layers"].items()
    ]
    kept, left = (sum(getattr(x, k)[-1] for x in layers) for k in ("kept", "left"))
    return [
        Drawing(
            svg(figures.channels(_numbers(history["epochs"]), layers)),
            "Channels over the epochs, as shares of a layer's width: masked channels "
            "shrink to zero, and are then forgotten.",
            f"At the end {kept:,} of {sum(x.width for x in layers):,} channels are "
            f"kept, and {left - kept:,} more are masked but not forgotten.",
        )
    ]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split()]


def _accuracy(metrics: Sequence[Mapping[str, Any]]) -> list[Drawing]:
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in metrics:
        name = PHASES.get(row["phase"], row["phase"])
        runs.setdefault(name, []).append(row)
    drawings = []
    for column, caption in [
        ("val_accuracy", "Accuracy on held-out images, by epoch."),
        ("loss", "Training loss, by epoch."),
    ]:
        known = {
            name: rows
            for name, rows in runs.items()
            if any(row.get(column) not in (None, "") for row in rows)
        }
        if known:
            ends = ", ".join(
                f"{name} ends at {float(rows[-1][column]):.4g}"
                for name, rows in known.items()
            )
            drawings.append(
                Drawing(
                    svg(figures.curves(known, [column])), caption, f"{caption} {ends}."
                )
            )
    return drawings


def _progress(
    report: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> list[Drawing]:
    rows = [row for row in metrics if row.get("flops_removed") not in (None, "")]
    if not rows:
        return []
    last = rows[-1]
    return [
        Drawing(
            svg(figures.progress(rows, report["flops_target"])),
            "FLOPs of the masked channels, and the share of these channels that is "
            "forgotten, by epoch.",
            f"At the end {float(last['flops_removed']):.1%} of the FLOPs are masked "
            f"and {float(last['forgotten']):.1%} of the masked channels forgotten.",
        )
    ]
