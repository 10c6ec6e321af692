"""ImageNet ResNets in torchvision's form.

Bottlenecks carry their stride on the 3x3 convolution ("v1.5"), as the networks of
the paper do; keras.applications has it on the first 1x1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from resrep_tf.lazy import keras, layers

from .blocks import conv_bn, image_input, pooled_logits

# Depth: blocks in each of the four stages.
_BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def imagenet_resnet(
    depth: int = 50,
    input_shape: tuple = (224, 224, 3),
    classes: int = 1000,
    weight_decay: float = 1e-4,
) -> keras.Model:
    """Builds ResNet-18, 34, 50, 101 or 152. The outputs are logits.

    Args:
        depth: Number of weighted layers on the longest path.
        input_shape: Height, width and channels of one image.
        classes: Number of logits.
        weight_decay: L2 in the gradient of convolution and dense kernels.

    Reference: He et al., Deep Residual Learning for Image Recognition, 2015.
    """
    if depth not in _BASIC and depth not in _BOTTLENECK:
        raise ValueError(
            f"`depth` must be one of {[*_BASIC, *_BOTTLENECK]}. Received: depth={depth}"
        )
    bottleneck = depth in _BOTTLENECK
    conv = functools.partial(conv_bn, weight_decay=weight_decay)

    # === Stem ===
    inputs = image_input(input_shape, classes)
    x = conv(inputs, 64, 7, 2, scope="stem")
    # Padding with zeros is neutral to the maximum, because a ReLU comes before it.
    x = layers.ZeroPadding2D(1, name="stem_pool_pad")(x)
    x = layers.MaxPooling2D(3, strides=2, name="stem_pool")(x)

    # === Stages ===
    for stage, blocks in enumerate((_BOTTLENECK if bottleneck else _BASIC)[depth]):
        width = 64 * 2**stage
        filters = 4 * width if bottleneck else width
        for block in range(blocks):
            scope = f"stage{stage + 1}_block{block}"
            strides = 2 if stage and not block else 1
            shortcut = x
            if strides != 1 or x.shape[-1] != filters:
                shortcut = projection(x, filters, strides, scope, conv)
            residual = bottleneck_residual if bottleneck else basic_residual
            x = join(residual(x, width, strides, scope, conv), shortcut, scope)

    # === Head ===
    outputs = pooled_logits(x, classes, weight_decay=weight_decay)
    return keras.Model(inputs, outputs, name=f"resnet{depth}")


def basic_residual(
    x: keras.KerasTensor, width: int, strides: int, scope: str, conv: Callable
) -> keras.KerasTensor:
    """Adds two 3x3 convolutions."""
    x = conv(x, width, 3, strides, scope=scope, index=1)
    return conv(x, width, 3, scope=scope, index=2, relu=False)


def bottleneck_residual(
    x: keras.KerasTensor, width: int, strides: int, scope: str, conv: Callable
) -> keras.KerasTensor:
    """Adds a 3x3 convolution between two 1x1; the last is four times as wide."""
    x = conv(x, width, 1, scope=scope, index=1)
    x = conv(x, width, 3, strides, scope=scope, index=2)
    return conv(x, 4 * width, 1, scope=scope, index=3, relu=False)


def projection(
    x: keras.KerasTensor, filters: int, strides: int, scope: str, conv: Callable
) -> keras.KerasTensor:
    """Adds the shortcut of a block whose output has another shape than its input."""
    return conv(x, filters, 1, strides, scope=f"{scope}_shortcut", relu=False)


def join(
    residual: keras.KerasTensor, shortcut: keras.KerasTensor, scope: str
) -> keras.KerasTensor:
    """Adds the shortcut to a block, and a ReLU."""
    x = layers.Add(name=f"{scope}_add")([residual, shortcut])
    return layers.ReLU(name=f"{scope}_relu")(x)
