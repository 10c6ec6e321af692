"""Compares two models in a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Measurements:
    """The size, speed and accuracy of a model.

    Attributes:
        flops: Multiply-adds.
        params: Parameters.
        bytes: Size of its .keras file.
        latency: Seconds of a call, by batch size.
        accuracy: Share of the held-out images that it classifies correctly.
        top5_accuracy: Share whose class has one of the five largest outputs; None if
            there are five classes or fewer.
    """

    flops: int
    params: int
    bytes: int
    latency: dict[int, float]
    accuracy: float
    top5_accuracy: float | None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain, JSON-compatible values."""
        return asdict(self)


@dataclass(frozen=True)
class Change:
    """One quantity of two models.

    Attributes:
        label: Its name, with the unit.
        before: Its value in the first model, as text.
        after: Its value in the second model.
        change: The difference, as text.
        better: Whether the second model is better; None if no change is
            shown.
    """

    label: str
    before: str
    after: str
    change: str
    better: bool | None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Returns the change of each quantity that was measured.

    Args:
        before: The `Measurements` of a model as a dictionary, as in `report.json`;
            some may be missing.
        after: The same of another model.
    """
    rows = []
    for key, label, scale, form in [
        ("flops", "FLOPs (multiply-adds)", 1, "{:,}"),
        ("params", "parameters", 1, "{:,}"),
        ("bytes", "size on disk (kB)", 1e-3, "{:,.1f}"),
    ]:
        if key in before:
            rows.append(_ratio(label, scale * before[key], scale * after[key], form))
    for batch, seconds in before.get("latency", {}).items():
        label = f"latency, batch {batch} (ms)"
        pair = 1e3 * seconds, 1e3 * after["latency"][batch]
        rows.append(_ratio(label, *pair, "{:.2f}"))
    for key, label in [
        ("accuracy", "top-1 accuracy"),
        ("top5_accuracy", "top-5 accuracy"),
    ]:
        if before.get(key) is not None:
            rows.append(_share(label, before[key], after[key]))
    return rows


def _ratio(label: str, old: float, new: float, form: str) -> Change:
    change = signed(100 * (new / old - 1), 1, "%") if old else ""
    return Change(
        label, form.format(old), form.format(new), change, _less(new, old, change)
    )


def _share(label: str, old: float, new: float) -> Change:
    change = signed(100 * (new - old), 2, " points")
    return Change(label, f"{old:.2%}", f"{new:.2%}", change, _less(old, new, change))


def _less(left: float, right: float, change: str) -> bool | None:
    """Returns whether a number is smaller; None if the change is shown as none."""
    return None if change.startswith("±0") else left < right


def signed(value: float, decimals: int, unit: str) -> str:
    """Returns a number with its sign: `+1.5%`, `−0.4 points`, `±0 points`."""
    text = f"{abs(value):.{decimals}f}{unit}"
    if not round(abs(value), decimals):
        return f"±0{unit}"
    return f"{'+' if value > 0 else MINUS}{text}"


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Returns the changes between two models as text in aligned columns.

    Args:
        before: The `Measurements` of a model as a dictionary.
        after: The same of another model.
    """
    rows = [("", "before", "after", "change")]
    rows += [
        (change.label, change.before, change.after, change.change)
        for change in changes(before, after)
    ]
    return _aligned(rows)


def files_table(exports: Sequence[Mapping[str, Any]]) -> str:
    """Returns the sizes, latencies and accuracies of files, as text.

    Args:
        exports: The entry of each file in `report.json`.
    """
    rows = [("file", "kB", "batch 1 (ms)", "batch 32 (ms)", "top-1 accuracy")]
    for file in exports:
        times, accuracy = file.get("latency", {}), file.get("accuracy")
        milliseconds = (1e3 * times[b] if b in times else None for b in ("1", "32"))
        rows.append(
            (
                file["file"],
                f"{1e-3 * file['bytes']:,.1f}",
                *("" if ms is None else f"{ms:.2f}" for ms in milliseconds),
                "" if accuracy is None else f"{accuracy:.2%}",
            )
        )
    # Columns that have nothing but a title are left out.
    filled = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return _aligned(list(zip(*filled, strict=True)))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines; the first column is left-aligned, all others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        row[0].ljust(widths[0])
        + "".join(
            f"  {cell.rjust(width)}"
            for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        for row in rows
    )
