"""What a model computes just before its outputs.

A saturated softmax gives the same outputs for very different logits, and a dead ReLU
for everything. So a comparison also looks at what enters the operations without
weights at a model's end, back to the layers that made it, and at those layers before
their own activations.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from resrep_tf.graph.keras_nodes import Node, as_function, makers, structures

# Where a value was seen: the number of the output, then the number of the input of
# each operation on the way back from there.
Path = tuple[int, ...]
_MODEL_CALL = {"training": False}


def observe(model: keras.Model, inputs: Any) -> dict[Path, Any]:
    """Runs a model as in inference.

    Returns:
        Its outputs, under the paths `(0,)`, `(1,)` and so on, and what they were made
        from. Models of the same operations have values under the same paths.
    """
    function = as_function(model)
    if function is None:
        outputs = keras.tree.flatten(model(inputs, **_MODEL_CALL))
        return {(number,): value for number, value in enumerate(outputs)}
    ends: dict[Path, int] = {
        (number,): number for number in range(len(function.outputs))
    }
    return _Observer(function).run(inputs, ends)


class _Observer:
    """Finds what to look at in one graph, and runs the graph up to there."""

    def __init__(self, function: keras.Function):
        self._function = function
        self._makers = makers(function)
        self._seen: dict[Path, keras.KerasTensor] = {}
        # Layers with an activation of their own, and nested models, by path.
        self._active: dict[Path, Node] = {}
        self._nested: dict[Path, tuple[Node, int]] = {}

    def run(self, inputs: Any, ends: dict[Path, int]) -> dict[Path, Any]:
        for path, number in ends.items():
            self._walk(self._function.outputs[number], path)
        values = self._values(inputs)
        found = {path: values[id(t)] for path, t in self._seen.items()}
        for path, node in self._active.items():
            found[(*path, 0)] = _without_activation(
                node, [values[id(t)] for t in node.inputs]
            )
        for path, (node, number) in self._nested.items():
            entering = [values[id(t)] for t in node.entering]
            packed = keras.tree.pack_sequence_as(structures(node.inner)[0], entering)
            found |= _Observer(node.inner).run(packed, {path: number})
        return found

    def _walk(self, tensor: keras.KerasTensor, path: Path) -> None:
        self._seen[path] = tensor
        node = self._makers.get(id(tensor))
        if node is None:
            return
        if node.inner is not None:
            self._nested[path] = (node, node.number_of(tensor))
        elif not getattr(node.op, "weights", None):
            for number, source in enumerate(node.inputs):
                self._walk(source, (*path, number))
        elif getattr(node.op, "activation", None) is not None:
            self._active[path] = node

    def _values(self, inputs: Any) -> dict[int, Any]:
        wanted = list(self._seen.values())
        for node in self._active.values():
            wanted += node.inputs
        for node, _ in self._nested.values():
            wanted += node.entering
        tensors = list({id(tensor): tensor for tensor in wanted}.values())
        part = keras.Model(structures(self._function)[0], tensors)
        found = part(inputs, **_MODEL_CALL)
        return {id(t): value for t, value in zip(tensors, found, strict=True)}


def _without_activation(node: Node, values: list[Any]) -> Any:
    args, kwargs = node.arguments(values)
    kwargs.pop("training", None)
    activation = node.op.activation
    try:
        node.op.activation = keras.activations.linear
        outputs = node.op(*args, **kwargs)
    finally:
        node.op.activation = activation
    # A recurrent layer has several outputs; its state is not made at once anyway.
    return keras.tree.flatten(outputs)[0]


@contextlib.contextmanager
def in_single_precision(model: keras.Model) -> Iterator[None]:
    """Lets a model in mixed precision compute in float32, then as before."""
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
    """Returns whether a model computes in less precision than its weights have."""
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
