"""Helps tracing: records calls with Keras, and distinguishes kinds of layers.

`keras_nodes` reads graphs that exist; this module helps to make them. No other module
uses Keras's own records of calls.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras

from resrep_tf.graph.keras_nodes import Node, as_function, as_node
from resrep_tf.rules import rule_for

# === Kinds of operations ===

_OURS = ("keras.", "resrep_tf.")


def is_stock(cls: type) -> bool:
    """Returns True for classes of Keras and of this package."""
    return cls.__module__.startswith(_OURS)


def has_graph(op: Any) -> bool:
    """Returns True for a model whose calls are recorded, and which runs just those."""
    return as_function(op) is not None and is_stock_method(op, "call")


def is_stock_method(op: Any, name: str) -> bool:
    """Returns True if a method comes from Keras, not from a user's class."""
    return getattr(type(op), name).__module__.startswith(_OURS)


def is_leaf(op: Any) -> bool:
    """Returns True for an operation that a traced graph contains unchanged."""
    if not isinstance(op, keras.Layer):
        return True
    if as_function(op) is not None or isinstance(op, keras.Sequential):
        return False
    if type(op) is keras.layers.Activation and _is_users(op.activation):
        return False  # A lambda, which no config can hold.
    return is_stock(type(op)) or not rule_for(op).opaque


def _is_users(function: Any) -> bool:
    """Returns True for a function that is not of Keras or TensorFlow."""
    module = getattr(function, "__module__", None) or ""
    return not module.startswith((*_OURS, "tensorflow"))


def takes_training(layer: keras.Layer) -> bool:
    """Returns True if the layer's `call` has an argument `training`."""
    return "training" in layer.call_signature_parameters


# Layers that take `training` but do the same in both modes, unless quantized.
_SAME_IN_TRAINING = (keras.layers.Dense, keras.layers.EinsumDense)


def is_sensitive(layer: keras.Layer) -> bool:
    """Returns True if a layer, or one inside it, computes differently in training."""
    return any(
        takes_training(inner)
        and not inner._layers
        and type(inner) not in _SAME_IN_TRAINING
        and not (
            isinstance(inner, keras.layers.BatchNormalization) and not inner.trainable
        )
        for inner in all_layers(layer)
    )


# Attributes that a subclass may define without changing what is computed.
_HARMLESS = {
    *("__init__", "__doc__", "__module__", "__qualname__", "__firstlineno__"),
    *("__static_attributes__", "__annotations__", "build", "get_config"),
    *("from_config", "compute_output_shape", "__classcell__"),
}


def stock_class(op: Any) -> type | None:
    """Returns the class of Keras with which a user's class computes the same, or None.

    Such a user's class changes how a layer is made, not what it computes.
    """
    if not isinstance(op, keras.Layer) or is_stock(type(op)):
        return None
    for cls in type(op).__mro__:
        if is_stock(cls):
            plain = cls in (keras.layers.Layer, keras.Model, keras.Sequential)
            return None if plain or issubclass(cls, keras.Model) else cls
        if set(vars(cls)) - _HARMLESS:
            return None
    return None


def operations(function: keras.Function) -> list[Any]:
    """Returns the operations of a graph, each once."""
    return function.operations


