"""The constants of selection and forgetting, with their defaults."""

from dataclasses import dataclass

from resrep_tf.selection.checks import (
    check_momentum,
    check_not_negative,
    check_positive,
    check_positive_integer,
)

AUTO, INFORMED, PAPER = KINDS = ("auto", "informed", "paper")


@dataclass(frozen=True)
class Schedule:
    """The constants of selecting channels and of pulling masked rows to zero.

    The defaults are the paper's constants (Sect. 4.1), except `kind` and `snap`: with
    these two, a run of any length forgets all rows that it masks.

    Attributes:
        kind: `"auto"` changes the constants if they do not forget all masked rows
            within a quarter of the run. `"paper"` uses them unchanged. `"informed"`
            chooses channels by gradients, and forgets them in the first part of the
            run.
        warmup_epochs: Epochs before the first selection.
        warmup_steps: The same in optimizer steps; it overrides `warmup_epochs`.
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
            check_positive_integer(name, getattr(self, name))
        check_not_negative("warmup_epochs", self.warmup_epochs)
        if self.warmup_steps is not None:
            check_not_negative("warmup_steps", self.warmup_steps)
        for name in ("lasso_strength", "epsilon"):
            check_positive(name, getattr(self, name))
        if self.masked_strength is not None:
            check_positive("masked_strength", self.masked_strength)
        check_momentum("momentum", self.momentum)

    @property
    def informed(self) -> bool:
        """True if gradients choose the channels; otherwise the norms of rows do."""
        return self.kind == INFORMED

    @property
    def fits_run(self) -> bool:
        """True if constants are changed so that they fit the run."""
        return self.kind != PAPER

    @property
    def strength(self) -> float:
        """The Lasso's strength on masked rows."""
        if self.masked_strength is None:
            return self.lasso_strength
        return self.masked_strength

    def warmup(
        self,
        total_steps: int | None,
        batches_per_epoch: int | None,
        batches_per_step: int = 1,
    ) -> int:
        """Returns the number of optimizer steps before the first selection.

        If the length of an epoch is unknown, the warm-up is a twentieth of the run.
        """
        if self.warmup_steps is not None:
            return int(self.warmup_steps)
        if batches_per_epoch is not None:
            return int(self.warmup_epochs * batches_per_epoch // batches_per_step)
        if total_steps is None:
            raise ValueError(
                f"The default warm-up is {self.warmup_epochs:g} epochs, but the number "
                "of steps in an epoch is not known. Give `warmup_steps`, or "
                "`steps_per_epoch` to `fit`. Received: warmup_steps=None"
            )
        return total_steps // 20
