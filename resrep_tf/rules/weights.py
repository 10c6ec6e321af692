"""Reads the weights of a model, without changing the model.

Under a `tf.distribute` strategy, every replica of a BatchNorm keeps the moving
statistics of its own examples, and a plain read returns those of the first replica. The
functions here return the average over the replicas of this process. It does not matter
when moving averages are averaged, since they are linear.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def read(variable: Any) -> np.ndarray | None:
    """Returns a variable's value in float64, the precision of all merging.

    Args:
        variable: A variable or a tensor. None gives None.
    """
    return None if variable is None else stored(variable).astype(np.float64)


def stored(variable: Any) -> np.ndarray:
    """Returns a variable's value in its own type."""
    parts = _replicas(variable)
    if len(parts) == 1:
        return keras.ops.convert_to_numpy(parts[0])
    values = [keras.ops.convert_to_numpy(part) for part in parts]
    mean = np.mean([value.astype(np.float64) for value in values], axis=0)
    return mean.astype(values[0].dtype)


def weights_of(op: Any) -> list[np.ndarray]:
    """Returns an operation's weights; an empty list if it is no layer."""
    if not isinstance(op, keras.Layer):
        return []
    return [stored(variable) for variable in op.weights]


def _replicas(variable: Any) -> list[Any]:
    """Lists the values to average; several only for statistics with replicas."""
    if not isinstance(variable, keras.Variable) or variable.trainable:
        return [variable]
    value = variable.value
    if not isinstance(value, tf.distribute.DistributedValues):
        return [variable]
    if not keras.backend.is_float_dtype(variable.dtype):
        return [variable]  # Such as a random state, of which there is no average.
    return list(value.distribute_strategy.experimental_local_results(value))
