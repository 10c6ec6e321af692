"""Checks of arguments that several classes share, with one text for each error."""

import math
from typing import Any


def check_positive_integer(name: str, value: Any) -> None:
    """Raises unless the argument `name` is a whole number of at least 1."""
    if not (float(value).is_integer() and value >= 1):
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value}"
        )


def check_positive(name: str, value: float) -> None:
    """Raises unless the argument `name` is a finite number above 0."""
    if not 0 < value < math.inf:
        raise ValueError(
            f"`{name}` must be positive and finite. Received: {name}={value}"
        )


def check_not_negative(name: str, value: float) -> None:
    """Raises unless the argument `name` is a finite number of at least 0."""
    if not 0 <= value < math.inf:
        raise ValueError(
            f"`{name}` must be finite and not negative. Received: {name}={value}"
        )


def check_momentum(name: str, value: float) -> None:
    """Raises unless the argument `name` can be a momentum."""
    if not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a momentum, at least 0 and below 1. "
            f"Received: {name}={value}"
        )
