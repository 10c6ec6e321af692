"""The networks of keras.applications and keras-hub, each with random weights.

One list for the tests and for `benchmarks/zoo.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from support.models.hub_presets import PRESETS


@dataclass(frozen=True)
class Network:
    """A network that can be built at any legal input size.

    Args:
        name: Its name in Keras.
        family: Networks that are built from the same blocks.
        size: The extent of its usual input.
        smallest: The smallest legal extent.
        make: Builds it from the extent.
    """

    name: str
    family: str
    size: int
    smallest: int
    make: Callable[[int], keras.Model]

    def build(self, size: int | None = None) -> keras.Model:
        """Builds it at an extent, by default the smallest."""
        return self.make(size or self.smallest)


def _application(name: str, family: str, size: int, smallest: int = 32) -> Network:
    def make(extent: int) -> keras.Model:
        options: dict[str, Any] = {"include_preprocessing": False}
        if not name.startswith(("ConvNeXt", "EfficientNetV2", "MobileNetV3")):
            options = {}
        return getattr(keras.applications, name)(
            weights=None,
            input_shape=(extent, extent, 3),
            classes=10,
            classifier_activation=None,
            **options,
        )

    return Network(name, family, size, smallest, make)


def _hub(name: str, kind: str, task: str, arguments: dict[str, Any]) -> Network:
    """Returns a network of keras-hub, made from its constructors."""

    def make(extent: int) -> keras.Model:
        from keras_hub import models

        options = dict(arguments)
        head = options.pop("head", {"num_classes": 10})
        shape = "input_shape" if kind == "EfficientNet" else "image_shape"
        options[shape] = (extent, extent, 3)
        if "image_encoder" in options:
            options["image_encoder"] = models.ResNetBackbone(**options["image_encoder"])
        backbone = getattr(models, f"{kind}Backbone")(**options)
        return getattr(models, task)(backbone=backbone, preprocessor=None, **head)

    return Network(f"keras_hub.{name}", f"keras_hub.{name}", 224, 32, make)


def _applications() -> Iterator[Network]:
    for name in ("ResNet50", "ResNet101", "ResNet152"):
        yield _application(name, "ResNet", 224)
        yield _application(f"{name}V2", "ResNetV2", 224)
    yield _application("MobileNet", "MobileNet", 224)
    yield _application("MobileNetV2", "MobileNetV2", 224)
    for name in ("MobileNetV3Small", "MobileNetV3Large"):
        yield _application(name, "MobileNetV3", 224)
    for number, size in enumerate((224, 240, 260, 300, 380, 456, 528, 600)):
        yield _application(f"EfficientNetB{number}", "EfficientNet", size)
    for name, size in (
        *(("B0", 224), ("B1", 240), ("B2", 260), ("B3", 300)),
        *(("S", 384), ("M", 480), ("L", 480)),
    ):
        yield _application(f"EfficientNetV2{name}", "EfficientNetV2", size)
    for name in ("VGG16", "VGG19"):
        yield _application(name, "VGG", 224)
    for name in ("DenseNet121", "DenseNet169", "DenseNet201"):
        yield _application(name, "DenseNet", 224)
    yield _application("InceptionV3", "InceptionV3", 299, smallest=75)
    yield _application("InceptionResNetV2", "InceptionResNetV2", 299, smallest=75)
    yield _application("Xception", "Xception", 299, smallest=71)
    yield _application("NASNetMobile", "NASNet", 224)
    yield _application("NASNetLarge", "NASNet", 331)
    for name in ("Tiny", "Small", "Base", "Large", "XLarge"):
        yield _application(f"ConvNeXt{name}", "ConvNeXt", 224)


HUB = tuple(_hub(name, *preset) for name, preset in PRESETS.items())
APPLICATIONS = tuple(_applications())
NETWORKS = {network.name: network for network in APPLICATIONS + HUB}

# The first network of each family in the list is its smallest.
SMALL = list({net.family: name for name, net in reversed(NETWORKS.items())}.values())
