"""Finds the activation that a model's outputs come from.

How to read labels, losses and distillation depends on it.
"""

from typing import Any

import keras

from resrep_tf.graph.keras_calls import is_stock
from resrep_tf.graph.keras_nodes import Node, as_function, makers

# Operations whose output is of the same kind as their inputs: the mean of probabilities
# is a probability, and the mean of logits is a logit.
_PASSING = {
    *("Flatten", "Reshape", "Squeeze", "ExpandDims", "Identity", "Cast", "Dropout"),
    *("Mean", "Average", "GlobalAveragePooling1D", "GlobalAveragePooling2D"),
    *("GlobalAveragePooling3D", "Concatenate", "UpSampling2D", "Resizing", "Resize"),
    "Activation",  # One without an activation.
}
# Operations without weights that are no activations. Any other may be one, so nothing
# is assumed about it.
_LINEAR = {"Add", "Subtract", "Multiply", "TrueDivide", "Divide", "Matmul", "Rescaling"}
_KINDS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


def output_activation(model: keras.Model, number: int = 0) -> str:
    """Returns the name of the activation behind an output of a model.

    It is "linear" if there is none, and the type of the operation if that may be an
    activation or not.
    """
    function = as_function(model)
    return _activation(function, function.outputs[number])


def last_operation(model: keras.Model, number: int = 0) -> Any:
    """Returns the operation that makes an output of a model; None for an input."""
    function = as_function(model)
    node = _maker(function, function.outputs[number])[1]
    return None if node is None else node.op


def _activation(function: keras.Function, tensor: keras.KerasTensor) -> str:
    function, node = _maker(function, tensor)
    if node is None:
        return "linear"
    name = _own_activation(node.op)
    if name != "linear" or type(node.op).__name__ not in _PASSING:
        return name
    found = {_activation(function, source) for source in node.inputs}
    return " and ".join(sorted(found))


def _maker(
    function: keras.Function, tensor: keras.KerasTensor
) -> tuple[keras.Function, Node | None]:
    """Returns the call that makes a tensor, and its graph, maybe of a nested model.

    The call is None if the tensor is an input.
    """
    node = makers(function).get(id(tensor))
    inner = None if node is None else as_function(node.op)
    if inner is None:
        return function, node
    return _maker(inner, inner.outputs[node.number_of(tensor)])


def _own_activation(op: Any) -> str:
    name = type(op).__name__
    if hasattr(op, "activation"):
        return getattr(op.activation, "__name__", type(op.activation).__name__).lower()
    if name in _KINDS:
        return _KINDS[name]
    if name in _PASSING or name in _LINEAR:
        return "linear"
    # A layer of Keras with weights computes sums; only PReLU does something else.
    sums = is_stock(type(op)) and getattr(op, "weights", None) and name != "PReLU"
    return "linear" if sums else name
