"""Named scales of pixels, and the scale that a model needs.

The scale depends on the model, not on the data set: images come as raw pixels of 0 to
255, and are brought to the scale that the model was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resrep_tf import models
from resrep_tf.lazy import keras, tf

from .images import RGB_MEAN, RGB_STD, normalise

# Mean and deviation of ImageNet's pixels.
MEAN = 255 * np.array(RGB_MEAN)
STD = 255 * np.array(RGB_STD)
# The mean of ImageNet's pixels, in the order blue, green, red.
BGR_MEAN = (103.939, 116.779, 123.68)
# The number of images that a model's own preprocessing is tried on.
_EXAMPLES = 64
_EXTENT = 32
# The deviation of uniform pixels of -1 to 1. The inputs of most networks are near it.
_USUAL = 0.58


@dataclass(frozen=True)
class Scale:
    """A named way to bring raw pixels to a network.

    Attributes:
        name: Its name, as in `--pixels`.
        about: A description.
        function: Turns a float32 tensor of raw pixels of 0 to 255, channels last, into
            the network's input.
        channels: How many channels images must have, or None if any.
    """

    name: str
    about: str
    function: Callable[[tf.Tensor], tf.Tensor]
    channels: int | None = None

    def __call__(self, images: Any) -> tf.Tensor:
        images = tf.cast(images, tf.float32)
        if self.channels not in (None, images.shape[-1]):
            raise ValueError(
                f"The scale {self.name!r} is for images of {self.channels} channels. "
                f"Received: images of shape {tuple(images.shape)}"
            )
        return self.function(images)


def _centred(images: tf.Tensor) -> tf.Tensor:
    return images / 127.5 - 1.0


def _imagenet(images: tf.Tensor) -> tf.Tensor:
    if None not in images.shape[-3:]:
        return normalise(images, MEAN, STD)
    # Where the size is open, the results are the same, bit for bit.
    factor = tf.constant(1 / STD, tf.float32)
    return images * factor - tf.constant(1 / STD * MEAN, tf.float32)


def _caffe(images: tf.Tensor) -> tf.Tensor:
    return images[..., ::-1] - tf.constant(BGR_MEAN)


CAFFE = "caffe"
# Those that published weights were trained with.
PUBLISHED = ("imagenet", CAFFE)

SCALES = {
    scale.name: scale
    for scale in (
        Scale("0..255", "raw pixels", lambda images: images),
        Scale("0..1", "divided by 255", lambda images: images / 255.0),
        Scale("-1..1", "divided by 127.5, minus 1", _centred),
        Scale("imagenet", "0..1, then ImageNet's mean and deviation", _imagenet, 3),
        Scale(CAFFE, "blue, green, red minus ImageNet's mean", _caffe, 3),
    )
}


# The name of the scale that follows from the training images of a data set in memory.
OWN = "own statistics"


def own_scale(mean: np.ndarray, std: np.ndarray) -> Scale:
    """Returns the scale that subtracts a mean and divides by a deviation."""
    return Scale(
        OWN,
        "minus the mean of the training images, over their deviation",
        lambda images: normalise(images, mean, std),
        len(mean),
    )


def names(channels: int | None = None) -> list[str]:
    """Returns the names of all scales, or of those for a number of channels."""
    return [
        name
        for name, scale in SCALES.items()
        if channels is None or scale.channels in (None, channels)
    ]


def scale(name: str) -> Scale:
    """Returns a scale by its name."""
    if name not in SCALES:
        raise ValueError(
            f"`pixels` must be one of: {', '.join(SCALES)}. Received: pixels={name!r}"
        )
    return SCALES[name]


# === The scale of a model ===


@dataclass(frozen=True)
class Choice:
    """The scale of a model's inputs, as far as it can be read from the model.

    Attributes:
        name: One of `names()`, or None if it cannot be read from the model.
        reason: The reason, in words.
    """

    name: str | None
    reason: str


# Networks of keras.applications: the names of the models, and the scale of their own
# `preprocess_input`.
_APPLICATIONS = {
    r"resnet\d+v2": "-1..1",
    r"resnet(50|101|152)": CAFFE,
    r"vgg(16|19)": CAFFE,
    r"densenet\d*": "imagenet",
    r"inception_v3": "-1..1",
    r"inception_resnet_v2": "-1..1",
    r"xception": "-1..1",
    r"mobilenet_\d.*": "-1..1",
    r"mobilenetv2_\d.*": "-1..1",
    r"nasnet(_mobile|_large)?": "-1..1",
    # These rescale by themselves, unless built with `include_preprocessing=False`.
    r"mobilenetv3(small|large)?": "-1..1",
    r"efficientnetv2-b\d": "imagenet",
    r"efficientnetv2-[sml]": "-1..1",
    r"convnext_\w+": "imagenet",
}
# The first layers of this package's networks, some of which share names with Keras's.
_OWN_STEMS = ("stem_conv", "stage1_conv1")


def scale_of(model: keras.Model) -> Choice:
    """Returns the scale of a model's pixels, as far as it can be read from the model.

    A model may rescale by itself, with a Rescaling or Normalization layer or with
    arithmetic before its first weights. Then the scale is the one that gives sensible
    numbers behind these, usually raw pixels. For networks of keras.applications, also
    inside another model, it is that of their `preprocess_input`; for networks of this
    package, ImageNet's mean and deviation.
    """
    from resrep_tf.graph.keras_nodes import as_function

    function = as_function(model)
    if function is None or len(function.inputs) != 1:
        return Choice(None, "its calls are not visible, or it has several inputs")
    if len(function.inputs[0].shape) != 4:
        return Choice(None, "its input is not a batch of images")
    colours = _colours(function.inputs[0].shape)
    try:
        beginning = _beginning(function, [colours])
    except Exception as error:
        # An operation of the user's own may raise any exception.
        return Choice(None, f"its beginning cannot be followed: {error}")
    if _is_changed(colours, beginning.values):
        return _own_preprocessing(function, beginning)
    for name in (model.name, *beginning.models):
        if beginning.layer in _OWN_STEMS and name in models.names():
            return Choice("imagenet", f"{name!r} is a network of this package")
        for pattern, found in _APPLICATIONS.items():
            if re.fullmatch(pattern, name.lower()):
                return Choice(found, f"{name!r} is a network of keras.applications")
    return Choice(None, "nothing in it says which pixels it was trained on")


@dataclass(frozen=True, eq=False)
class _Beginning:
    """The part of a model before its first weights.

    Attributes:
        values: The inputs of the first layer with weights.
        layer: The name of that layer, or None if there is none.
        models: The names of the nested models that it is in, outer ones first.
        operations: The names of the operations before it.
    """

    values: np.ndarray
    layer: str | None
    models: tuple[str, ...]
    operations: tuple[str, ...]


def _beginning(function: keras.Function, images: list[Any]) -> _Beginning:
    """Runs a model up to its first layer with weights, except Normalization."""
    from resrep_tf.graph.keras_nodes import nodes

    known = {id(t): v for t, v in zip(function.inputs, images, strict=True)}
    last = images[0]
    done: list[str] = []
    for node in nodes(function):
        if not all(id(tensor) in known for tensor in node.inputs):
            continue
        given = [known[id(tensor)] for tensor in node.inputs]
        operation = node.op
        if node.inner is not None and operation.weights:
            entered = [known[id(tensor)] for tensor in node.entering]
            found = _beginning(node.inner, entered)
            if found.layer is not None:
                nested = (operation.name, *found.models)
                before = (*done, *found.operations)
                return _Beginning(found.values, found.layer, nested, before)
        elif _has_weights(operation):
            values = keras.ops.convert_to_numpy(given[0])
            return _Beginning(values, operation.name, (), tuple(done))
        args, kwargs = node.arguments(given)
        last = operation(*args, **kwargs)
        done.append(operation.name)
        outputs = keras.tree.flatten(last)
        known.update({id(t): v for t, v in zip(node.outputs, outputs, strict=True)})
    values = keras.ops.convert_to_numpy(keras.tree.flatten(last)[0])
    return _Beginning(values, None, (), tuple(done))


def _has_weights(operation: Any) -> bool:
    if isinstance(operation, keras.layers.Normalization):
        return False
    return bool(getattr(operation, "weights", ()))


def _colours(shape: tuple) -> np.ndarray:
    """Returns images of one colour each, which resizing and padding hardly change."""
    extents = [_EXTENT if n is None else n for n in shape[1:]]
    colours = np.random.default_rng(0).uniform(0, 255, (_EXAMPLES, 1, 1, extents[-1]))
    return np.broadcast_to(colours, (_EXAMPLES, *extents)).astype("float32")


def _statistics(values: np.ndarray) -> tuple[float, float]:
    """Returns mean and deviation of the values in the middle of images."""
    if values.ndim == 4:
        # The median ignores padding.
        values = np.median(values, axis=(1, 2))
    return float(values.mean()), float(values.std())


def _is_changed(before: np.ndarray, after: np.ndarray) -> bool:
    """Returns whether pixels were rescaled or shifted."""
    mean, deviation = _statistics(before)
    new_mean, new_deviation = _statistics(after)
    same = 0.5 < new_deviation / deviation < 2
    return not (same and abs(new_mean - mean) < 0.25 * deviation)


def _own_preprocessing(function: keras.Function, beginning: _Beginning) -> Choice:
    """Returns the scale for which a model's own preprocessing makes sense.

    Pixels enter a network with a deviation of about one and a mean near zero.
    """
    raw = _colours(function.inputs[0].shape)
    distances: dict[str, float] = {}
    for name in ("0..255", "0..1", "-1..1"):
        images = SCALES[name](raw).numpy()
        mean, deviation = _statistics(_beginning(function, [images]).values)
        if deviation > 0 and abs(mean) < 3 * deviation:
            distances[name] = abs(np.log(deviation / _USUAL)) + abs(mean) / deviation
    if not distances:
        return Choice(None, "its own preprocessing makes sense for no usual scale")
    operations = ", ".join(beginning.operations[:4])
    return Choice(
        min(distances, key=lambda name: distances[name]),
        f"it does its own preprocessing, beginning with {operations}",
    )
