"""`--pixels`: images are scaled as the model needs them, whatever the data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resrep_tf.cli.errors import blame
from resrep_tf.cli.flagset import flag
from resrep_tf.cli.images import blame_images
from resrep_tf.cli.models import architectures
from resrep_tf.data.pixels import OWN, SCALES, Choice, scale_of
from resrep_tf.lazy import keras, tf

if TYPE_CHECKING:
    from resrep_tf.data import Dataset
    from resrep_tf.export import Predictor

AUTO = "auto"
# The number of images that scales are tried on.
_TRIED = 256


def pixels_flag() -> Any:
    """Declares `--pixels`."""
    return flag(
        AUTO,
        "The scale of the model's pixels. auto: the scale that the model states, or "
        "else the one that gives the best accuracy on some images. Networks of this "
        "package get imagenet; with digits, npz files and small images that are not "
        "RGB, the data's own mean and deviation.",
        choices=(AUTO, *SCALES),
    )


def for_model(
    data: Dataset, pixels: str, model: keras.Model | Predictor, trained: bool
) -> Dataset:
    """Returns a data set with images in a model's scale; prints which and why.

    Args:
        data: The data set.
        pixels: As `--pixels`.
        model: The model.
        trained: Whether the model can be tried on images if it does not state a scale.
    """
    if pixels != AUTO:
        with blame("pixels"):
            return _checked(data.with_pixels(pixels))
    if data.pixels == OWN:
        return data
    choice = _told(model)
    if choice.name is None and trained:
        choice = _tried(data, model)
    if choice.name is None:
        return data
    print(f"Pixels: {choice.name}, since {choice.reason}")
    if choice.name == data.pixels:
        return data
    return data.with_pixels(choice.name)


def image_size(given: int | None, dataset: str, shape: Sequence) -> int | None:
    """Returns the size to which images are resized: as given, or that of the model.

    Args:
        given: As `--image_size`.
        dataset: As `--dataset`. The images of some data sets are never resized.
        shape: The shape of the model's input with its batch, None where open.
    """
    if given is not None or dataset.startswith(("digits", "npz:")) or len(shape) != 4:
        return given
    height, width = shape[1:3]
    return height if height == width else None


def coloured(data: Dataset, shape: Sequence) -> Dataset:
    """Returns a data set whose images have the model's number of channels, if possible.

    Args:
        data: The data set.
        shape: The shape of the model's input with its batch; empty if unknown.
    """
    if len(shape) != 4 or shape[3] != 1:
        return data
    return data.grey()


def shown(data: Dataset, model: keras.Model | Predictor) -> Dataset:
    """Returns a data set whose evaluation images are cut as in the model's training.

    Networks of this package were trained to see the middle of images. Others were most
    likely trained with Keras's own reader of folders, which resizes images whole.
    """
    if not data.name.startswith("folder:") or _is_own(model):
        return data
    return data.whole()


def _checked(data: Dataset) -> Dataset:
    """Raises if images have another number of channels than their scale needs."""
    scale = SCALES[data.pixels]
    scale(tf.zeros(data.input_shape))
    return data


def _is_own(model: keras.Model | Predictor) -> bool:
    return "of this package" in _told(model).reason


def _is_file(model: keras.Model | Predictor) -> bool:
    from resrep_tf.export import Predictor

    return isinstance(model, Predictor)


def _told(model: keras.Model | Predictor) -> Choice:
    if _is_file(model):
        return Choice(None, "a deployed file does not state it")
    return scale_of(model)


def _tried(data: Dataset, model: keras.Model | Predictor) -> Choice:
    """Returns the scale with which a model classifies most images correctly."""
    from resrep_tf.data.detection import detect
    from resrep_tf.data.heads import Head

    # Training images, since they come in random order: held-out ones may begin with
    # hundreds of one class. All workers use the same images.
    whole = dataclasses.replace(data, num_shards=1, shard_index=0)
    raw = whole.with_pixels("0..255").unvaried().train()
    with blame_images(data):
        images, labels = next(iter(raw.unbatch().batch(_TRIED)))
    called: Any = model
    if _is_file(model):

        def called(batch: Any, training: bool) -> Any:
            return model(batch)

        binary = model.output_shape[-1] == 1
        head = Head("binary" if binary else "classes", data.classes, not binary)
    else:
        head = architectures.head(model, data.classes)
    found = detect(called, images, labels, head=head)
    return Choice(found.scale, f"the model was tried on images. {found}")
