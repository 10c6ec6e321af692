"""What the outputs of a model are: the activation that they come from."""

from typing import Any

import keras

from resrep_tf.graph.keras_nodes import as_function, nodes

layers = keras.layers
# An output behind one of them, or of these operations, means what their input does.
_TRANSPARENT = (
    *(layers.Dropout, layers.Identity, layers.Reshape, layers.Flatten),
    layers.Activation,  # Without an activation.
)
_SAME = ("Cast", "Reshape", "Squeeze", "ExpandDims")
# Operations that are no activation. Others could be one, and are not guessed at.
_LINEAR = (*_SAME, "Add", "Subtract", "Multiply", "TrueDivide", "Mean", "Matmul")
_NONLINEAR = (layers.ReLU, layers.LeakyReLU, layers.ELU, layers.PReLU)
_KINDS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


def output_activation(model: keras.Model, number: int) -> str:
    """Returns the name of the activation behind an output of a model.

    It is "linear" if there is none, and the operation's type if it is another one
    than a layer with or without an activation.
    """
    function = as_function(model)
    tensor = function.outputs[number]
    makers = {id(t): node for node in nodes(function) for t in node.outputs}
    while id(tensor) in makers:
        node = makers[id(tensor)]
        op = node.op
        if as_function(op) is not None:
            index = [id(t) for t in node.outputs].index(id(tensor))
            return output_activation(op, index)
        name = _activation_name(op)
        transparent = isinstance(op, _TRANSPARENT) or type(op).__name__ in _SAME
        if name != "linear" or not transparent:
            return name
        tensor = node.inputs[0]
    return "linear"


def _activation_name(op: Any) -> str:
    name = type(op).__name__
    if hasattr(op, "activation"):
        return getattr(op.activation, "__name__", type(op.activation).__name__).lower()
    if name in _KINDS:
        return _KINDS[name]
    if isinstance(op, keras.layers.Layer):
        return name if isinstance(op, _NONLINEAR) else "linear"
    return "linear" if name in _LINEAR else name
