"""Reads the inputs from data, in all forms that Keras accepts."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras


def batches_of(
    model: keras.Model, data: Any, batch_size: int, name: str = "data"
) -> Iterator[Any]:
    """Yields the inputs of each batch.

    Args:
        model: The model that they are for.
        data: Arrays, a tuple `(inputs, targets)` of them, or an iterable of batches,
            each inputs or such a tuple; a `tf.data.Dataset` is one.
        batch_size: The size of a batch if `data` are arrays.
        name: The user's argument that `data` came from, for messages.
    """
    # A list is either the inputs of one model, or batches.
    several = isinstance(data, list) and len(data) == len(model.inputs) > 1
    several = several and all(hasattr(part, "shape") for part in data)
    if not (several or isinstance(data, (tuple, dict)) or hasattr(data, "shape")):
        if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
            raise TypeError(
                f"`{name}` must be arrays or an iterable of batches. "
                f"Received: {name}={data!r} (of type {type(data).__name__})"
            )
        for batch in data:
            yield _without_targets(batch)
        return
    arrays = _without_targets(data)
    size = len(keras.tree.flatten(arrays)[0])
    for first in range(0, size, batch_size):
        yield keras.tree.map_structure(
            lambda array, at=first: array[at : at + batch_size], arrays
        )


def _without_targets(data: Any) -> Any:
    """Returns the inputs of `(inputs, targets)`; a list, unlike in Keras, is inputs."""
    return data[0] if isinstance(data, tuple) else data
