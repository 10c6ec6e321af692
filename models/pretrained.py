"""Builds networks of keras.applications and keras-hub, with published weights."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from resrep_tf.lazy import keras

# The classes of the published weights.
_CLASSES = 1000


def build_application(
    builder: Any,
    input_shape: tuple[int, int, int],
    classes: int,
    weights: str | None = None,
    **options: Any,
) -> keras.Model:
    """Builds a network of keras.applications that gives logits.

    Args:
        builder: The function of keras.applications.
        input_shape: Height, width and channels of one image.
        classes: Number of classes.
        weights: `"imagenet"` for the weights that Keras publishes. If the data have
            other classes than ImageNet's 1000, the head is new.
        **options: Further arguments of the function.
    """
    if "include_preprocessing" in inspect.signature(builder).parameters:
        # The data are already normalised.
        options = {"include_preprocessing": False, **options}
    new_head = weights is not None and classes != _CLASSES
    if new_head:
        options |= {"include_top": False, "pooling": "avg"}
    else:
        options |= {"classes": classes, "classifier_activation": None}
    try:
        with warnings.catch_warnings():
            # MobileNets have weights for some sizes, which also work for others.
            warnings.filterwarnings("ignore", message="`input_shape` is undefined or")
            network = builder(weights=weights, input_shape=input_shape, **options)
    except Exception as error:
        # The error that Keras raises when it cannot download.
        if "URL fetch failure" not in str(error):
            raise
        folder = os.path.join(os.environ.get("KERAS_HOME", "~/.keras"), "models")
        call = f"keras.applications.{builder.__name__}(include_top={not new_head})"
        raise ConnectionError(
            f"the published weights could not be downloaded: {error}. Call `{call}` "
            f"where there is a connection, and copy the file that it leaves in "
            f"{folder} to the same folder here. "
            f"Received: weights={weights!r}"
        ) from error
    return _with_head(network, classes) if new_head else network


def _with_head(network: keras.Model, classes: int) -> keras.Model:
    """Returns a network with a new dense layer; its name stays."""
    head = keras.layers.Dense(classes, name="new_head")
    return keras.Model(network.inputs, head(network.output), name=network.name)


def build_preset(
    preset: str,
    input_shape: tuple[int, int, int],
    classes: int,
    options: Mapping[str, Any],
) -> keras.Model:
    """Builds an image classifier of keras-hub, with its weights, that gives logits.

    It takes raw pixels of 0 to 255: the preset's preprocessing of pixels becomes its
    first layer. If it has other classes than the data, the head is new.

    Args:
        preset: A name that keras-hub knows, or a folder with a preset.
        input_shape: Height, width and channels of one image.
        classes: Number of classes.
        options: Further arguments of `from_preset`.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "networks of keras-hub need the extra `hub`: pip install "
            f'"resrep_tf[hub]". Received: hub:{preset}'
        ) from error
    load = keras_hub.models.ImageClassifier.from_preset
    try:
        classifier = _classifier(load, preset, classes, options)
    except Exception as error:  # Each download source raises its own errors.
        raise ValueError(
            f"keras-hub cannot load the preset ({type(error).__name__}: {error}). If "
            "there is no connection: call `keras_hub.models.ImageClassifier"
            f'.from_preset("{preset}").save_to_preset("FOLDER")` where there is one, '
            f"copy FOLDER here, and give hub:FOLDER. Received: hub:{preset}"
        ) from error
    inputs = keras.Input(input_shape)
    x = _converted(classifier.preprocessor, inputs)
    return keras.Model(inputs, classifier(x), name=classifier.name)


def _classifier(
    load: Callable[..., Any], preset: str, classes: int, options: Mapping[str, Any]
) -> Any:
    try:
        found = load(preset, activation=None, **options)
        if found.output_shape[-1] == classes:
            return found
    except TypeError:
        pass  # A preset without a head needs the number of classes.
    return load(preset, num_classes=classes, activation=None, **options)


def _converted(preprocessor: Any, images: keras.KerasTensor) -> keras.KerasTensor:
    """Returns images with pixels in the scale of a preset."""
    converter = getattr(preprocessor, "image_converter", None)
    scale, offset = (getattr(converter, name, None) for name in ("scale", "offset"))
    if scale is None and offset is None:
        return images
    return keras.layers.Rescaling(
        1.0 if scale is None else scale, 0.0 if offset is None else offset
    )(images)
