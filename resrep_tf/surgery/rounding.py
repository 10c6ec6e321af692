"""How far rounding can move what a model computes.

Two models that compute the same in another order differ by rounding. Where the terms of
a sum nearly cancel, the sum is small and the rounding of its terms is not: relative to
its size the sum differs a lot, though nothing is wrong. How far that goes is found
without looking into layers: change every weight by a small random share of itself, and
see how far the values move. Rounding changes numbers by random shares too, known ones.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from resrep_tf.rules.weights import stored

# The share by which the next number differs, by the type of numbers.
_SHARES = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
}
# A number is rounded several times on its way, in both models. In random graphs their
# difference was that of changing all weights by 0.5 to 3 of these shares.
_TIMES = 16
# A random change does not move all values alike: so many are tried.
_DRAWS = 4


def rounding(
    model: keras.Model, compute: Callable[[], list[Any]], precision: str
) -> list[np.ndarray]:
    """Returns how far rounding may move values that a model computes.

    Args:
        model: The model; its weights are put back.
        compute: Runs it and returns values, each with its examples along the first
            axis.
        precision: The type of the numbers that it computes with.

    Returns:
        For each value, how far each example of it may move; 0 where that is not known
        because it is not finite.
    """
    share = _SHARES[precision]
    # Neither so large that the model is not straight, nor lost in rounding itself.
    step = share**0.5
    rng = np.random.default_rng(0)
    values = [as_rows(value) for value in compute()]
    squares = [np.zeros_like(value) for value in values]
    for _ in range(_DRAWS):
        with _changed(model, step, rng):
            moved = [as_rows(value) for value in compute()]
        with np.errstate(invalid="ignore"):  # Of infinity and infinity.
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
    """Changes every weight by a random share of itself, and puts them back."""
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
