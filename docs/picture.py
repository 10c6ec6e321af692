"""Draws the README's picture from the report of a run.

From the project's root, after `python -m resrep_tf.train`:

    python docs/picture.py runs/NAME/report.json

It writes `docs/first_run.json`, the numbers of the run that the documentation shows,
and `docs/first_run.svg`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NUMBERS, PICTURE = FOLDER / "first_run.json", FOLDER / "first_run.svg"
WIDTH, HEIGHT = 760, 300
# In pixels: the bars of the left half, the plot of the right half, its base line.
LEFT, BAR, RIGHT, PLOT, GROUND = 24, 216, 290, 446, 240
TALL = 150

# With a background of its own, it is readable on light and on dark pages.
STYLE = """
  text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
  .page { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
  .before { fill: #d1d9e0 } .after { fill: #0969da } .title { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
    .before { fill: #3d444d } .after { fill: #4493f8 }
  }
"""


def numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those numbers of a run's `report.json` that the documentation shows."""
    shown = ("flops", "params", "bytes", "accuracy", "top5_accuracy")
    return {
        "arch": report["arch"],
        "dataset": report["dataset"],
        **{k: {n: report[k][n] for n in shown} for k in ("before", "after")},
        "widths": [
            [layer["name"], layer["width"], layer["new_width"]]
            for layer in report["conversion"]["layers"]
            if layer["kind"] == "Conv2D"
        ],
        "versions": report["versions"],
    }


def render(run: Mapping[str, Any]) -> str:
    """Returns the picture as SVG."""
    before, after = run["before"], run["after"]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{run['arch']} on {run['dataset']}, before and after</title>",
        f"<style>{STYLE}</style>",
        _box(0, 0, WIDTH, HEIGHT, "page"),
        _text(LEFT, 34, "Before and after", "ink title"),
        *_pair(64, "Accuracy", before["accuracy"], after["accuracy"], "{:.2%}"),
        *_pair(136, "FLOPs", before["flops"], after["flops"], "{:,}"),
        *_pair(208, "Parameters", before["params"], after["params"], "{:,}"),
        *_widths(run["widths"]),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _pair(top: int, name: str, before: float, after: float, form: str) -> list[str]:
    scale = BAR / max(before, after)
    values = f"{form.format(before)} → {form.format(after)}".replace("%", " %")
    return [
        _text(LEFT, top, name, "ink"),
        _text(LEFT + BAR, top, values, "soft", "end"),
        _box(LEFT, top + 10, scale * before, 14, "before"),
        _box(LEFT, top + 28, scale * after, 14, "after"),
    ]


def _widths(layers: Sequence[tuple[str, int, int]]) -> list[str]:
    step, highest = PLOT / len(layers), max(width for _, width, _ in layers)
    lines = [
        _text(RIGHT, 34, "Channels of every convolution", "ink title"),
        _box(RIGHT + PLOT - 136, 24, 10, 10, "before"),
        _text(RIGHT + PLOT - 122, 34, "before", "soft"),
        _box(RIGHT + PLOT - 62, 24, 10, 10, "after"),
        _text(RIGHT + PLOT - 48, 34, "after", "soft"),
    ]
    for place, (_, width, new_width) in enumerate(layers):
        left = RIGHT + place * step
        for count, kind in ((width, "before"), (new_width, "after")):
            tall = TALL * count / highest
            lines.append(_box(left, GROUND - tall, step - 4, tall, kind))
        middle = left + (step - 4) / 2
        lines.append(_text(middle, GROUND + 16, str(new_width), "soft", "middle"))
    lines.append(_text(RIGHT, GROUND + 40, "from the input to the output", "soft"))
    return lines


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="2" class="{kind}"/>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{text}</text>"
    )


if __name__ == "__main__":
    found = numbers(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    NUMBERS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PICTURE.write_text(render(found), encoding="utf-8")
