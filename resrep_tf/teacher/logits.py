"""Logits of a model's outputs, be they logits, probabilities of classes or of yes."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from resrep_tf.graph.keras_nodes import as_function, nodes

ToLogits = Callable[[Any], Any]
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


def to_logits(
    teacher: keras.Model, student: keras.Model, used: list[bool]
) -> tuple[list[ToLogits], list[ToLogits]]:
    """Returns the functions that make logits of both models' outputs."""
    sides: tuple[list[ToLogits], list[ToLogits]] = ([], [])
    for number, is_used in enumerate(used):
        if not is_used:
            for side in sides:
                side.append(_same)
            continue
        kinds = [output_activation(model, number) for model in (teacher, student)]
        width = as_function(student).outputs[number].shape[-1]
        binary = "sigmoid" in kinds
        allowed = ("linear", "sigmoid") if binary else tuple(_CLASSES)
        wrong = [kind for kind in kinds if kind not in allowed]
        if wrong or (width == 1 and not binary):
            raise ValueError(
                "Logits can be distilled from a softmax, from a sigmoid, or from "
                "several outputs without an activation; for others there is "
                "`distillation=keras.distillation.FeatureDistillation()`, their mean "
                f"squared difference. Received: output {number} of width {width}, with "
                f"the activation `{kinds[0]}` in the teacher and `{kinds[1]}` in the "
                "model"
            )
        for kind, side in zip(kinds, sides, strict=True):
            side.append((_BINARY if binary else _CLASSES)[kind])
    return sides


def _same(outputs: Any) -> Any:
    return outputs


def _log(outputs: Any) -> Any:
    return ops.log(ops.clip(outputs, keras.config.epsilon(), 1.0))


def _log_odds(outputs: Any) -> Any:
    small = keras.config.epsilon()
    outputs = ops.clip(outputs, small, 1 - small)
    return _yes_and_no(ops.log(outputs) - ops.log(1 - outputs))


def _yes_and_no(logits: Any) -> Any:
    return ops.stack([logits, ops.zeros_like(logits)], axis=-1)


_CLASSES = {"linear": _same, "log_softmax": _same, "softmax": _log}
_BINARY = {"linear": _yes_and_no, "sigmoid": _log_odds}


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
