"""Reads the graph of calls that Keras has recorded.

A graph is a `keras.Function`; its nodes are calls of operations on tensors. This module
and `keras_calls`, which tracing needs, are the only ones that use Keras's own records.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

# Sizes of images that a model leaves open count as this.
DEFAULT_EXTENT = 224


def as_function(op: Any) -> keras.Function | None:
    """Returns the graph behind a Functional or built Sequential model, else None."""
    if isinstance(op, keras.Sequential):
        return getattr(op, "_functional", None)
    if isinstance(op, keras.Function) and isinstance(op, keras.Model):
        return op
    return None


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation, as Keras has recorded it.

    Args:
        key: Identifies the call as long as its model exists.
        op: The operation.
        inputs: The tensors it reads, in flattened argument order.
        outputs: The tensors it makes.
        arguments: Maps a list of values, one per input, to `(args, kwargs)`.
        inner: The graph of a nested model that can be entered, else None.
        entering: The tensors for the inputs of `inner`, in their order.
    """

    key: int
    op: Any
    inputs: list[keras.KerasTensor]
    outputs: list[keras.KerasTensor]
    arguments: Callable[[Sequence[Any]], tuple[tuple, dict]]
    inner: keras.Function | None = None
    entering: Sequence[keras.KerasTensor] = ()

    def number_of(self, output: keras.KerasTensor) -> int:
        """Returns the number of the call's output that a tensor is."""
        return [id(tensor) for tensor in self.outputs].index(id(output))


def nodes(function: keras.Function) -> Iterator[Node]:
    """Yields the calls of a graph in the order in which Keras runs them."""
    for _, level in sorted(function._nodes_by_depth.items(), reverse=True):
        for node in level:
            if not node.is_input:
                yield as_node(node)


def makers(function: keras.Function) -> dict[int, Node]:
    """Returns, by id of a tensor of a graph, the call that makes it.

    The graph's inputs are not included.
    """
    return {id(t): node for node in nodes(function) for t in node.outputs}


def as_node(node: Any) -> Node:
    """Returns one of Keras's own nodes as a `Node`."""
    inner = as_function(node.operation)
    entering = None if inner is None else _entering(node, inner)
    return Node(
        key=id(node),
        op=node.operation,
        inputs=node.input_tensors,
        outputs=node.outputs,
        arguments=_arguments(node),
        inner=None if entering is None else inner,
        entering=entering or (),
    )


def _entering(node: Any, function: keras.Function) -> list[keras.KerasTensor] | None:
    """Returns the tensors that a call passes to a nested model's inputs.

    The result is None if the call has further tensors, such as masks.
    """
    if len(node.input_tensors) != len(function.inputs):
        return None
    args, kwargs = node.arguments.args, node.arguments.kwargs
    given = args[0] if args else kwargs["inputs"]
    if isinstance(given, dict) and not isinstance(function._inputs_struct, dict):
        # Keras then finds inputs by their names, whatever their order.
        return [given[tensor.name] for tensor in function.inputs]
    return node.input_tensors


def _arguments(node: Any) -> Callable[[Sequence[Any]], tuple[tuple, dict]]:
    """Returns a function that turns values, one per input tensor, into arguments."""
    tensors = node.input_tensors

    def fill(values: Sequence[Any]) -> tuple[tuple, dict]:
        table = {id(t): v for t, v in zip(tensors, values, strict=True)}
        args, kwargs = node.arguments.fill_in(table)
        return tuple(args), dict(kwargs)

    return fill


def structures(function: keras.Function) -> tuple[Any, Any]:
    """Returns a graph's inputs and outputs, nested as its user passed them."""
    return function._inputs_struct, function._outputs_struct


def copy_input(
    tensor: keras.KerasTensor, shape: tuple[int | None, ...]
) -> keras.KerasTensor:
    """Returns a new input like `tensor`, but of another shape."""
    layer = tensor._keras_history.operation
    config = layer.get_config()
    config["batch_shape"] = (tensor.shape[0], *shape[1:])
    new = type(layer).from_config(config).output
    # For an unnamed input, Keras gives the tensor another name than the layer.
    # Exported models show the tensor's name.
    new.name = tensor.name
    return new


def check_model(model: Any) -> keras.Function:
    """Returns the graph of a model, or raises an error that says what to do."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model`. "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    function = as_function(model)
    if function is not None:
        return function
    if isinstance(model, keras.Sequential):
        raise ValueError(
            f"The Sequential model `{model.name}` has no input shape yet. Give it an "
            "`keras.Input` as its first layer, or call it once on data. "
            f"Received: model={model!r}"
        )
    raise ValueError(
        f"`model` must be Functional or Sequential, and `{type(model).__name__}` is "
        "neither. `resrep_tf.trace(model)` returns an equal Functional model. "
        f"Received: model={model!r}"
    )


def input_shapes(function: keras.Function, input_shape: Sequence | None) -> list[tuple]:
    """Returns the shapes of a graph's inputs, with a number for every open size."""
    shapes = [tuple(t.shape) for t in function.inputs]
    if input_shape is not None:
        given = [input_shape] if len(shapes) == 1 else list(input_shape)
        given = [tuple(g) for g in given]
        if len(given) != len(shapes) or any(
            len(g) != len(s) - 1
            or any(n not in (None, m) for n, m in zip(s[1:], g, strict=True))
            for g, s in zip(given, shapes, strict=True)
        ):
            raise ValueError(
                "`input_shape` must be the shape of one example (a list of shapes for "
                f"several inputs) that the model accepts: {shapes}. "
                f"Received: input_shape={input_shape}"
            )
        shapes = [(None, *g) for g in given]
    return [
        (None, *(DEFAULT_EXTENT if n is None else n for n in s[1:])) for s in shapes
    ]


def executions(
    function: keras.Function, input_shapes: list[tuple]
) -> list[tuple[Node, list[tuple], list[tuple]]]:
    """Lists every run of every node, nested ones included, with concrete shapes."""
    found: list[tuple[Node, list[tuple], list[tuple]]] = []

    def run(function: keras.Function, shapes: list[tuple]) -> list[tuple]:
        known = {id(t): s for t, s in zip(function.inputs, shapes, strict=True)}
        for node in nodes(function):
            if node.inner is not None:
                outputs = run(node.inner, [known[id(t)] for t in node.entering])
            else:
                inputs = [known[id(t)] for t in node.inputs]
                outputs = _output_shapes(node, inputs)
                found.append((node, inputs, outputs))
            known.update({id(t): s for t, s in zip(node.outputs, outputs, strict=True)})
        return [known[id(t)] for t in function.outputs]

    run(function, input_shapes)
    return found


def _output_shapes(node: Node, inputs: list[tuple]) -> list[tuple]:
    recorded = [tuple(t.shape) for t in node.inputs]
    outputs = [tuple(t.shape) for t in node.outputs]
    if recorded == inputs and all(None not in shape[1:] for shape in outputs):
        return outputs
    specs = [
        keras.KerasTensor(shape, dtype=t.dtype)
        for shape, t in zip(inputs, node.inputs, strict=True)
    ]
    args, kwargs = node.arguments(specs)
    spec = node.op.compute_output_spec(*args, **kwargs)
    return [tuple(t.shape) for t in keras.tree.flatten(spec)]
