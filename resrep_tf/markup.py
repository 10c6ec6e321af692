"""Turns text into HTML, and rows into the tables that notebooks show."""

import html
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any


def text(value: Any) -> str:
    """Returns a value as escaped text."""
    return html.escape(str(value))


def prose(words: str) -> str:
    """Returns text as HTML; words in backticks become code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text(words))


def notebook_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Any]],
    notes: Iterable[str] = (),
    numbers: Collection[str] = (),
) -> str:
    """Returns a table for `_repr_html_`, in the colours of the notebook.

    Args:
        titles: The titles of the columns.
        rows: For each row its cells.
        notes: Sentences to stand below it.
        numbers: The titles of the columns that hold numbers.
    """
    sides = ["right" if title in numbers else "left" for title in titles]

    def row(tag: str, cells: Iterable[Any]) -> str:
        aligned = zip(cells, sides, strict=True)
        return "".join(
            f'<{tag} style="text-align: {side}; padding: .2em .6em">'
            f"{prose(str(cell))}</{tag}>"
            for cell, side in aligned
        )

    body = "\n".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    below = "<br />\n".join(map(prose, notes))
    head = f"<thead><tr>{row('th', titles)}</tr></thead>" if any(titles) else ""
    # The table is as wide as it needs, but not wider than the page; it scrolls then.
    return (
        '<div style="overflow-x: auto">\n'
        f"<table>{head}\n<tbody>\n{body}\n</tbody></table>\n</div>\n<p>{below}</p>"
    )
