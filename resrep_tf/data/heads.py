"""The meaning of a model's inputs and outputs: images, classes, logits."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from resrep_tf.graph.heads import last_operation, output_activation
from resrep_tf.graph.keras_nodes import as_function

# For each activation of the outputs, whether they are logits. The outputs of other
# activations are neither logits nor probabilities.
_LOGITS = {"softmax": False, "sigmoid": False, "linear": True}


@dataclass(frozen=True)
class Head:
    """The meaning of a classifier's outputs.

    Attributes:
        kind: `"classes"` for one output per class of which one is right, `"binary"`
            for a single output for the second of two classes, `"labels"` for outputs
            of which several may be right at once.
        classes: How many classes there are: two for `"binary"`.
        from_logits: Whether the outputs are logits, and not yet probabilities.
    """

    kind: str
    classes: int
    from_logits: bool

    def loss(self) -> keras.losses.Loss:
        """Returns the usual loss for integer labels."""
        if self.kind == "classes":
            return keras.losses.SparseCategoricalCrossentropy(self.from_logits)
        if self.kind == "labels":
            return OneOfLabels(self.from_logits)
        return keras.losses.BinaryCrossentropy(self.from_logits)

    def predictions(self, outputs: Any) -> np.ndarray:
        """Returns the class of each row of outputs."""
        outputs = keras.ops.convert_to_numpy(outputs)
        if self.kind == "binary":
            middle = 0.0 if self.from_logits else 0.5
            return (outputs.reshape(len(outputs)) > middle).astype("int32")
        return outputs.argmax(axis=-1).astype("int32")


@keras.saving.register_keras_serializable(package="resrep_tf")
class OneOfLabels(keras.losses.Loss):
    """Binary crossentropy of each output, where integers say which one is right.

    Models that end with a sigmoid for each class are trained with it.
    """

    def __init__(self, from_logits: bool = False, name: str = "one_of_labels"):
        super().__init__(name=name)
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        labels = keras.ops.reshape(y_true, (-1,))
        rows = keras.ops.one_hot(labels, y_pred.shape[-1], dtype=y_pred.dtype)
        return keras.losses.binary_crossentropy(rows, y_pred, self.from_logits)

    def get_config(self):
        return {"from_logits": self.from_logits, "name": self.name}


def head_of(model: keras.Model) -> Head:
    """Returns the meaning of a model's outputs, from its last operations.

    Raises:
        ValueError: If these operations leave it open; the error names them.
    """
    function = as_function(model)
    if function is None or len(function.outputs) != 1:
        raise ValueError(
            "`model` must be a Functional or Sequential model with one output, whose "
            "last layer shows what the outputs are. "
            f"Received: model={model!r}"
        )
    shape = tuple(function.outputs[0].shape)
    if len(shape) != 2 or shape[1] is None:
        raise ValueError(
            "`model` must have one row of outputs for each image. "
            f"Received: outputs of shape {shape}"
        )
    activation = output_activation(model)
    if activation not in _LOGITS or (activation == "softmax" and shape[1] == 1):
        raise ValueError(
            "`model` must end with softmax, sigmoid or no activation, so that its "
            "outputs are probabilities or logits of classes. Received: "
            f"{_ending(model)} with {shape[1]} outputs"
        )
    return head_behind(activation, shape[1], max(shape[1], 2))


def head_behind(activation: str, outputs: int, classes: int) -> Head:
    """Returns what outputs behind an activation are; logits if it is another one.

    Args:
        activation: As `graph.heads.output_activation` names it.
        outputs: How many outputs there are for each image.
        classes: How many classes there are.
    """
    from_logits = _LOGITS.get(activation, True)
    if outputs == 1:
        return Head("binary", classes, from_logits)
    several = activation == "sigmoid"
    return Head("labels" if several else "classes", classes, from_logits)


def _ending(model: keras.Model) -> str:
    """Describes the operation that makes a model's output."""
    last = last_operation(model)
    if last is None:
        return "an input"
    name = getattr(getattr(last, "activation", None), "__name__", None)
    ending = f" with {name}" if name else ""
    return f"{type(last).__name__} {last.name!r}{ending}"


# === Images ===


@dataclass(frozen=True)
class Images:
    """The size and channels of a model's input images.

    Attributes:
        height: Pixels, or None if any.
        width: Pixels, or None if any.
        channels: 1, 3 or 4.
    """

    height: int | None
    width: int | None
    channels: int

    @property
    def colours(self) -> str:
        """The colour mode as in `keras.utils.image_dataset_from_directory`."""
        return {1: "grayscale", 3: "rgb", 4: "rgba"}[self.channels]

    def size(self, default: int) -> tuple[int, int]:
        """Returns height and width, with `default` for those that are open."""
        return self.height or default, self.width or default

    def check(self, shape: tuple[int, int, int]) -> None:
        """Raises if images of a shape do not fit."""
        wanted = (self.height, self.width, self.channels)
        if len(shape) != 3 or shape[-1] != self.channels:
            raise ValueError(
                f"The model is for images of {self.channels} channels "
                f"({self.colours}). Received: images of {tuple(shape)}"
            )
        if any(a not in (None, b) for a, b in zip(wanted, shape, strict=True)):
            raise ValueError(
                f"The model is for images of {self.height} x {self.width} pixels. "
                f"Received: images of {shape[0]} x {shape[1]}"
            )


def images_of(model: keras.Model) -> Images:
    """Returns size and channels of the images that a model takes.

    Raises:
        ValueError: If its input is not one batch of images with channels last.
    """
    inputs = getattr(model, "inputs", None) or ()
    shape: tuple = tuple(inputs[0].shape) if len(inputs) == 1 else ()
    if len(shape) != 4 or shape[3] not in (1, 3, 4):
        found = [tuple(tensor.shape) for tensor in inputs]
        hint = ""
        if len(shape) == 4 and shape[1] in (1, 3, 4):
            hint = ", and not first"
        raise ValueError(
            "`model` must take one batch of images of 1, 3 or 4 channels, channels "
            f"last{hint}. Received: inputs of {found}"
        )
    _, height, width, channels = shape
    return Images(height, width, channels)
