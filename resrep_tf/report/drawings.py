"""The figures of a run's report, as SVG to be put into a page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from resrep_tf.report import figures
from resrep_tf.report.plotting import BLUE, INK, RULE, SHADE, VERMILLION, svg

NO_FIGURES = (
    "Figures need matplotlib, which is not installed here. With it (pip install "
    "matplotlib), write this report once more."
)
# A figure wider than this (in points) is for two columns.
_WIDE = 400
# The page decides on colours, which differ in dark mode; so do its variables.
_COLOURS = {
    INK: "currentColor",
    RULE: "var(--rule)",
    SHADE: "var(--shade)",
    BLUE: "var(--blue)",
    VERMILLION: "var(--vermillion)",
    "#ffffff": "none",
}


@dataclass(frozen=True)
class Drawing:
    """A figure of the report.

    Attributes:
        svg: The text of an SVG file.
        caption: What it shows.
        alternative: What it says, for those who cannot see it.
    """

    svg: str
    caption: str
    alternative: str

    @property
    def wide(self) -> bool:
        """Whether it takes the whole width of a page."""
        return float(re.search(r'viewBox="0 0 ([\d.]+)', self.svg).group(1)) > _WIDE

    def inline(self, prefix: str) -> str:
        """As an element of an HTML page; ids begin with `prefix`, to be unique."""
        text = self.svg[self.svg.index("<svg") :]
        # Its general style would be that of the whole page.
        text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
        for colour, variable in _COLOURS.items():
            text = text.replace(colour.lower(), variable)
        box = re.search(r'viewBox="[^"]*"', text).group()
        label = escape(self.alternative)
        return re.sub(
            r"<svg[^>]*>",
            lambda _: (
                f'<svg xmlns="http://www.w3.org/2000/svg" '
                f'xmlns:xlink="http://www.w3.org/1999/xlink" {box} role="img" '
                f'aria-label="{label}">'
            ),
            text,
            count=1,
        ).strip()


def draw(
    report: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> list[Drawing]:
    """Draws what there is to draw; raises ImportError without matplotlib."""
    drawings = [*_accuracy(metrics), *_progress(report, metrics)]
    return [*_widths(report["conversion"]["layers"]), *drawings]


def narrower(layers: Sequence[Mapping[str, Any]]) -> list[figures.LayerWidth]:
    """The layers of a conversion that have fewer channels than before."""
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


def _accuracy(metrics: Sequence[Mapping[str, Any]]) -> list[Drawing]:
    runs = {
        name: [row for row in metrics if row["phase"] == phase]
        for name, phase in [("base", "base"), ("pruning", "prune")]
    }
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