def all_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Returns a layer and all layers inside it."""
    return layer._flatten_layers()


class _Stage(keras.layers.Layer):
    """Runs a function inside its own call, where layers look up their mode."""

    def __init__(self, function: Callable[[], Any], **kwargs):
        super().__init__(**kwargs)
        self._function = function
        self.result: list[Any] = []

    def call(self, inputs, training=None):
        return inputs

    def compute_output_spec(self, inputs, training=None):
        # `__setattr__` would register the layers in the result as parts of this one.
        self.__dict__["result"] = self._function()
        return keras.KerasTensor(inputs.shape)


def in_mode(training: bool, layer: keras.Layer, function: Callable[[], Any]) -> Any:
    """Returns the result of a function that runs as a part of a layer's call.

    Layers that it calls without `training` are then in this mode, which Keras records,
    and their variables have the type in which the layer computes.
    """
    stage = _Stage(function, name="stage", dtype=layer.dtype_policy)
    stage(keras.KerasTensor((1,)), training=training)
    return stage.result


# === Twins ===


def twin(op: Any, name: str, trainable: bool = True, cls: type | None = None) -> Any:
    """Returns an operation that shares everything with `op` except name and calls.

    Weights, seeds and settings are the same objects. The user's layer itself cannot be
    called in a new graph: names in a graph are unique, so its name would have to
    change, and the calls would stay recorded on it.
    """
    copy: Any = object.__new__(cls or type(op))
    # `__setattr__` would register the attributes a second time.
    copy.__dict__.update(vars(op))
    copy.__dict__.update(name=name, _inbound_nodes=[], _outbound_nodes=[])
    if isinstance(op, keras.Layer):
        copy.__dict__["_trainable"] = op.trainable and trainable
        if _lacks_config(copy):
            copy.__dict__["_auto_config"] = _NoArguments()
    return copy


class _NoArguments:
    """Stands for a layer whose constructor has only the arguments of all layers."""

    config: dict[str, Any] = {}  # noqa: RUF012


def _lacks_config(layer: keras.Layer) -> bool:
    """Returns True for layers of Keras that have no usable `get_config`.

    They have no settings and so do not define it. Keras then uses the arguments of the
    constructor, and fails if one of them is a dtype policy.
    """
    default = type(layer).get_config is keras.layers.Layer.get_config
    return default and is_stock(type(layer)) and layer._auto_config is None


def lost_arguments(layer: keras.Layer) -> list[str]:
    """Returns the arguments of a layer's constructor that its config does not contain.

    A layer made from that config would have their defaults. Keras keeps the arguments
    of a constructor if all are plain values; otherwise the attributes of the same names
    are compared.
    """
    config = layer.get_config()
    recorded = getattr(layer, "_auto_config", None)
    given = vars(layer) if recorded is None else recorded.config
    lost = []
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        default = parameter.default
        if default is parameter.empty or name in config or name not in given:
            continue
        # Only plain values are compared: comparing arrays gives no truth value.
        plain = isinstance(default, _PLAIN) and isinstance(given[name], _PLAIN)
        if plain and given[name] != default:
            lost.append(name)
    return lost


_PLAIN = (str, int, float, bool, type(None), tuple, list)


@contextlib.contextmanager
def calls_forgotten(model: keras.Model) -> Iterator[None]:
    """Removes the calls that user layers recorded inside the block."""
    before = {
        id(layer): (layer, len(layer._inbound_nodes), len(layer._outbound_nodes))
        for layer in all_layers(model)
    }
    try:
        yield
    finally:
        for layer in all_layers(model):
            _, made, read = before.get(id(layer), (layer, 0, 0))
            del layer._inbound_nodes[made:]
            del layer._outbound_nodes[read:]


@contextlib.contextmanager
def shapes_by_tracing(model: keras.Model) -> Iterator[None]:
    """Makes custom layers find their outputs' shapes without TensorFlow.

    Keras builds a graph of TensorFlow for it in every call, which takes about ten times
    as long as running `call` on symbolic tensors.
    """
    concerned = [
        layer
        for layer in all_layers(model)
        if not is_leaf(layer)
        and not has_graph(layer)
        and is_stock_method(layer, "compute_output_spec")
        and is_stock_method(layer, "compute_output_shape")
    ]
    for layer in concerned:
        layer.__dict__["compute_output_spec"] = functools.partial(_spec, layer)
    try:
        yield
    finally:
        for layer in concerned:
            del layer.__dict__["compute_output_spec"]


def _spec(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
    def fresh(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor):
            return keras.KerasTensor(value.shape, value.dtype)
        return value

    symbols = keras.tree.map_structure(fresh, (args, kwargs))
    try:
        with keras.StatelessScope():
            outputs = layer.call(*symbols[0], **symbols[1])
        flat = keras.tree.flatten(outputs)
        if all(isinstance(output, keras.KerasTensor) for output in flat):
            return keras.tree.map_structure(fresh, outputs)
    # A user's code may raise any exception; Keras's own way may still work.
    except Exception:
        pass
    return type(layer).compute_output_spec(layer, *args, **kwargs)


# === Recorded calls ===


def nodes_between(inputs: list[keras.KerasTensor], outputs: Any) -> list[Node]:
    """Returns the calls that lead from `inputs` to `outputs`, in a runnable order."""
    found: dict[int, Any] = {}
    given = {id(tensor) for tensor in inputs}

    def producer(tensor: keras.KerasTensor) -> Any | None:
        history = getattr(tensor, "_keras_history", None)
        if id(tensor) in given or history is None or history.operation is None:
            return None
        return history.operation._inbound_nodes[history.node_index]

    # Depth first, but without recursion, as a deep network has thousands of calls.
    stack = [(t, False) for t in reversed(keras.tree.flatten(outputs))]
    while stack:
        tensor, ready = stack.pop()
        node = producer(tensor)
        if node is None or id(node) in found:
            continue
        if ready:
            found[id(node)] = node
            continue
        stack.append((tensor, True))
        stack.extend((t, False) for t in reversed(node.input_tensors))
    return [as_node(node) for node in found.values()]


def run_in_order(model: keras.Model, order: list[Any]) -> None:
    """Makes a graph run its calls in the given order.

    Keras runs calls by their distance from the output. A BatchNorm that is called on
    two branches would then update its statistics in another order than the user's
    `call` does.
    """
    recorded = [n for level in model._nodes_by_depth.values() for n in level]
    inputs = [node for node in recorded if node.is_input]
    known = {id(node) for node in recorded}
    order = [node for node in order if id(node) in known]
    if len(inputs) + len(order) != len(recorded):
        return  # A layer with a `__call__` of its own records more than one call.
    levels = [inputs, *([node] for node in order)]
    model._nodes_by_depth.clear()
    model._nodes_by_depth.update(enumerate(reversed(levels)))


def recorded_cast(tensor: keras.KerasTensor, dtype: str) -> Any:
    """Returns an operation that casts tensors to a type."""
    return keras.ops.cast(tensor, dtype)._keras_history.operation


def fit_as_in_inference(model: keras.Model) -> None:
    """Makes `fit` run a model like one whose `call` has no argument `training`.

    Keras does not pass the mode to such a model, so all its layers run as in inference.
    """
    model._call_has_training_arg = False


def keep_output_names(
    old: list[keras.KerasTensor],
    new: list[keras.KerasTensor],
    unique: Callable[[str], str],
) -> None:
    """Gives the operation of each new output the name of the old output's operation.

    Keras names a model's outputs after it, and users give losses and metrics by these
    names. If one layer made several outputs, only the first keeps the name: Keras uses
    the same name for all of them, but names in a graph are unique.

    Args:
        old: The outputs of the user's model.
        new: The outputs that stand for them.
        unique: Turns a layer's name into a name that no operation has yet.
    """
    met: set[int] = set()
    for before, tensor in zip(old, new, strict=True):
        maker, op = before._keras_history.operation, tensor._keras_history.operation
        if len(op._inbound_nodes) > 1 or isinstance(op, keras.layers.InputLayer):
            continue
        if id(op) not in met:
            again = id(maker) in met
            op.__dict__["name"] = unique(maker.name) if again else maker.name
        met.update((id(op), id(maker)))


def last_node(op: Any) -> Any:
    """Returns the latest recorded call of an operation."""
    return op._inbound_nodes[-1]


# === Weights ===


class Reads(keras.StatelessScope):
    """Records which variables are read while it is open, and prevents changes."""

    def __init__(self):
        super().__init__()
        self.variables: list[keras.Variable] = []

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.variables.append(variable)
        return super().get_current_value(variable)


# Attributes in which Keras itself lists a layer's variables and layers.
_BOOKS = frozenset(vars(keras.layers.Layer())) | frozenset(vars(keras.Model()))


def attributes(layer: keras.Layer) -> dict[str, Any]:
    """Returns the attributes that a layer's own class gave it."""
    return {
        key: value
        for key, value in vars(layer).items()
        if key not in _BOOKS and not key.startswith("_self_")
    }


@contextlib.contextmanager
def attributes_replaced(layer: keras.Layer, new: dict[str, Any]) -> Iterator[None]:
    """Replaces attributes inside the block, without Keras registering them."""
    old = {key: vars(layer)[key] for key in new}
    layer.__dict__.update(new)
    try:
        yield
    finally:
        layer.__dict__.update(old)


def build_config(model: keras.Model) -> dict[str, Any] | None:
    """Returns the input shapes with which a model was built, as Keras records them."""
    config = model.get_build_config()
    return config or None
