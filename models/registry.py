"""Builds reference architectures by name, and names the paper's target layers."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable
from typing import Any

from resrep_tf.lazy import keras

from .mobilenet import mobilenet_v1
from .resnet import imagenet_resnet
from .resnet_cifar import cifar_resnet
from .vgg import vgg16

# The name of the weights that Keras publishes.
IMAGENET = "imagenet"
# How the names of files of weights end, which `load_weights` reads.
WEIGHT_FILES = (".keras", ".weights.h5", ".safetensors")
# Layers to whose outputs nothing is added.
_FIRST_CONV = r"^stage\d+_block\d+_conv1$"
_FIRST_TWO_CONVS = r"^stage\d+_block\d+_conv[12]$"
_NOT_DEPTHWISE = r"^(stem|block\d+_pointwise)_conv$"
_EVERY_CONV = r"^stage\d+_conv\d+$"


@dataclasses.dataclass(frozen=True)
class _Entry:
    builder: Callable[..., keras.Model]
    targets: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


_ENTRIES = {
    # CIFAR.
    "resnet20": _Entry(cifar_resnet, _FIRST_CONV, {"depth": 20}),
    "resnet32": _Entry(cifar_resnet, _FIRST_CONV, {"depth": 32}),
    "resnet44": _Entry(cifar_resnet, _FIRST_CONV, {"depth": 44}),
    "resnet56": _Entry(cifar_resnet, _FIRST_CONV, {"depth": 56}),
    "resnet110": _Entry(cifar_resnet, _FIRST_CONV, {"depth": 110}),
    "vgg16": _Entry(vgg16, _EVERY_CONV),
    # ImageNet.
    "resnet18": _Entry(imagenet_resnet, _FIRST_CONV, {"depth": 18}),
    "resnet34": _Entry(imagenet_resnet, _FIRST_CONV, {"depth": 34}),
    "resnet50": _Entry(imagenet_resnet, _FIRST_TWO_CONVS, {"depth": 50}),
    "resnet101": _Entry(imagenet_resnet, _FIRST_TWO_CONVS, {"depth": 101}),
    "resnet152": _Entry(imagenet_resnet, _FIRST_TWO_CONVS, {"depth": 152}),
    "mobilenet": _Entry(mobilenet_v1, _NOT_DEPTHWISE),
}


def build(
    name: str,
    input_shape: tuple | None = None,
    classes: int | None = None,
    **options: Any,
) -> keras.Model:
    """Builds a reference architecture with fresh weights.

    The model's outputs are logits: train it with a loss of `from_logits=True`.

    Args:
        name: One of `names()`.
        input_shape: Height, width and channels of one image. By default those of the
            data set the architecture was published for.
        classes: Number of logits, with the same default.
        **options: Further arguments of the builder: `weight_decay` for all of them,
            `shortcut` for the CIFAR ResNets, `alpha` for MobileNet, `hidden` for VGG.

    Example:

    ```python
    model = resrep_tf.models.build("resnet56", classes=100)
    ```
    """
    entry = _entry(name)
    parameters = inspect.signature(entry.builder).parameters
    choices = sorted(set(parameters) - set(entry.arguments))
    for option, value in options.items():
        if option not in choices:
            raise TypeError(
                f"`{option}` is not an option of {name!r}. Its options are: "
                f"{', '.join(choices)}. Received: {option}={value!r}"
            )
    if input_shape is not None:
        options["input_shape"] = tuple(input_shape)
    if classes is not None:
        options["classes"] = classes
    return entry.builder(**entry.arguments, **options)


def names() -> list[str]:
    """Returns the names for `build`."""
    return list(_ENTRIES)


def default_classes(name: str) -> int:
    """Returns the number of classes that an architecture was published for."""
    return inspect.signature(_entry(name).builder).parameters["classes"].default


def default_input_shape(name: str) -> tuple[int, int, int]:
    """Returns height, width and channels of the images it was published for."""
    return inspect.signature(_entry(name).builder).parameters["input_shape"].default


def targets(name: str) -> re.Pattern[str]:
    """Returns a pattern of the names of the layers that the paper prunes.

    These are the first convolutions of residual blocks (the first two in bottlenecks),
    MobileNet's convolutions that are not depthwise, and all convolutions of VGG.

    Example:

    ```python
    pattern = resrep_tf.models.targets("resnet50")
    layers = [layer.name for layer in model.layers if pattern.search(layer.name)]
    ```
    """
    return re.compile(_entry(name).targets)


def _entry(name: str) -> _Entry:
    if name in _ENTRIES:
        return _ENTRIES[name]
    near = difflib.get_close_matches(str(name).lower(), _ENTRIES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"`name` must be one of: {', '.join(_ENTRIES)}.{hint} Received: name={name!r}"
    )
