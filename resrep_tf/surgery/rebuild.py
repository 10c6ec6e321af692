"""Builds a new model from a graph, call by call; the given model is only read."""

from collections.abc import Sequence
from typing import Any

import keras

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.keras_nodes import Node, copy_input, nodes, structures
from resrep_tf.rules import Call, Tensor


class Rebuilder:
    """Copies a model; subclasses override the parts to change.

    Layers are created again from their configs, under their own names, once each,
    however often they are called. Nested models stay nested. A layer is trainable in
    the copy if it and all models around it were trainable.
    """

    def __init__(self, graph: ChannelGraph):
        self.graph = graph
        self._ops: dict[int, Any] = {}
        self._nested: dict[int, keras.Model] = {}

    def build(self, model_class: type = keras.Model) -> keras.Model:
        """Returns the copy, as a model of `model_class`."""
        model = self.graph.model
        inputs, outputs = self._copy(self.graph.function, model.trainable)
        return model_class(inputs, outputs, name=model.name)

    def made(self, op: Any) -> Any:
        """Returns the new operation that replaces one of the given model."""
        return self._ops[id(op)]

    # === For subclasses ===

    def shape(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Returns the shape of a model's input in the new model."""
        return tensor.shape

    def make(self, call: Call) -> tuple[Any, list]:
        """Returns the new operation for a call, and its weights; called once each."""
        return call.rule.clone(call.op)

    def arguments(self, call: Call, values: Sequence[Any]) -> tuple[tuple, dict]:
        """Returns the arguments of a call in the new model."""
        return call.arguments(values)

    def call(self, call: Call, values: Sequence[Any], trainable: bool) -> Any:
        """Makes a call in the new model and returns its outputs."""
        args, kwargs = self.arguments(call, values)
        known = self._ops.get(id(call.op))
        if known is not None:
            return known(*args, **kwargs)
        op, weights = self._make(call)
        self._ops[id(call.op)] = op
        outputs = op(*args, **kwargs)
        if isinstance(op, keras.Layer):
            op.trainable = op.trainable and trainable
            if weights:
                op.set_weights(weights)
        return outputs

    # === Walking ===

    def _make(self, call: Call) -> tuple[Any, list]:
        try:
            return self.make(call)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise ValueError(
                f"{call.describe()} cannot be copied from its config. A custom layer "
                "needs a `get_config()` that its constructor accepts; a `Lambda` "
                "layer can be written with `keras.ops` instead. "
                f"Received: {type(error).__name__}: {error}"
            ) from error

    def _copy(self, function: keras.Function, trainable: bool) -> tuple[Any, Any]:
        new = {id(tensor): self._input(tensor) for tensor in function.inputs}
        for node in nodes(function):
            if node.inner is None:
                values = [new[id(tensor)] for tensor in node.inputs]
                outputs = self.call(self.graph.calls[node.key], values, trainable)
            else:
                outputs = self._call_nested(node, new, trainable)
            flat = keras.tree.flatten(outputs)
            new.update(zip(map(id, node.outputs), flat, strict=True))
        inputs, outputs = structures(function)
        return (
            keras.tree.map_structure(lambda tensor: new[id(tensor)], inputs),
            keras.tree.map_structure(lambda tensor: new[id(tensor)], outputs),
        )

    def _call_nested(self, node: Node, new: dict[int, Any], trainable: bool) -> Any:
        # The values are passed in the model's own structure: if they were passed by
        # name, Keras would confuse inputs of different widths.
        values = [new[id(tensor)] for tensor in node.entering]
        inputs = keras.tree.pack_sequence_as(structures(node.inner)[0], values)
        args, kwargs = node.arguments([new[id(tensor)] for tensor in node.inputs])
        kwargs.pop("inputs", None)
        return self._nested_model(node, trainable)(inputs, *args[1:], **kwargs)

    def _nested_model(self, node: Node, trainable: bool) -> keras.Model:
        model = node.op
        if id(model) not in self._nested:
            inputs, outputs = self._copy(node.inner, trainable and model.trainable)
            self._nested[id(model)] = keras.Model(inputs, outputs, name=model.name)
        return self._nested[id(model)]

    def _input(self, tensor: keras.KerasTensor) -> keras.KerasTensor:
        return copy_input(tensor, self.shape(self.graph.tensor(tensor)))
