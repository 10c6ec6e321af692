"""Two models against each other, in words and figures for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Change:
    """One quantity of two models.

    Attributes:
        label: What it is, with its unit.
        before: Its value in the first model, in words.
        after: Its value in the second model.
        change: By how much it changed.
        better: Whether that is for the better; None if nothing changed.
    """

    label: str
    before: str
    after: str
    change: str
    better: bool | None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Compares what `report.json` has under `before` and `after`.

    Args:
        before: `flops`, `params`, `bytes`, `latency` (seconds by batch size),
            `accuracy` and `top5_accuracy` of a model; those that are missing are left
            out.
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
        if key in before:
            rows.append(_share(label, before[key], after[key]))
    return rows


def _ratio(label: str, old: float, new: float, form: str) -> Change:
    change = signed(100 * (new / old - 1), 1, "%") if old else ""
    return Change(label, form.format(old), form.format(new), change, _less(new, old))


def _share(label: str, old: float, new: float) -> Change:
    change = signed(100 * (new - old), 2, " points")
    return Change(label, f"{old:.2%}", f"{new:.2%}", change, _less(old, new))


def _less(left: float, right: float) -> bool | None:
    return None if left == right else left < right


def signed(value: float, decimals: int, unit: str) -> str:
    """A number with its sign: `+1.5%`, `−0.4 points`, `±0 points`."""
    text = f"{abs(value):.{decimals}f}{unit}"
    if not round(abs(value), decimals):
        return f"±0{unit}"
    return f"{'+' if value > 0 else MINUS}{text}"
