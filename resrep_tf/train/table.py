"""Before and after, in figures."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resrep_tf.report.comparison import changes


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


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Compares the figures of two models, as dictionaries, in aligned columns."""
    rows = [("", "before", "after", "change")]
    rows += [
        (change.label, change.before, change.after, change.change)
        for change in changes(before, after)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        row[0].ljust(widths[0])
        + "".join(
            f"  {cell.rjust(width)}"
            for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        for row in rows
    )
