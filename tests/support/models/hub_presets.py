"""Small CNNs of keras-hub, as arguments of its constructors."""

from typing import Any

RESNET = {
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [7],
    "stackwise_num_filters": [64, 128, 256],
    "stackwise_num_blocks": [2, 2, 2],
    "stackwise_num_strides": [1, 2, 2],
    "block_type": "bottleneck_block",
}
ENCODER = {
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [7],
    "stackwise_num_filters": [64, 64, 96, 128],
    "stackwise_num_blocks": [1, 1, 1, 1],
    "stackwise_num_strides": [1, 2, 2, 2],
    "block_type": "basic_block",
}
MOBILENET = {
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
}
EFFICIENTNET = {
    "stackwise_kernel_sizes": [3, 3, 3],
    "stackwise_num_repeats": [1, 2, 2],
    "stackwise_input_filters": [24, 24, 32],
    "stackwise_output_filters": [24, 32, 48],
    "stackwise_expansion_ratios": [1, 4, 4],
    "stackwise_squeeze_and_excite_ratios": [0.0, 0.0, 0.25],
    "stackwise_strides": [1, 2, 2],
    "stackwise_width_coefficients": [1.0] * 3,
    "stackwise_depth_coefficients": [1.0] * 3,
}
CSPNET = {
    "stem_filters": 32,
    "stem_kernel_size": 3,
    "stem_strides": 1,
    "stackwise_depth": [1, 2, 2],
    "stackwise_strides": [1, 2, 2],
    "stackwise_num_filters": [32, 64, 128],
    "bottle_ratio": [0.5],
    "block_ratio": [0.5],
    "expand_ratio": [1.0],
}
HGNET = {
    "depths": [1, 2],
    "embedding_size": 32,
    "hidden_sizes": [64, 128],
    "stem_channels": [3, 16, 32],
    "hidden_act": "relu",
    "use_learnable_affine_block": False,
    "stackwise_stage_filters": [(32, 16, 64, 1, 1, 3), (64, 32, 128, 2, 1, 3)],
    "apply_downsample": [False, True],
    "use_lightweight_conv_block": [False, False],
}
MOBILENET_V5 = {
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
}

# By name: the backbone's class without "Backbone", the class for the task, the
# backbone's arguments. An `image_encoder` is the arguments of a ResNet, `head` those of
# the task if they are not ten classes.
PRESETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ResNet": (
        "ResNet",
        "ResNetImageClassifier",
        RESNET | {"block_type": "basic_block", "use_pre_activation": True},
    ),
    "ResNetV1": ("ResNet", "ResNetImageClassifier", RESNET),
    "ResNetVd": (
        "ResNet",
        "ResNetImageClassifier",
        RESNET
        | {
            "input_conv_filters": [32, 32, 64],
            "input_conv_kernel_sizes": [3, 3, 3],
            "block_type": "bottleneck_block_vd",
        },
    ),
    "MobileNet": ("MobileNet", "MobileNetImageClassifier", MOBILENET),
    "EfficientNet": (
        "EfficientNet",
        "EfficientNetImageClassifier",
        EFFICIENTNET | {"stackwise_block_types": ["fused", "fused", "unfused"]},
    ),
    "EfficientNetV1": (
        "EfficientNet",
        "EfficientNetImageClassifier",
        EFFICIENTNET | {"stackwise_block_types": ["v1", "v1", "v1"]},
    ),
    "EfficientNetEdge": (
        "EfficientNet",
        "EfficientNetImageClassifier",
        EFFICIENTNET | {"stackwise_block_types": ["cba", "v1", "v1"]},
    ),
    "DenseNet": (
        "DenseNet",
        "DenseNetImageClassifier",
        {"stackwise_num_repeats": [2, 3, 2], "growth_rate": 16},
    ),
    "VGG": (
        "VGG",
        "VGGImageClassifier",
        {
            "stackwise_num_repeats": [2, 2, 3],
            "stackwise_num_filters": [32, 64, 128],
            # Other kinds of pooling take no input below 7 x 7.
            "head": {
                "num_classes": 10,
                "pooling": "flatten",
                "pooling_hidden_dim": 64,
            },
        },
    ),
    "Xception": (
        "Xception",
        "XceptionImageClassifier",
        {
            "stackwise_conv_filters": [[32, 64], [64, 64], [64, 128], [128, 128]],
            "stackwise_pooling": [True, False, True, False],
        },
    ),
    "CSPNet": (
        "CSPNet",
        "CSPNetImageClassifier",
        CSPNET | {"stage_type": "csp", "block_type": "dark_block"},
    ),
    "CSPResNeXt": (
        "CSPNet",
        "CSPNetImageClassifier",
        CSPNET | {"stage_type": "csp", "block_type": "bottleneck_block", "groups": 8},
    ),
    "CS3Net": (
        "CSPNet",
        "CSPNetImageClassifier",
        CSPNET | {"stage_type": "cs3", "block_type": "edge_block"},
    ),
    "DarkNet": (
        "CSPNet",
        "CSPNetImageClassifier",
        CSPNET
        | {"stage_type": "dark", "block_type": "dark_block", "block_ratio": [1.0]},
    ),
    "HGNetV2": ("HGNetV2", "HGNetV2ImageClassifier", HGNET),
    "MobileNetV5": ("MobileNetV5", "MobileNetV5ImageClassifier", MOBILENET_V5),
    "DeepLabV3": (
        "DeepLabV3",
        "DeepLabV3ImageSegmenter",
        {
            "image_encoder": ENCODER,
            "spatial_pyramid_pooling_key": "P5",
            "upsampling_size": 8,
            "dilation_rates": [2, 4],
            "low_level_feature_key": "P2",
            "projection_filters": 24,
        },
    ),
    "RetinaNet": (
        "RetinaNet",
        "RetinaNetObjectDetector",
        {"image_encoder": ENCODER, "min_level": 3, "max_level": 5, "use_p5": False},
    ),
    "BASNet": (
        "BASNet",
        "BASNetImageSegmenter",
        {
            # With shortcuts that have kernels, the first width is free.
            "image_encoder": ENCODER
            | {"input_conv_filters": [8], "block_type": "basic_block_vd"},
            "num_classes": 2,
            "projection_filters": 8,
            "head": {},
        },
    ),
}

# What keras-hub has for images without being CNNs.
TRANSFORMERS = {
    "DFine": "a transformer behind an HGNetV2, whose layers are whole blocks",
    "DeiT": "a transformer",
    "DepthAnything": "a convolutional head on a transformer",
    "MiT": "a transformer",
    "SAM": "a transformer",
    "SAM3PromptableConcept": "a transformer",
    "SegFormer": "a dense head on a transformer",
    "SwinTransformer": "a transformer",
    "ViT": "a transformer",
}
