"""The report of a conversion, for people and for programs."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resrep_tf.markup import notebook_table
from resrep_tf.pruning.verification import verdict


@dataclass(frozen=True)
class LayerChange:
    """One layer with a kernel, before and after.

    Attributes:
        name: The layer's name.
        kind: Its type.
        width: Its output channels, before.
        new_width: Its output channels, after.
        flops: Its multiply-adds, before.
        new_flops: Its multiply-adds, after.
        folded: How many constant input channels went into its bias.
    """

    name: str
    kind: str
    width: int
    new_width: int
    flops: int
    new_flops: int
    folded: int


@dataclass(frozen=True)
class ConversionReport:
    """The changes that `resrep_tf.convert` made.

    Attributes:
        layers: The layers with kernels, in graph order.
        flops: Multiply-adds of the original architecture.
        new_flops: Multiply-adds of the converted model.
        params: Parameters of the original architecture.
        new_params: Parameters of the converted model.
        rows_dropped: Compactor rows that were dropped.
        largest_norm_dropped: The largest norm of a dropped row.
        kept: For each reason, how many channels stayed because dropping them would
            not have been exact.
        structure: For each compactor's first target layer, whether each row stayed:
            `resrep_tf.convert` takes this as `keep`.
        difference: The largest difference between the converted model and the
            wrapped one with its dropped rows set to zero, of outputs and logits,
            relative to their scale. None if not verified.
        damage: The same between the wrapped model as it is and with its dropped
            rows set to zero: the cost of dropping rows that are not zero yet.
        verified_on: What the models were compared on, in words.
    """

    layers: tuple[LayerChange, ...]
    flops: int
    new_flops: int
    params: int
    new_params: int
    rows_dropped: int
    largest_norm_dropped: float
    kept: dict[str, int]
    structure: dict[str, tuple[bool, ...]] = dataclasses.field(default_factory=dict)
    difference: float | None = None
    damage: float | None = None
    verified_on: str | None = None

    @property
    def flops_removed(self) -> float:
        return 1 - self.new_flops / self.flops

    def to_dict(self) -> dict[str, Any]:
        """Returns plain, JSON-compatible values."""
        return {
            **dataclasses.asdict(self),
            "structure": {
                # As text, since a list would take a line for each of thousands of rows.
                name: "".join(str(int(stays)) for stays in rows)
                for name, rows in self.structure.items()
            },
            "flops_removed": self.flops_removed,
        }

    def __str__(self):
        size = max([len(layer.name) for layer in self.layers], default=5)
        lines = [f"{'layer':<{size}}  {'width':>13}  {'MMACs':>19}  folded"]
        for layer in self.layers:
            lines.append(
                f"{layer.name:<{size}}  {layer.width:>5} -> {layer.new_width:<5}"
                f"  {layer.flops / 1e6:>8.2f} -> {layer.new_flops / 1e6:<8.2f}"
                f"  {layer.folded or ''}".rstrip()
            )
        return "\n".join(lines + self._summary())

    def _repr_html_(self):
        return notebook_table(
            ["layer", "width", "MMACs", "folded"],
            [
                [
                    layer.name,
                    f"{layer.width} → {layer.new_width}",
                    f"{layer.flops / 1e6:.2f} → {layer.new_flops / 1e6:.2f}",
                    layer.folded or "",
                ]
                for layer in self.layers
            ],
            self._summary(),
            numbers=("width", "MMACs", "folded"),
        )

    def _summary(self) -> list[str]:
        lines = [
            f"FLOPs {self.flops:,} -> {self.new_flops:,} "
            f"({self.flops_removed:.2%} removed), "
            f"parameters {self.params:,} -> {self.new_params:,}"
        ]
        if self.rows_dropped:
            lines.append(
                f"{self.rows_dropped:,} compactor rows dropped, "
                f"the largest of norm {self.largest_norm_dropped:.3g}"
            )
        return lines + verdict(
            self.kept, self.difference, self.damage, self.verified_on
        )


def read_structure(report: Mapping[str, Any]) -> dict[str, tuple[bool, ...]]:
    """Returns the `structure` of a report that was made by `to_dict`."""
    return {
        name: tuple(row == "1" for row in rows)
        for name, rows in report["structure"].items()
    }
