"""CIFAR ResNets: three stages of basic blocks, 16, 32 and 64 channels wide."""

from __future__ import annotations

import functools

from resrep_tf.lazy import keras, layers

from .blocks import conv_bn, image_input, pooled_logits
from .resnet import basic_residual, join, projection

_SHORTCUTS = ("zero_pad", "projection")


def cifar_resnet(
    depth: int = 56,
    input_shape: tuple = (32, 32, 3),
    classes: int = 10,
    shortcut: str = "zero_pad",
    weight_decay: float = 1e-4,
) -> keras.Model:
    """Builds a ResNet of `6 * n + 2` layers for small images. The outputs are logits.

    Args:
        depth: 20, 32, 44, 56, 110 or any other `6 * n + 2`.
        input_shape: Height, width and channels of one image.
        classes: Number of logits.
        shortcut: The connection into a wider stage. "zero_pad" has no weights: it takes
            every second pixel and pads the channels with zeros on both sides, which
            is option A of He et al. "projection" is a strided 1x1 convolution with
            BatchNorm, option B, and what the paper's 126 M MACs of ResNet-56 count.
        weight_decay: L2 in the gradient of convolution and dense kernels.

    Reference: He et al., Deep Residual Learning for Image Recognition, 2015.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(
            "`depth` must be 6 * n + 2 with n >= 1, such as 20, 32, 44, 56 or 110. "
            f"Received: depth={depth}"
        )
    if shortcut not in _SHORTCUTS:
        raise ValueError(
            f"`shortcut` must be one of {_SHORTCUTS}. Received: shortcut={shortcut!r}"
        )
    conv = functools.partial(conv_bn, weight_decay=weight_decay)

    # === Stem ===
    inputs = image_input(input_shape, classes)
    x = conv(inputs, 16, 3, scope="stem")

    # === Stages ===
    for stage, width in enumerate((16, 32, 64), start=1):
        for block in range((depth - 2) // 6):
            scope = f"stage{stage}_block{block}"
            strides = 2 if stage > 1 and block == 0 else 1
            if strides == 1:
                skip = x
            elif shortcut == "projection":
                skip = projection(x, width, strides, scope, conv)
            else:
                skip = _zero_pad(x, width, strides, scope)
            x = join(basic_residual(x, width, strides, scope, conv), skip, scope)

    # === Head ===
    outputs = pooled_logits(x, classes, weight_decay=weight_decay)
    return keras.Model(inputs, outputs, name=f"resnet{depth}")


def _zero_pad(
    x: keras.KerasTensor, filters: int, strides: int, scope: str
) -> keras.KerasTensor:
    # Pooling over one pixel takes every second pixel. It is a stock layer, and all code
    # that knows pooling treats it as channel-wise.
    x = layers.MaxPooling2D(1, strides=strides, name=f"{scope}_shortcut_subsample")(x)
    missing = filters - x.shape[-1]
    before = missing // 2
    return keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [before, missing - before]])
