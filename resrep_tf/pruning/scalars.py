"""Scalars out of variables and tensors."""

from typing import Any

from keras import ops


def number(scalar: Any) -> Any:
    """Returns a scalar as a Python number, also where it has several replicas.

    `int` and `float` fail there.
    """
    return ops.convert_to_numpy(scalar).item()
