"""Observes the values that a model computes just before its outputs.

A saturated softmax gives the same outputs for very different logits, and a ReLU gives
zero for all negative numbers. So a comparison also needs the inputs of the operations
without weights at a model's end, back to the layers that made them, and the values of
those layers before their own activations.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from resrep_tf.graph.keras_nodes import Node, as_function, makers, structures

# The place of a value: the number of the output, then the number of the input of each
# operation on the way back from there.
Path = tuple[int, ...]
_MODEL_CALL = {"training": False}


def observer(model: keras.Model) -> Callable[[Any], dict[Path, Any]]:
    """Returns a function that runs a model as in inference.

    It returns the model's outputs, under the paths `(0,)`, `(1,)` and so on, and the
    values before them. Models of the same operations have values under the same paths.
    """
    function = as_function(model)
    if function is None:
        return lambda inputs: dict(_numbered(model(inputs, **_MODEL_CALL)))
    ends: dict[Path, int] = {
        (number,): number for number in range(len(function.outputs))
    }
    return _Observer(function, ends)


def _numbered(outputs: Any) -> Iterator[tuple[Path, Any]]:
    for number, value in enumerate(keras.tree.flatten(outputs)):
        yield (number,), value


class _Observer:
    """Finds the values to observe in one graph, and computes them."""

    def __init__(self, function: keras.Function, ends: dict[Path, int]):
        self._function = function
        self._makers = makers(function)
        self._seen: dict[Path, keras.KerasTensor] = {}
        # Layers with an activation of their own, and nested models, by path.
        self._active: dict[Path, Node] = {}
        self._nested: dict[Path, tuple[Node, _Observer]] = {}
        for path, number in ends.items():
            self._walk(function.outputs[number], path)
        self._tensors = list({id(tensor): tensor for tensor in self._wanted()}.values())
        self._part = keras.Model(structures(function)[0], self._tensors)

    def __call__(self, inputs: Any) -> dict[Path, Any]:
        computed = self._part(inputs, **_MODEL_CALL)
        values = dict(zip(map(id, self._tensors), computed, strict=True))
        found = {path: values[id(t)] for path, t in self._seen.items()}
        for path, node in self._active.items():
            found[(*path, 0)] = _without_activation(
                node, [values[id(t)] for t in node.inputs]
            )
        for node, inner in self._nested.values():
            entering = [values[id(t)] for t in node.entering]
            structure = structures(node.inner)[0]
            found |= inner(keras.tree.pack_sequence_as(structure, entering))
        return found

    def _walk(self, tensor: keras.KerasTensor, path: Path) -> None:
        self._seen[path] = tensor
        node = self._makers.get(id(tensor))
        if node is None:
            return
        if node.inner is not None:
            inner = _Observer(node.inner, {path: node.number_of(tensor)})
            self._nested[path] = (node, inner)
        elif not getattr(node.op, "weights", None):
            for number, source in enumerate(node.inputs):
                self._walk(source, (*path, number))
        elif getattr(node.op, "activation", None) is not None:
            self._active[path] = node

    def _wanted(self) -> Iterator[keras.KerasTensor]:
        yield from self._seen.values()
        for node in self._active.values():
            yield from node.inputs
        for node, _ in self._nested.values():
            yield from node.entering


def _without_activation(node: Node, values: list[Any]) -> Any:
    args, kwargs = node.arguments(values)
    kwargs.pop("training", None)
    activation = node.op.activation
    try:
        node.op.activation = keras.activations.linear
        outputs = node.op(*args, **kwargs)
    finally:
        node.op.activation = activation
    # A recurrent layer has several outputs, of which the first counts.
    return keras.tree.flatten(outputs)[0]


@contextlib.contextmanager
def in_single_precision(model: keras.Model) -> Iterator[None]:
    """Makes a model in mixed precision compute in float32 inside the block."""
    layers = [layer for layer in _all_layers(model) if _is_mixed(layer)]
    before = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer.dtype_policy = "float32"
        yield
    finally:
        for layer, policy in zip(layers, before, strict=True):
            layer.dtype_policy = policy


def is_mixed(model: keras.Model) -> bool:
    """Returns whether a model computes in lower precision than its weights have."""
    return any(_is_mixed(layer) for layer in _all_layers(model))


def _all_layers(model: keras.Model) -> Iterator[keras.Layer]:
    yield model
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _all_layers(layer)
        else:
            yield layer


def _is_mixed(layer: Any) -> bool:
    policy = getattr(layer, "dtype_policy", None)
    return getattr(policy, "name", "").startswith("mixed_")
