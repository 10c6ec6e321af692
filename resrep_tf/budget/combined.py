"""Several budgets at once: all of their targets must be met."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol


class Budget(Protocol):
    """What channels cost, while they are removed one after the other."""

    @property
    def total(self) -> int:
        """The cost with every channel present."""
        ...

    @property
    def current(self) -> int:
        """The cost without the removed channels."""
        ...

    def cost(self, channel: int) -> int:
        """Tells by how much `current` would fall if `channel` were removed now."""
        ...

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""
        ...

    def reset(self) -> None:
        """Brings every removed channel back."""
        ...


@dataclass(frozen=True, eq=False)
class Goal:
    """A budget and the fraction of it to remove.

    Attributes:
        name: The argument that asked for it, such as `"flops_target"`.
        budget: What channels cost.
        target: The fraction to remove, between 0 and 1.
    """

    name: str
    budget: Budget
    target: float

    def __post_init__(self):
        if not 0 < self.target < 1:
            raise ValueError(
                f"`{self.name}` is the fraction to remove and must be between 0 and "
                f"1, both excluded. Received: {self.name}={self.target}"
            )
        if self.budget.total <= 0:
            raise ValueError(
                f"`{self.name}` has nothing to be removed. "
                f"Received: total={self.budget.total}"
            )

    @property
    def removed(self) -> float:
        """The fraction that is removed now."""
        return (self.budget.total - self.budget.current) / self.budget.total

    @property
    def enough(self) -> int:
        """The largest cost that meets the target.

        Python rounds the quotient of two integers correctly, so a target that was
        computed from a reachable cost is met by that cost.
        """
        total = self.budget.total
        needed = math.ceil(Fraction(float(self.target)) * total)
        while (needed - 1) / total >= self.target:
            needed -= 1
        return total - needed


class CombinedBudget:
    """Budgets that are all spent by the same channels.

    One walk over the channels serves them all: it goes on until every budget is at
    its own target. Some will have lost more than their target by then.

    Args:
        goals: The budgets with their targets, one at least.

    Example:

    ```python
    combined = CombinedBudget([
        Goal("flops_target", FlopsMeter.of(graph), 0.5),
        Goal("latency_target", LatencyMeter(table, graph), 0.4),
    ])
    for channel in order:
        if combined.met():
            break
        combined.remove(channel)
    ```
    """

    def __init__(self, goals: Sequence[Goal]):
        self.goals = tuple(goals)
        if not self.goals:
            raise ValueError(
                "One of `flops_target`, `params_target` and `latency_target` must be "
                "given. Received: none of them"
            )
        self._enough = [goal.enough for goal in self.goals]
        self._budgets = [goal.budget for goal in self.goals]
        self._pairs = list(zip(self._budgets, self._enough, strict=True))

    def reset(self) -> None:
        """Brings every removed channel back."""
        for budget in self._budgets:
            budget.reset()

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present, from every budget."""
        for budget in self._budgets:
            budget.remove(channel)

    def met(self) -> bool:
        """Tells whether every budget has reached its target."""
        return all(budget.current <= enough for budget, enough in self._pairs)

    @property
    def removed(self) -> dict[str, float]:
        """The fraction of each budget that is removed now, by the target's name."""
        return {goal.name: goal.removed for goal in self.goals}

    def unmet(self) -> list[str]:
        """Lists the targets that are not reached yet, by name."""
        return [
            goal.name
            for goal, (budget, enough) in zip(self.goals, self._pairs, strict=True)
            if budget.current > enough
        ]

    def __repr__(self):
        parts = ", ".join(
            f"{goal.name}={goal.target} ({goal.removed:.2%} removed)"
            for goal in self.goals
        )
        return f"CombinedBudget({parts})"
