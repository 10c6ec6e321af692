"""Several budgets at once: all of their targets must be met."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.budget.base import Budget

TARGETS = FLOPS_TARGET, PARAMS_TARGET, LATENCY_TARGET = (
    "flops_target",
    "params_target",
    "latency_target",
)


def check_target(target: float, argument: str = FLOPS_TARGET) -> None:
    """Raises unless `target` is a fraction, strictly between 0 and 1.

    Args:
        target: The fraction to remove.
        argument: The argument by which the user gave it.
    """
    if not isinstance(target, numbers.Real) or not 0 < target < 1:
        raise ValueError(
            f"`{argument}` is the fraction to remove and must be between 0 and 1, both "
            f"excluded. Received: {argument}={target!r}"
        )


def removed_fraction(budget: Budget) -> float:
    """Returns the fraction of a budget that is removed now."""
    # Python rounds the quotient of two integers correctly.
    total = budget.total
    return (total - budget.current) / total if total else 0.0


@dataclass(frozen=True, eq=False)
class Goal:
    """A budget and the fraction of it to remove.

    The target counts as met when the removed fraction, rounded to the nearest float,
    reaches it, so that a target equal to a reachable fraction is met by that fraction.

    Attributes:
        budget: Prices channels.
        target: The fraction to remove, between 0 and 1. None for a budget that is
            only counted.
        argument: The argument by which the user gave the target, for messages.
    """

    budget: Budget
    target: float | None
    argument: str = FLOPS_TARGET

    def __post_init__(self):
        if self.target is not None:
            check_target(self.target, self.argument)
            if self.budget.total <= 0:
                raise ValueError(
                    f"`budget` has no {self.budget.unit} to remove. "
                    f"Received: total={self.budget.total}"
                )

    @property
    def removed(self) -> float:
        """The fraction that is removed now."""
        return removed_fraction(self.budget)

    @property
    def met(self) -> bool:
        """True if the target is reached."""
        return self.target is None or self.removed >= self.target


class CombinedBudget(Budget):
    """Several budgets of one network, which all have targets to meet.

    Channels are removed until every budget has reached its own target. Some will have
    lost more than their target by then. Properties that are one number, such as
    `total`, are those of the first budget.

    Args:
        goals: The budgets with their targets, one target at least.

    Example:

    ```python
    combined = CombinedBudget([
        Goal(FlopsMeter.of(graph), 0.5),
        Goal(ParametersMeter.of(graph), 0.4, "params_target"),
    ])
    for channel in order:
        if combined.met():
            break
        combined.remove(channel)
    ```
    """

    def __init__(self, goals: Sequence[Goal]):
        self.goals = tuple(goals)
        if all(goal.target is None for goal in self.goals):
            raise ValueError(
                "One of `flops_target`, `params_target` and `latency_target` must be "
                "given. Received: none of them"
            )
        self._budgets = [goal.budget for goal in self.goals]
        self._asked = [goal for goal in self.goals if goal.target is not None]

    @property
    def unit(self) -> str:
        """The name of what the first budget counts."""
        return self._budgets[0].unit

    @property
    def total(self) -> float:
        """The first budget's cost with every channel present."""
        return self._budgets[0].total

    @property
    def current(self) -> float:
        """The first budget's cost without the removed channels."""
        return self._budgets[0].current

    def cost(self, channel: int) -> float:
        """Returns by how much `current` would fall if `channel` were removed now."""
        return self._budgets[0].cost(channel)

    def share(self, channel: int) -> float:
        """Returns the share of what is still to be removed that `channel` would remove.

        It is the sum over the budgets whose targets are not met; 0 if all are.
        """
        return sum(
            goal.budget.rate(channel) / goal.budget.total for goal in self.unmet()
        )

    def reset(self) -> None:
        """Brings every removed channel back."""
        for budget in self._budgets:
            budget.reset()

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present, from every budget."""
        for budget in self._budgets:
            budget.remove(channel)

    def remove_all(self, channels: np.ndarray) -> np.ndarray:
        """Removes channels from every budget; returns `current` behind each."""
        first, *_ = [budget.remove_all(channels) for budget in self._budgets]
        return first

    def met_behind(self, channels: np.ndarray) -> np.ndarray:
        """Removes channels one after the other.

        Returns:
            For each of them, whether all targets were met after its removal.
        """
        met = np.ones(len(channels), bool)
        for goal in self.goals:
            path = goal.budget.remove_all(channels)
            if goal.target is not None:
                total = goal.budget.total
                met &= (total - path) / total >= goal.target
        return met

    def stops(self, channels: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns the numbers of channels at which removing them may stop."""
        for goal in self._asked:
            counts = goal.budget.stops(channels, counts)
        return counts

    def met(self) -> bool:
        """Returns true if every budget has reached its target."""
        return not self.unmet()

    def unmet(self) -> list[Goal]:
        """Returns the goals whose targets are not reached yet."""
        return [goal for goal in self._asked if not goal.met]

    def __repr__(self):
        parts = ", ".join(
            f"{goal.argument}={goal.target} ({goal.removed:.2%} removed)"
            for goal in self._asked
        )
        return f"CombinedBudget({parts})"
