"""The style of figures, and writing them to files."""

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, which colour-blind people can distinguish, without those that
# are hard to see on white.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY = "#CC79A7", "#56B4E9"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, RULE, SHADE = "#1a1a1a", "#dadada", "#c9c9c9"

# One or two columns of a page, in inches.
COLUMN, PAGE = 3.5, 7.1
# With more layers than this, there is no room for their names.
MOST_NAMES = 30

_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.borderaxespad": 0.0,
    "legend.handlelength": 1.6,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    # Text stays text, and a figure does not depend on time or machine.
    "svg.fonttype": "none",
    "svg.hashsalt": "resrep_tf",
}


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function draw in this module's style, whatever the user's settings."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with matplotlib.style.context(["default", _STYLE]):
            return draw(*args, **kwargs)

    return wrapper


@styled
def save(figure: Figure, path: str | Path) -> tuple[Path, Path]:
    """Writes a figure as .png and as .svg; returns both paths.

    Args:
        figure: The figure.
        path: The files' name without their suffix.
    """
    path = Path(path)
    files = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    figure.savefig(files[0], metadata={"Software": None})
    files[1].write_text(svg(figure), encoding="utf-8")
    return files


@styled
def svg(figure: Figure) -> str:
    """Returns a figure as the text of an SVG file."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


# === Parts of a figure ===


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure; sizes are in inches."""
    return Figure((width, height), layout="constrained")


def look(number: int, markers: bool = False) -> dict[str, Any]:
    """Returns the colour, marker and dashes of the series of this number."""
    turn, place = divmod(number, len(COLOURS))
    return {
        "color": COLOURS[place],
        "marker": MARKERS[place] if markers else "",
        "linestyle": ("-", "--", ":")[turn % 3],
    }


def plain(text: str) -> str:
    """Returns text in which matplotlib treats no dollar sign as mathematics."""
    return text.replace("$", r"\$")


def shortened(name: str, most: int = 32) -> str:
    """Returns a long name without its middle, since both ends distinguish layers."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def legend(axes: Axes) -> None:
    """Puts a legend above the axes, where it hides nothing."""
    labels = axes.get_legend_handles_labels()[1]
    # A letter takes about 0.055 inches, and the line before the text seven letters.
    letters = 7 + max(map(len, labels), default=0)
    room = int(axes.figure.get_figwidth() / (0.055 * letters))
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.02),
        ncols=max(1, min(room, len(labels) if len(labels) < 4 else 2)),
        columnspacing=1.2,
    )


def note(axes: Axes, text: str, height: float) -> None:
    """Writes a text above a horizontal line, at its right end."""
    axes.annotate(
        text,
        (1, height),
        (0, 2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=6.5,
    )


def percent(axis: Any) -> None:
    """Shows shares from 0 to 1 as percentages; the axis's label has the sign."""
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 3):g}")


def whole_numbers(axis: Any) -> None:
    """Puts ticks at whole numbers only."""
    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def over_epochs(axes: Axes) -> None:
    """Labels the horizontal axis as epochs."""
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    whole_numbers(axes.xaxis)
