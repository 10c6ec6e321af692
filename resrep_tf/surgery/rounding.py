"""Estimates how far rounding can move the values that a model computes.

Two models that compute the same in another order differ by rounding. Where the terms of
a sum nearly cancel, the sum is small, but the rounding errors of its terms are not: the
sum differs a lot relative to its size, though nothing is wrong. The size of this effect
can be measured without looking into layers: change every weight by a small random share
of itself, and see how far the values move. Rounding also changes numbers by random
shares, whose size is known.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from resrep_tf.rules.weights import stored

# For each type of numbers, the relative distance to the next larger number.
_SHARES = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
}
# A number is rounded several times on its way, in both models. In random graphs the
# models differed as if all weights had been changed by 0.5 to 3 of these shares.
_TIMES = 16
# The number of random changes, since one of them does not move all values.
_DRAWS = 4


def rounding(
    model: keras.Model, compute: Callable[[], list[Any]], precision: str
) -> list[np.ndarray]:
    """Returns how far rounding may move values that a model computes.

    Args:
        model: The model; its weights are restored at the end.
        compute: Runs it and returns values, each with its examples along the first
            axis.
        precision: The type of the numbers that it computes with.

    Returns:
        For each value, how far each example of it may move; 0 if this is unknown, as
        the value is not finite.
    """
    share = _SHARES[precision]
    # Small enough that the model is nearly linear, and large enough to exceed rounding.
    step = share**0.5
    rng = np.random.default_rng(0)
    values = [as_rows(value) for value in compute()]
    squares = [np.zeros_like(value) for value in values]
    for _ in range(_DRAWS):
        with _changed(model, step, rng):
            moved = [as_rows(value) for value in compute()]
        with np.errstate(invalid="ignore"):  # Infinity minus infinity.
            for total, before, after in zip(squares, values, moved, strict=True):
                total += ((after - before) / step) ** 2
    response = [np.sqrt(s.max(axis=1, initial=0.0) / _DRAWS) for s in squares]
    return [
        np.nan_to_num(_TIMES * share * each, nan=0.0, posinf=0.0) for each in response
    ]


def as_rows(value: Any) -> np.ndarray:
    """Returns a value as numbers in double precision, one row for each example."""
    array = keras.ops.convert_to_numpy(value).astype(np.float64)
    return array.reshape(len(array), -1)


@contextlib.contextmanager
def _changed(
    model: keras.Model, step: float, rng: np.random.Generator
) -> Iterator[None]:
    """Changes every weight by a random share of itself inside the block."""
    variables = [v for v in model.weights if keras.backend.is_float_dtype(v.dtype)]
    before = [stored(variable) for variable in variables]
    try:
        for variable, value in zip(variables, before, strict=True):
            noise = rng.standard_normal(value.shape, dtype=np.float32)
            variable.assign(value * (1 + step * noise).astype(value.dtype))
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
