"""Example inputs for a converter and for the comparison after it."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from resrep_tf.graph.keras_nodes import DEFAULT_EXTENT


def inputs_of(calibration: Any, examples: int, shape: tuple) -> np.ndarray | None:
    """Returns the first inputs of a calibration set as one array, or None for None.

    Args:
        calibration: An array of inputs, or an iterable of batches (a
            `tf.data.Dataset` is one), each of inputs or a tuple of inputs and targets.
        examples: How many inputs to take at most. The iterable may be endless.
        shape: The shape of the model's inputs with their batch, None where open.
    """
    if calibration is None:
        return None
    taken, count = [], 0
    for batch in _batches(calibration):
        taken.append(_checked(batch, shape)[: examples - count])
        count += len(taken[-1])
        if count >= examples:
            break
    if not count:
        raise ValueError(
            "`calibration` must hold at least one input. "
            f"Received: calibration={_described(calibration)}"
        )
    sizes = {batch.shape[1:] for batch in taken}
    if len(sizes) > 1:
        raise ValueError(
            "`calibration` must have inputs of one size. "
            f"Received: inputs of {' and '.join(map(str, sorted(sizes)))}"
        )
    return np.concatenate(taken)


def _batches(calibration: Any) -> Iterator[Any]:
    if isinstance(calibration, tuple) and len(calibration) == 2:
        # The form of Keras's `validation_data`: all inputs and all targets.
        calibration = calibration[0]
    if hasattr(calibration, "shape") and hasattr(calibration, "__array__"):
        yield calibration
        return
    if isinstance(calibration, (str, bytes, dict)) or not isinstance(
        calibration, Iterable
    ):
        raise TypeError(
            "`calibration` must be an array of inputs, or batches of inputs or of "
            "tuples (inputs, targets), such as a `tf.data.Dataset`. "
            f"Received: calibration={_described(calibration)}"
        )
    for batch in calibration:
        yield batch[0] if isinstance(batch, (tuple, list)) else batch


def _checked(batch: Any, shape: tuple) -> np.ndarray:
    try:
        inputs = np.asarray(keras.ops.convert_to_numpy(batch), "float32")
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`calibration` must have batches of numbers. "
            f"Received: a batch of {type(batch).__name__}"
        ) from error
    if not fits(inputs.shape, shape):
        raise ValueError(
            f"`calibration` must have batches of the model's inputs, {shape}. "
            f"Received: a batch of {inputs.shape}"
        )
    if not np.isfinite(inputs).all():
        raise ValueError(
            "`calibration` must have finite numbers. "
            "Received: a batch with NaN or infinity"
        )
    return inputs


def fits(given: tuple, shape: tuple) -> bool:
    """Returns whether a batch has a shape, whatever its batch size."""
    return len(given) == len(shape) and all(
        wanted in (None, found)
        for found, wanted in zip(given[1:], shape[1:], strict=True)
    )


def _described(calibration: Any) -> str:
    return f"{type(calibration).__name__}"


def random_inputs(shape: tuple, examples: int) -> np.ndarray:
    """Returns random inputs for a model whose scale of pixels is unknown.

    Every second one has values of the size of pixels of 0 to 255: a model that rescales
    its images first would hardly see a difference between small values.
    """
    extents = [DEFAULT_EXTENT if n is None else n for n in shape[1:]]
    inputs = np.random.default_rng(0).standard_normal((examples, *extents))
    inputs[1::2] = 128 * np.abs(inputs[1::2])
    return inputs.astype("float32")


def in_batches(inputs: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yields the rows of an array in parts of `size`; the last may be smaller."""
    for start in itertools.count(0, size):
        if start >= len(inputs):
            return
        yield inputs[start : start + size]
