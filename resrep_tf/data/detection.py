"""Finds out, on some images, which scale of pixels a model was trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from . import pixels
from .heads import Head, head_of

_BATCH = 32


@dataclass(frozen=True)
class Trial:
    """The result of a model on pixels of one scale.

    Attributes:
        scale: The scale's name.
        accuracy: The share of images whose class is right.
        loss: The mean loss.
    """

    scale: str
    accuracy: float
    loss: float


@dataclass(frozen=True)
class Detection:
    """The scale with which a model is most accurate on some images.

    Attributes:
        scale: Its name.
        reason: The reason for the choice, in words.
        trials: All scales that were tried, the best first.
        warning: A warning about the result, or None.
    """

    scale: str
    reason: str
    trials: tuple[Trial, ...]
    warning: str | None

    def __str__(self):
        return self.reason if self.warning is None else f"{self.reason} {self.warning}"


def detect(
    model: keras.Model,
    images: Any,
    labels: Any,
    scales: Sequence[str] | None = None,
    head: Head | None = None,
) -> Detection:
    """Tries the usual scales on some images, and chooses the most accurate one.

    Args:
        model: A classifier.
        images: Some images, raw pixels of 0 to 255, of all classes.
        labels: Their classes, integers or one-hot rows.
        scales: Which ones to try, by default all for this number of channels.
        head: How to read the outputs, by default as the model's last layer says.
    """
    images = np.asarray(keras.ops.convert_to_numpy(images), "float32")
    labels = _integers(labels)
    if not len(images) or len(images) != len(labels):
        raise ValueError(
            "`images` and `labels` must be of the same number, not zero. "
            f"Received: {len(images)} images and {len(labels)} labels"
        )
    head = head or head_of(model)
    scales = list(scales or pixels.names(images.shape[-1]))
    trials = [_trial(model, head, name, images, labels) for name in scales]
    # If accuracies are equal, the smaller loss wins; then the first in the list. Larger
    # numbers make every answer surer, which does not show that they are right: scales
    # that hardly anybody uses but publishers of weights come last.
    trials.sort(key=lambda t: (-t.accuracy, t.scale in pixels.PUBLISHED, t.loss))
    return Detection(
        scale=trials[0].scale,
        reason=_reason(trials, len(images)),
        trials=tuple(trials),
        warning=near_chance(trials[0].accuracy, labels, head.classes),
    )


def _reason(trials: list[Trial], examples: int) -> str:
    best = trials[0]
    others = [f"{t.accuracy:.0%} with {t.scale}" for t in trials[1:]]
    text = (
        f"Pixels {best.scale}: of {examples} images the model gets "
        f"{', '.join([f'{best.accuracy:.0%} right', *others])}."
    )
    # Differences so small that other images might reverse them.
    error = np.sqrt(best.accuracy * (1 - best.accuracy) / examples)
    near = [t.scale for t in trials[1:] if t.accuracy >= best.accuracy - error]
    if near:
        text += (
            f" As good on so few images: {', '.join(near)}; if it is one of these, "
            "say so with `pixels`."
        )
    return text


def _trial(
    model: keras.Model, head: Head, name: str, images: np.ndarray, labels: np.ndarray
) -> Trial:
    parts = np.array_split(images, -(-len(images) // _BATCH))
    scaled = (pixels.scale(name)(part) for part in parts)
    outputs = np.concatenate(
        [keras.ops.convert_to_numpy(model(part, training=False)) for part in scaled]
    ).astype("float32")
    accuracy = float(np.mean(head.predictions(outputs) == labels))
    # The loss needs integers, and a column of them for a single output.
    wanted = labels.reshape(-1, 1) if head.kind == "binary" else labels
    loss = float(head.loss()(wanted, outputs))
    return Trial(name, accuracy, loss if np.isfinite(loss) else float("inf"))


def near_chance(accuracy: float, labels: Any, classes: int) -> str | None:
    """Returns a warning if an accuracy could be that of guessing, else None.

    The best guess is always the most frequent class. A model is better than guessing if
    its accuracy is two standard errors above the share of that class.

    Args:
        accuracy: The share of right answers.
        labels: The true classes of the same images, integers or one-hot rows.
        classes: How many classes there are.
    """
    labels = _integers(labels)
    chance = max(1 / classes, np.bincount(labels).max() / len(labels))
    error = np.sqrt(chance * (1 - chance) / len(labels))
    if accuracy > chance + 2 * error or (chance == 1 and accuracy == 1):
        return None
    return (
        f"WARNING: an accuracy of {accuracy:.1%} is near what guessing gives "
        f"({chance:.1%}, {len(labels)} images): the model may be untrained, or its "
        "pixels, the order of its classes or its colours may differ from these images'."
    )


def _integers(labels: Any) -> np.ndarray:
    labels = np.asarray(keras.ops.convert_to_numpy(labels))
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=1)
    return labels.astype("int32").reshape(-1)
