"""The constants of forgetting, with one set of defaults for the whole library."""

import math
from dataclasses import dataclass

AUTO, PAPER = KINDS = ("auto", "paper")


@dataclass(frozen=True)
class Schedule:
    """When channels are selected, and how strongly masked ones are pulled to zero.

    The defaults are the paper's constants (Sect. 4.1).

    Args:
        kind: `"auto"` changes the constants that cannot finish within the run.
            `"paper"` takes them as they are.
        warmup_epochs: Epochs before the first selection.
        warmup_steps: The same in optimizer steps; wins over `warmup_epochs`.
        interval: Optimizer steps between two selections.
        step: How many more rows may be masked at each selection.
        lasso_strength: The Lasso's strength on all rows, lambda.
        masked_strength: Its strength on masked rows; None for the same.
        momentum: The momentum of the compactors' SGD.
        snap: Whether masked rows become exactly zero once they are within a step of it.
        epsilon: Rows of a smaller norm count as forgotten.
    """

    kind: str = AUTO
    warmup_epochs: float = 5.0
    warmup_steps: int | None = None
    interval: int = 200
    step: int = 4
    lasso_strength: float = 1e-4
    masked_strength: float | None = None
    momentum: float = 0.99
    snap: bool = True
    epsilon: float = 1e-5

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(
                f"`schedule` must be one of {KINDS}. Received: schedule={self.kind!r}"
            )
        for name in ("interval", "step"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise ValueError(
                    f"`{name}` must be a positive integer. Received: {name}={value}"
                )
        for name in ("warmup_epochs", "warmup_steps"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(
                    f"`{name}` must be finite and not negative. "
                    f"Received: {name}={value}"
                )
        for name in ("lasso_strength", "masked_strength", "epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f"`{name}` must be positive and finite. Received: {name}={value}"
                )
        if not 0 <= self.momentum < 1:
            raise ValueError(
                "`momentum` must be at least 0 and below 1. "
                f"Received: momentum={self.momentum}"
            )
