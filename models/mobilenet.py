"""MobileNet v1."""

from __future__ import annotations

from resrep_tf.lazy import keras

from .blocks import conv_bn, depthwise_bn, image_input, pooled_logits

# Output channels and stride of each block, at alpha = 1.
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)


def mobilenet_v1(
    alpha: float = 1.0,
    input_shape: tuple = (224, 224, 3),
    classes: int = 1000,
    weight_decay: float = 1e-4,
) -> keras.Model:
    """Builds MobileNet v1. The outputs are logits.

    Args:
        alpha: Factor on the width of every layer.
        input_shape: Height, width and channels of one image.
        classes: Number of logits.
        weight_decay: L2 in the gradient of convolution and dense kernels, depthwise
            kernels excepted.

    Reference: Howard et al., MobileNets: Efficient Convolutional Neural Networks for
        Mobile Vision Applications, 2017.
    """
    if alpha <= 0:
        raise ValueError(f"`alpha` must be positive. Received: alpha={alpha}")

    def scaled(width: int) -> int:
        return max(1, int(width * alpha))

    # === Stem ===
    inputs = image_input(input_shape, classes)
    x = conv_bn(inputs, scaled(32), 3, 2, scope="stem", weight_decay=weight_decay)

    # === Blocks ===
    for block, (width, strides) in enumerate(_BLOCKS):
        x = depthwise_bn(x, 3, strides, scope=f"block{block}_depthwise")
        scope = f"block{block}_pointwise"
        x = conv_bn(x, scaled(width), 1, scope=scope, weight_decay=weight_decay)

    # === Head ===
    outputs = pooled_logits(x, classes, weight_decay=weight_decay)
    return keras.Model(inputs, outputs, name="mobilenet")
