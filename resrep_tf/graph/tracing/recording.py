"""Traces the `call` of one layer: records the calls that it makes, as a graph."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from resrep_tf.graph.keras_calls import (
    Reads,
    all_layers,
    attributes,
    attributes_replaced,
    in_mode,
    is_stock_method,
    nodes_between,
    takes_training,
)
from resrep_tf.graph.keras_nodes import Node
from resrep_tf.graph.tracing.open_extents import settle

# Keras's layers that return their input in inference.
_IDENTITY_IN_INFERENCE = (
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    keras.layers.AlphaDropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


class Untraceable(Exception):
    """Raised if a `call` cannot be traced; the text says why."""


@dataclass(frozen=True)
class OwnWeight:
    """A variable of a layer that its `call` uses directly.

    Args:
        variable: The variable.
        attribute: The dotted path of the attribute that holds it.
        owner: The layer.
    """

    variable: keras.Variable
    attribute: str
    owner: keras.Layer


@dataclass(frozen=True)
class Recording:
    """The calls that a `call` made.

    Args:
        inputs: The inputs of the `call`, by the id of the symbolic tensor that stood
            for each: a tensor of the graph outside, or an `OwnWeight`.
        outputs: The tensors that it returned, in their structure.
        nodes: The calls, in a runnable order.
        tensors: The symbolic tensors of `inputs`, kept so that ids are not used again.
        told: The keys of the calls whose `training` is that of the `call` itself.
    """

    inputs: dict[int, Any]
    outputs: Any
    nodes: list[Node]
    tensors: list[Any]
    told: frozenset[int] = frozenset()


def record(layer: keras.Layer, args: tuple, kwargs: dict, known: set[int]) -> Recording:
    """Returns the calls that a layer's `call` makes with these arguments.

    It is traced in both modes, training and inference. They must make the same calls,
    except where Keras's own layers differ by themselves.

    Args:
        layer: The layer.
        args: The positional arguments.
        kwargs: The keyword arguments, without `training`.
        known: The ids of all layers that the model has.

    Raises:
        Untraceable: If the calls are no graph, or the graph would compute something
            else.
    """
    _check(layer)
    training = _record(layer, args, kwargs, training=True)
    inference = _record(layer, args, kwargs, training=False)
    _check_layers(training.nodes, known)
    return _unite(training, inference)


def _check(layer: keras.Layer) -> None:
    if not is_stock_method(layer, "__call__"):
        raise Untraceable("its class has a `__call__` of its own")
    if layer.activity_regularizer is not None:
        raise Untraceable("it has an activity regularizer")
    if not is_stock_method(layer, "compute_mask"):
        raise Untraceable("it computes masks of its own")
    if layer.quantization_mode is not None:
        raise Untraceable("it is quantized")


def _check_layers(nodes: list[Node], known: set[int]) -> None:
    for node in nodes:
        op = node.op
        if not isinstance(op, keras.Layer):
            continue
        if id(op) not in known and op.weights:
            raise Untraceable("it makes a new layer with weights in every call")
        if not is_stock_method(op, "__call__"):
            kind = type(op).__name__
            raise Untraceable(f"the class `{kind}` inside has a `__call__` of its own")


def _record(layer: keras.Layer, args: tuple, kwargs: dict, training: bool) -> Recording:
    inputs: dict[int, Any] = {}
    tensors: list[Any] = []

    def stand_in(value: Any, shape: tuple, dtype: str) -> keras.KerasTensor:
        tensor = keras.KerasTensor(shape, dtype)
        inputs[id(tensor)] = value
        tensors.append(tensor)
        return tensor

    def symbol(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor):
            return stand_in(value, value.shape, value.dtype)
        return value

    args, kwargs = keras.tree.map_structure(symbol, (args, kwargs))
    weights = _weights_as_tensors(layer, stand_in)
    if takes_training(layer):
        kwargs = {**kwargs, "training": training}
    with attributes_replaced(layer, weights), Reads() as reads:
        outputs = in_mode(training, layer, lambda: _run(layer, args, kwargs))
    if isinstance(outputs, Untraceable):
        raise outputs
    for output in keras.tree.flatten(outputs):
        if not isinstance(output, keras.KerasTensor):
            raise Untraceable(
                "it returns something that is not computed from its input"
            )
    nodes = nodes_between(tensors, outputs)
    _check_constants(nodes, reads.variables)
    if open_extent := settle(nodes):
        raise Untraceable(open_extent)
    return Recording(inputs, outputs, nodes, tensors)


def _run(layer: keras.Layer, args: tuple, kwargs: dict) -> Any:
    """Returns the result of `call`, or an `Untraceable` with the reason."""
    try:
        return layer.call(*args, **kwargs)
    # A user's code may raise any exception.
    except Exception as error:
        reason = Untraceable(_in_words(error))
        reason.__cause__ = error
        return reason


def _weights_as_tensors(
    layer: keras.Layer, stand_in: Callable[..., keras.KerasTensor]
) -> dict[str, Any]:
    """Returns the attributes that hold variables, with symbolic tensors in their place.

    So the calls on these variables are recorded too.
    """
    known: dict[int, keras.KerasTensor] = {}
    others = {id(v) for inner in all_layers(layer)[1:] for v in inner.variables}

    def replaced(value: Any, path: str) -> Any:
        if isinstance(value, keras.Variable):
            if id(value) in others:
                return value
            if id(value) not in known:
                floating = keras.backend.is_float_dtype(value.dtype)
                dtype = layer.compute_dtype if floating else value.dtype
                weight = OwnWeight(value, path, layer)
                known[id(value)] = stand_in(weight, tuple(value.shape), dtype)
            return known[id(value)]
        if isinstance(value, dict):
            return _unless_equal(
                value, {k: replaced(v, f"{path}.{k}") for k, v in value.items()}
            )
        if type(value) is tuple or isinstance(value, list):
            new = [replaced(v, f"{path}.{i}") for i, v in enumerate(value)]
            return _unless_equal(value, tuple(new) if type(value) is tuple else new)
        return value

    new = {
        key: replaced(value, key.strip("_")) for key, value in attributes(layer).items()
    }
    return {key: value for key, value in new.items() if value is not vars(layer)[key]}


def _unless_equal(old: Any, new: Any) -> Any:
    values = (old.values(), new.values()) if isinstance(old, dict) else (old, new)
    same = all(a is b for a, b in zip(*values, strict=True))
    return old if same else new


def _check_constants(nodes: list[Node], read: list[keras.Variable]) -> None:
    """Raises if the graph would have a constant that every call computes again."""
    for node in nodes:
        for value in keras.tree.flatten(node.arguments(node.inputs)):
            if isinstance(value, keras.Variable):
                raise Untraceable(
                    f"it computes with `{value.path}`, a weight of another layer"
                )
            if not _is_concrete(value):
                continue
            if hasattr(value, "assign"):
                raise Untraceable("it uses a `tf.Variable`, which Keras does not train")
            if any("seed" in variable.name for variable in read):
                raise Untraceable("it draws random numbers in its `call`")
            if read:
                names = ", ".join(sorted({f"`{v.path}`" for v in read}))
                raise Untraceable(f"it computes with {names} beside its input")


def _is_concrete(value: Any) -> bool:
    """Returns True for a tensor with values, other than a variable of Keras."""
    return keras.ops.is_tensor(value) and not isinstance(
        value, (keras.KerasTensor, keras.Variable)
    )


def _in_words(error: Exception) -> str:
    text = str(error)
    if "cannot be used as input to a TensorFlow function" in text:
        return (
            "its `call` uses functions of TensorFlow, which cannot be traced; "
            "those of `keras.ops` can"
        )
    if "KerasTensor" in text and ("bool" in text or "iterat" in text.lower()):
        return "what its `call` does depends on the values of its data"
    if "NoneType" in text:
        return (
            "its `call` computes with a size that is open, such as the number of "
            "examples"
        )
    if "`add_loss()`" in text:
        return "it adds a loss in its `call`"
    first = text.strip().splitlines()[0] if text.strip() else ""
    return f"its `call` fails on symbolic tensors with {type(error).__name__}: {first}"


# === The two modes ===


def _unite(training: Recording, inference: Recording) -> Recording:
    """Returns one graph that does the same as each mode's graph in that mode."""
    known = {id(node.op) for node in inference.nodes}
    extra = {
        node.key
        for node in training.nodes
        if id(node.op) not in known and type(node.op) in _IDENTITY_IN_INFERENCE
    }
    numbers: dict[int, Any] = {}
    for recording in (training, inference):
        for index, tensor in enumerate(recording.tensors):
            numbers[id(tensor)] = index
    told = set(extra)
    others = iter(inference.nodes)
    for node in training.nodes:
        if node.key in extra:
            (given,) = node.inputs
            numbers[id(node.outputs[0])] = numbers[id(given)]
            continue
        other = next(others, None)
        if other is None or not _same_call(node, other, numbers, told):
            raise Untraceable("its `call` does something else in training")
        for index, pair in enumerate(zip(node.outputs, other.outputs, strict=True)):
            for tensor in pair:
                numbers[id(tensor)] = (node.key, index)
    one, two = (
        keras.tree.map_structure(
            lambda t: _Number(numbers.get(id(t))), recording.outputs
        )
        for recording in (training, inference)
    )
    if next(others, None) is not None or not _equal(one, two):
        raise Untraceable("its `call` returns something else in training")
    return dataclasses.replace(training, told=frozenset(told))


