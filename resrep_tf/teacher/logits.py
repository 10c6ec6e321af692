"""Turns a model's outputs into logits, whether they are logits or probabilities."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from resrep_tf.graph.heads import output_activation
from resrep_tf.graph.keras_nodes import as_function

ToLogits = Callable[[Any], Any]


def to_logits(
    teacher: keras.Model, student: keras.Model, used: list[bool]
) -> tuple[list[ToLogits], list[ToLogits]]:
    """Returns functions that turn the outputs of both models into logits."""
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
