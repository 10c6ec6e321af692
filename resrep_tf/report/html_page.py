"""HTML pages and tables, without scripts and without other files.

All text from models and files is escaped.
"""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from resrep_tf.markup import text
from resrep_tf.report.drawing import Drawing


def page(
    title: str,
    subtitle: str,
    headline: Iterable[str],
    sections: Iterable[tuple[str, str]],
    versions: Mapping[str, str] | None,
) -> str:
    """Returns a whole page.

    Args:
        title: The title.
        subtitle: A sentence, as HTML.
        headline: The most important numbers, as HTML.
        sections: Titles and contents as HTML; empty ones are left out.
        versions: The versions of the software, by name.
    """
    template = resources.files("resrep_tf.report").joinpath("templates", "report.html")
    return string.Template(template.read_text(encoding="utf-8")).substitute(
        title=text(title),
        subtitle=subtitle,
        headline="\n".join(headline),
        sections="\n".join(
            f"<section>\n<h2>{name}</h2>\n{body}\n</section>"
            for name, body in sections
            if body
        ),
        footer=_footer(versions or {}),
    )


def _footer(versions: Mapping[str, str]) -> str:
    used = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{text(used)}. ResRep: Ding et al., ICCV 2021, "
        '<a href="https://arxiv.org/abs/2007.03260">arXiv:2007.03260</a>.'
    )


def figures(drawings: Iterable[Drawing]) -> str:
    """Returns figures with their captions."""
    parts = []
    for number, drawing in enumerate(drawings, start=1):
        svg = drawing.inline(f"figure{number}")
        if drawing.wide:
            svg = scroll(svg, drawing.caption)
        kind = ' class="wide"' if drawing.wide else ""
        parts.append(
            f"<figure{kind}>\n{svg}\n<figcaption>{text(drawing.caption)}</figcaption>"
            "\n</figure>"
        )
    return f'<div class="figures">\n{"".join(parts)}\n</div>' if parts else ""


def table(
    caption: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    kind: str = "",
    row_kinds: Sequence[str] | None = None,
    numbers: Sequence[int] = (1, 2, 3),
) -> str:
    """Returns a table.

    Args:
        caption: Its caption.
        titles: The titles of the columns.
        rows: For each row its cells, as HTML.
        kind: A CSS class of the table.
        row_kinds: A CSS class for each row.
        numbers: The columns that hold numbers.
    """
    head = "".join(
        f'<th scope="col"{_class("number" if i in numbers else "")}>{text(title)}</th>'
        for i, title in enumerate(titles)
    )
    kinds = row_kinds or [""] * len(rows)
    body = "\n".join(
        f"<tr{_class(row_kind)}>{''.join(cells)}</tr>"
        for row_kind, cells in zip(kinds, rows, strict=True)
    )
    table = (
        f"<table{_class(kind)}>\n<caption><span>{text(caption)}</span></caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )
    return scroll(table, caption)


def settings(values: Mapping[str, Any] | None) -> str:
    """Returns a list of names with their values."""
    if not values:
        return ""
    entries = (
        f"<div><dt>{text(name)}</dt><dd>{text(_value(value))}</dd></div>"
        for name, value in values.items()
    )
    return f'<dl class="settings">\n{"".join(entries)}\n</dl>'


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None or value == "" else value


def command(line: str | None) -> str:
    """Returns a command line that can be copied."""
    return f"<pre><code>{text(line)}</code></pre>" if line else ""


def scroll(content: str, label: str) -> str:
    """Returns a part of a page that can be wider than a phone and scrolls by itself."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}">'
        f"\n{content}\n</div>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def row_header(label: str) -> str:
    """Returns the first cell of a row; a long name may break between its parts."""
    # A break within a number is not allowed.
    ends = r"(?<=[_/])(?=\w)|(?<=\.)(?=[^\W\d])"
    parts = re.sub(ends, "<wbr>", text(label))
    return f'<th scope="row">{parts}</th>'


def number(value: Any, kind: str = "") -> str:
    """Returns a cell with a number; `kind` is a CSS class."""
    return f"<td{_class(f'number {kind}'.strip())}>{text(value)}</td>"


def names(found: Sequence[str], most: int = 12) -> str:
    """Returns names as code, at most `most` of them."""
    listed = ", ".join(f"<code>{text(name)}</code>" for name in found[:most])
    return listed + (f" and {len(found) - most} more" if len(found) > most else "")
