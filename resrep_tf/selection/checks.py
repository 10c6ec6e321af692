"""Checks of arguments that several classes share, with one text for each error."""

import math
import numbers
from typing import Any


def check_positive_integer(name: str, value: Any) -> None:
    """Raises unless the argument `name` is a whole number of at least 1."""
    if not _is_number(value) or not (float(value).is_integer() and value >= 1):
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )


def check_positive(name: str, value: float) -> None:
    """Raises unless the argument `name` is a finite number above 0."""
    if not _is_number(value) or not 0 < value < math.inf:
        raise ValueError(
            f"`{name}` must be positive and finite. Received: {name}={value!r}"
        )


def check_not_negative(name: str, value: float) -> None:
    """Raises unless the argument `name` is a finite number of at least 0."""
    if not _is_number(value) or not 0 <= value < math.inf:
        raise ValueError(
            f"`{name}` must be finite and not negative. Received: {name}={value!r}"
        )


def check_momentum(name: str, value: float) -> None:
    """Raises unless the argument `name` can be a momentum."""
    if not _is_number(value) or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a momentum, at least 0 and below 1. "
            f"Received: {name}={value!r}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
