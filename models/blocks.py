"""Parts of the reference architectures.

A layer is named `{scope}_{kind}{index}`, for instance `stage1_block0_conv1`. The
names are part of the interface: target patterns and weight files rely on them.
"""

from __future__ import annotations

from resrep_tf.lazy import keras, layers


def image_input(input_shape: tuple, classes: int) -> keras.KerasTensor:
    """Returns the input of a model, after checking the arguments of all builders."""
    if len(input_shape) != 3 or not input_shape[-1]:
        raise ValueError(
            "`input_shape` must be (height, width, channels) with a known number of "
            f"channels. Received: input_shape={input_shape}"
        )
    if classes < 1:
        raise ValueError(
            f"`classes` must be a positive integer. Received: classes={classes}"
        )
    return keras.Input(input_shape, name="image")


def kernel_decay(weight_decay: float) -> keras.regularizers.Regularizer | None:
    """Returns a penalty that adds `weight_decay * kernel` to the gradient.

    Keras's `L2(l)` penalises `l * sum(w ** 2)`, whose gradient is `2 * l * w`: half
    of the strength gives weight decay in the usual sense.
    """
    if weight_decay < 0:
        raise ValueError(
            "`weight_decay` must not be negative. "
            f"Received: weight_decay={weight_decay}"
        )
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None


def conv_bn(
    x: keras.KerasTensor,
    filters: int,
    kernel_size: int,
    strides: int = 1,
    *,
    scope: str,
    index: int | str = "",
    relu: bool = True,
    weight_decay: float,
) -> keras.KerasTensor:
    """Adds a convolution without bias, a BatchNorm and, by default, a ReLU."""
    x, padding = _pad(x, kernel_size, strides, name=f"{scope}_pad{index}")
    x = layers.Conv2D(
        filters,
        kernel_size,
        strides=strides,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=kernel_decay(weight_decay),
        name=f"{scope}_conv{index}",
    )(x)
    return _norm(x, scope, index, relu)


def depthwise_bn(
    x: keras.KerasTensor, kernel_size: int, strides: int = 1, *, scope: str
) -> keras.KerasTensor:
    """Adds a depthwise convolution without bias, a BatchNorm and a ReLU.

    Depthwise kernels are not decayed: nine weights per channel do not overfit, and
    decay makes them vanish (Howard et al., 2017, section 3.2).
    """
    x, padding = _pad(x, kernel_size, strides, name=f"{scope}_pad")
    x = layers.DepthwiseConv2D(
        kernel_size,
        strides=strides,
        padding=padding,
        use_bias=False,
        # He initialisation. Keras computes a depthwise kernel's fan-in as if every
        # output read every channel; what it calls the fan-out is the true fan-in.
        depthwise_initializer=keras.initializers.VarianceScaling(2.0, mode="fan_out"),
        name=f"{scope}_conv",
    )(x)
    return _norm(x, scope, index="", relu=True)


def dense(
    x: keras.KerasTensor, units: int, *, name: str, weight_decay: float
) -> keras.KerasTensor:
    """Adds a fully connected layer; weight decay is on its kernel only."""
    return layers.Dense(
        units,
        kernel_initializer="he_normal",
        kernel_regularizer=kernel_decay(weight_decay),
        name=name,
    )(x)


def pooled_logits(
    x: keras.KerasTensor, classes: int, *, weight_decay: float
) -> keras.KerasTensor:
    """Adds the head: global average pooling and logits."""
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return dense(x, classes, name="logits", weight_decay=weight_decay)


def _pad(
    x: keras.KerasTensor, kernel_size: int, strides: int, name: str
) -> tuple[keras.KerasTensor, str]:
    """Pads as PyTorch does: the same number of pixels on each side.

    Keras's "same" does this at stride 1. At stride 2 and an even size, it pads only the
    right and the bottom, which shifts the image that the weights were trained on.
    """
    if strides == 1:
        return x, "same"
    if kernel_size > 1:
        x = layers.ZeroPadding2D(kernel_size // 2, name=name)(x)
    return x, "valid"


def _norm(
    x: keras.KerasTensor, scope: str, index: int | str, relu: bool
) -> keras.KerasTensor:
    x = layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, name=f"{scope}_bn{index}"
    )(x)
    return layers.ReLU(name=f"{scope}_relu{index}")(x) if relu else x
