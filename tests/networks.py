"""The networks of keras.applications and keras-hub, each with random weights.

One list for the tests and for `benchmarks/zoo.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras


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


def _hub(
    name: str,
    arguments: dict[str, Any],
    shape: str = "image_shape",
    head: str | None = None,
) -> Network:
    """A classifier on a backbone of keras-hub, made from its constructor."""

    def make(extent: int) -> keras.Model:
        import keras_hub

        backbone = getattr(keras_hub.models, f"{name}Backbone")(
            **arguments, **{shape: (extent, extent, 3)}
        )
        classifier = getattr(keras_hub.models, head or f"{name}ImageClassifier")
        return classifier(backbone=backbone, preprocessor=None, num_classes=10)

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


HUB = (
    _hub(
        "ResNet",
        {
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [7],
            "stackwise_num_filters": [64, 128, 256],
            "stackwise_num_blocks": [2, 2, 2],
            "stackwise_num_strides": [1, 2, 2],
            "block_type": "basic_block",
            "use_pre_activation": True,
        },
    ),
    _hub(
        "MobileNet",
        {
            "stackwise_expansion": [[40, 56], [64, 144, 144]],
            "stackwise_num_blocks": [2, 3],
            "stackwise_num_filters": [[16, 16], [24, 24, 24]],
            "stackwise_kernel_size": [[3, 3], [5, 5, 5]],
            "stackwise_num_strides": [[2, 1], [2, 1, 1]],
            "stackwise_se_ratio": [[None, None], [0.25, 0.25, 0.25]],
            "stackwise_activation": [["relu"] * 2, ["hard_swish"] * 3],
            "stackwise_padding": [[1, 1], [2, 2, 2]],
            "output_num_filters": 144,
            "depthwise_filters": 8,
            "depthwise_stride": 2,
            "depthwise_residual": False,
            "squeeze_and_excite": 0.5,
            "last_layer_filter": 144,
        },
    ),
    _hub(
        "EfficientNet",
        {
            "stackwise_kernel_sizes": [3, 3, 3],
            "stackwise_num_repeats": [1, 2, 2],
            "stackwise_input_filters": [24, 24, 32],
            "stackwise_output_filters": [24, 32, 48],
            "stackwise_expansion_ratios": [1, 4, 4],
            "stackwise_squeeze_and_excite_ratios": [0.0, 0.0, 0.25],
            "stackwise_strides": [1, 2, 2],
            "stackwise_block_types": ["fused", "fused", "unfused"],
            "stackwise_width_coefficients": [1.0] * 3,
            "stackwise_depth_coefficients": [1.0] * 3,
        },
        "input_shape",
    ),
    _hub("DenseNet", {"stackwise_num_repeats": [2, 3, 2], "growth_rate": 16}),
    _hub(
        "VGG",
        {
            "stackwise_num_repeats": [2, 2, 2],
            "stackwise_num_filters": [32, 64, 128],
        },
        head="ImageClassifier",  # Its own one takes no input below 7 x 7.
    ),
    _hub(
        "Xception",
        {
            "stackwise_conv_filters": [[32, 64], [64, 64], [64, 128], [128, 128]],
            "stackwise_pooling": [True, False, True, False],
        },
    ),
    _hub(
        "CSPNet",
        {
            "stem_filters": 32,
            "stem_kernel_size": 3,
            "stem_strides": 1,
            "stackwise_depth": [1, 2, 2],
            "stackwise_strides": [1, 2, 2],
            "stackwise_num_filters": [32, 64, 128],
            "block_type": "dark_block",
            "stage_type": "csp",
            "bottle_ratio": [0.5],
            "block_ratio": [0.5],
            "expand_ratio": [1.0],
        },
    ),
    _hub(
        "HGNetV2",
        {
            "depths": [1, 2],
            "embedding_size": 32,
            "hidden_sizes": [64, 128],
            "stem_channels": [3, 16, 32],
            "hidden_act": "relu",
            "use_learnable_affine_block": False,
            "stackwise_stage_filters": [(32, 16, 64, 1, 1, 3), (64, 32, 128, 2, 1, 3)],
            "apply_downsample": [False, True],
            "use_lightweight_conv_block": [False, False],
        },
    ),
    _hub(
        "MobileNetV5",
        {
            "stackwise_block_types": [["er"], ["uir", "uir"]],
            "stackwise_num_blocks": [1, 2],
            "stackwise_num_filters": [[24], [48, 48]],
            "stackwise_strides": [[2], [2, 1]],
            "stackwise_act_layers": [["relu"], ["relu", "relu"]],
            "stackwise_exp_ratios": [[4.0], [6.0, 6.0]],
            "stackwise_se_ratios": [[0.0], [0.0, 0.0]],
            "stackwise_dw_kernel_sizes": [[0], [5, 5]],
            "stackwise_dw_start_kernel_sizes": [[0], [0, 0]],
            "stackwise_dw_end_kernel_sizes": [[0], [0, 0]],
            "stackwise_exp_kernel_sizes": [[3], [0, 0]],
            "stackwise_pw_kernel_sizes": [[1], [0, 0]],
            "stackwise_num_heads": [[0], [0, 0]],
            "stackwise_key_dims": [[0], [0, 0]],
            "stackwise_value_dims": [[0], [0, 0]],
            "stackwise_kv_strides": [[0], [0, 0]],
            "stackwise_use_cpe": [[False], [False, False]],
            "use_msfa": False,
        },
    ),
)
APPLICATIONS = tuple(_applications())
NETWORKS = {network.name: network for network in APPLICATIONS + HUB}
