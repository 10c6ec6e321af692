"""How Keras stores a graph of calls: the only module that knows.

A graph is a `keras.Function`; its nodes are calls of operations on tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

# Spatial extents that a model leaves open are counted at this size.
DEFAULT_EXTENT = 224


def as_function(op: Any) -> keras.Function | None:
    """The graph behind a Functional or built Sequential model, else None."""
    if isinstance(op, keras.Sequential):
        return getattr(op, "_functional", None)
    if isinstance(op, keras.Function) and isinstance(op, keras.Model):
        return op
    return None


def nodes(function: keras.Function) -> Iterator[Any]:
    """The calls of a graph in the order in which Keras runs them."""
    for _, level in sorted(function._nodes_by_depth.items(), reverse=True):
        for node in level:
            if not node.is_input:
                yield node


def structures(function: keras.Function) -> tuple[Any, Any]:
    """A graph's inputs and outputs, nested as its user passed them."""
    return function._inputs_struct, function._outputs_struct


def entering(node: Any, function: keras.Function) -> list[keras.KerasTensor] | None:
    """What a call of a nested model hands to each of its inputs, in their order.

    None if the call has further tensors, such as masks.
    """
    if len(node.input_tensors) != len(function.inputs):
        return None
    args, kwargs = node.arguments.args, node.arguments.kwargs
    given = args[0] if args else kwargs["inputs"]
    if isinstance(given, dict) and not isinstance(function._inputs_struct, dict):
        # Keras goes by the inputs' names then, whatever their order.
        return [given[tensor.name] for tensor in function.inputs]
    return node.input_tensors


def input_layer(tensor: keras.KerasTensor) -> keras.Layer:
    return tensor._keras_history.operation


def check_model(model: Any) -> keras.Function:
    """The graph of a model, or an error that says what to do about it."""
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
        "Only Functional and Sequential models can be pruned: the calls inside a "
        f"subclassed model are not visible. Rebuild `{type(model).__name__}` with "
        "`keras.Model(inputs, outputs)`, for example from the tensors its `call` "
        f"makes. Received: model={model!r}"
    )


def arguments(node: Any) -> Callable[[Sequence[Any]], tuple[tuple, dict]]:
    """A function from values, one per input tensor, to the call's arguments."""
    tensors = node.input_tensors

    def fill(values: Sequence[Any]) -> tuple[tuple, dict]:
        table = {id(t): v for t, v in zip(tensors, values, strict=True)}
        args, kwargs = node.arguments.fill_in(table)
        return tuple(args), dict(kwargs)

    return fill


def input_shapes(function: keras.Function, input_shape: Sequence | None) -> list[tuple]:
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
) -> list[tuple[Any, list[tuple], list[tuple]]]:
    """Every run of every node, nested ones included, with concrete shapes."""
    found: list[tuple[Any, list[tuple], list[tuple]]] = []

    def run(function: keras.Function, shapes: list[tuple]) -> list[tuple]:
        known = {id(t): s for t, s in zip(function.inputs, shapes, strict=True)}
        for node in nodes(function):
            inner = as_function(node.operation)
            entered = None if inner is None else entering(node, inner)
            if entered is not None:
                outputs = run(inner, [known[id(t)] for t in entered])
            else:
                inputs = [known[id(t)] for t in node.input_tensors]
                outputs = _output_shapes(node, inputs)
                found.append((node, inputs, outputs))
            known.update({id(t): s for t, s in zip(node.outputs, outputs, strict=True)})
        return [known[id(t)] for t in function.outputs]

    run(function, input_shapes)
    return found


def _output_shapes(node: Any, inputs: list[tuple]) -> list[tuple]:
    recorded = [tuple(t.shape) for t in node.input_tensors]
    outputs = [tuple(t.shape) for t in node.outputs]
    if recorded == inputs and all(None not in shape[1:] for shape in outputs):
        return outputs
    specs = [
        keras.KerasTensor(shape, dtype=t.dtype)
        for shape, t in zip(inputs, node.input_tensors, strict=True)
    ]
    args, kwargs = arguments(node)(specs)
    spec = node.operation.compute_output_spec(*args, **kwargs)
    return [tuple(t.shape) for t in keras.tree.flatten(spec)]
