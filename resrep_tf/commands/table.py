"""Before and after, in figures."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a model costs and what it is worth.

    Attributes:
        flops: Multiply-adds.
        params: Parameters.
        bytes: Size of its .keras file.
        latency: Seconds of a call, by batch size.
        accuracy: Share of the held-out images that it classifies correctly.
        top5_accuracy: Share whose class is among its first five.
    """

    flops: int
    params: int
    bytes: int
    latency: dict[int, float]
    accuracy: float
    top5_accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Returns plain, JSON-compatible values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Figures":
        """The inverse of `to_dict`, after a way through JSON."""
        latency = {int(batch): value for batch, value in values["latency"].items()}
        return cls(**(values | {"latency": latency}))


def table(before: Figures, after: Figures) -> str:
    """Compares two models, in aligned columns."""
    rows = [("", "before", "after", "change")]

    def add(label: str, old: float, new: float, form: str) -> None:
        rows.append(
            (label, form.format(old), form.format(new), f"{new / old - 1:+.1%}")
        )

    def add_share(label: str, old: float, new: float) -> None:
        rows.append((label, f"{old:.2%}", f"{new:.2%}", f"{100 * (new - old):+.2f}"))

    add("FLOPs (multiply-adds)", before.flops, after.flops, "{:,}")
    add("parameters", before.params, after.params, "{:,}")
    add("size on disk (kB)", before.bytes / 1e3, after.bytes / 1e3, "{:,.1f}")
    for batch, seconds in before.latency.items():
        label = f"latency, batch {batch} (ms)"
        add(label, 1e3 * seconds, 1e3 * after.latency[batch], "{:.2f}")
    add_share("top-1 accuracy", before.accuracy, after.accuracy)
    add_share("top-5 accuracy", before.top5_accuracy, after.top5_accuracy)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        row[0].ljust(widths[0])
        + "".join(
            f"  {cell.rjust(width)}"
            for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        for row in rows
    )