@dataclass(frozen=True)
class _Number:
    """Stands for a tensor when arguments are compared."""

    value: Any


def _same_call(one: Node, two: Node, numbers: dict[int, Any], told: set[int]) -> bool:
    """Returns True if two calls do the same, with or without an explicit mode."""
    if not _same_operation(one.op, two.op):
        return False
    calls = []
    for node in (one, two):
        args, kwargs = keras.tree.map_structure(
            lambda value: (
                _Number(numbers.get(id(value)))
                if isinstance(value, keras.KerasTensor)
                else value
            ),
            node.arguments(node.inputs),
        )
        calls.append((args, dict(kwargs)))
    modes = tuple(kwargs.get("training") for _, kwargs in calls)
    if modes == (True, False):
        told.add(one.key)
        for _, kwargs in calls:
            del kwargs["training"]
    return _equal(*calls)


def _same_operation(one: Any, two: Any) -> bool:
    if one is two:
        return True
    # Operations, and layers made inside `call`, are new objects in every call.
    if type(one) is not type(two):
        return False
    if isinstance(one, keras.Layer) and (one.weights or two.weights):
        return False
    # The settings of an operation of `keras.ops` are its attributes.
    return _equal(_settings(one), _settings(two))


def _settings(op: Any) -> dict[str, Any]:
    if isinstance(op, keras.Layer):
        return {k: v for k, v in op.get_config().items() if k != "name"}
    return {
        key: value
        for key, value in vars(op).items()
        if key not in ("name", "_inbound_nodes", "_outbound_nodes", "_auto_config")
    }


def _equal(one: Any, two: Any) -> bool:
    """Compares arguments and settings, arrays by their values."""
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(_equal, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_equal(one[k], two[k]) for k in one)
    if isinstance(one, keras.Variable) or isinstance(two, keras.Variable):
        return one is two
    if isinstance(one, np.ndarray) or _is_concrete(one):
        one, two = np.asarray(one), np.asarray(two)
        return one.shape == two.shape and bool((one == two).all())
    return type(one) is type(two) and bool(one == two)
