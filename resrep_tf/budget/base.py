"""The interface that all budgets have in common."""

from typing import Protocol


class Budget(Protocol):
    """The cost of a network while its channels are removed one after the other.

    This is all that a selection asks for, so that anything which can be counted or
    measured (FLOPs, parameters, latency) can take its place.
    """

    @property
    def unit(self) -> str:
        """The name of what is counted, in the plural, for messages."""

    @property
    def total(self) -> float:
        """The cost with every channel present."""

    @property
    def current(self) -> float:
        """The cost without the channels removed since the last `reset`."""

    def cost(self, channel: int) -> float:
        """Returns by how much `current` would fall if `channel` were removed now."""

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""

    def reset(self) -> None:
        """Brings every removed channel back."""
