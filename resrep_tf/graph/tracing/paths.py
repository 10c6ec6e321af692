"""Names the parts of a model after the attributes that lead to them."""

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import keras

from resrep_tf.graph.keras_calls import attributes, has_graph, operations
from resrep_tf.graph.keras_nodes import as_function


def attribute_paths(model: keras.Model) -> dict[int, str]:
    """Returns the dotted path of every layer inside a model, by the layer's id.

    A path has the names of a Functional model's layers, the numbers of a Sequential
    model's, and otherwise the attributes that hold the layers. If there are several
    paths, it is the first one of the shortest.
    """
    paths = {id(model): ""}
    waiting = deque([model])
    while waiting:
        layer = waiting.popleft()
        start = paths[id(layer)]
        for part, inner in _parts(layer):
            if id(inner) not in paths:
                paths[id(inner)] = f"{start}.{part}" if start else part
                waiting.append(inner)
    return paths


def _parts(layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    if isinstance(layer, keras.Sequential):
        yield from ((str(i), inner) for i, inner in enumerate(layer.layers))
    elif has_graph(layer):
        for op in operations(as_function(layer)):
            if isinstance(op, keras.Layer):
                yield op.name, op
    for key, value in attributes(layer).items():
        yield from _layers_in(value, key.strip("_"))


def _layers_in(value: Any, path: str) -> Iterator[tuple[str, keras.Layer]]:
    if isinstance(value, keras.Layer):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _layers_in(inner, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _layers_in(inner, f"{path}.{index}")


class Names:
    """Makes unique names for the operations of one graph."""

    def __init__(self):
        self._taken: set[str] = set()

    def unique(self, path: str) -> str:
        """Returns a name for a dotted path, with a number at its end if it is taken."""
        name = base = re.sub(r"[^A-Za-z0-9-]+", "_", path).strip("_") or "layer"
        number = 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def reserve(self, name: str) -> str:
        """Returns the name itself if it is free, and a unique one otherwise."""
        if name in self._taken:
            return self.unique(name)
        self._taken.add(name)
        return name


def inside(path: str, part: str) -> str:
    """Returns the path of a part of the layer at `path`."""
    return f"{path}.{part}" if path else part


def snake_case(name: str) -> str:
    """Returns the name of a class in lower case, as Keras names its layers."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
