"""VGG-16 with BatchNorm."""

from __future__ import annotations

from resrep_tf.lazy import keras, layers

from .blocks import conv_bn, dense, image_input, pooled_logits

# Convolutions and their width in each of the five stages.
_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def vgg16(
    input_shape: tuple = (32, 32, 3),
    classes: int = 10,
    hidden: tuple[int, ...] | None = None,
    weight_decay: float = 1e-4,
) -> keras.Model:
    """Builds VGG-16 with a BatchNorm after each convolution. The outputs are logits.

    Args:
        input_shape: Height, width and channels of one image, at least 32 x 32.
        classes: Number of logits.
        hidden: Units of the dense layers before the logits, each with ReLU and
            dropout of one half. By default none for images below 224 x 224, the
            usual CIFAR form, and (4096, 4096) from there on, the ImageNet form.
        weight_decay: L2 in the gradient of convolution and dense kernels.

    Reference: Simonyan and Zisserman, Very Deep Convolutional Networks for
        Large-Scale Image Recognition, 2014.
    """
    inputs = image_input(input_shape, classes)
    known = [size for size in input_shape[:2] if size]
    if any(size < 32 for size in known):
        raise ValueError(
            "`input_shape` must be at least 32 x 32, because VGG-16 halves the image "
            f"five times. Received: input_shape={input_shape}"
        )
    if hidden is None:
        large = len(known) == 2 and min(known) >= 224
        hidden = (4096, 4096) if large else ()

    # === Stages ===
    x = inputs
    for stage, (convs, width) in enumerate(_STAGES, start=1):
        scope = f"stage{stage}"
        for index in range(1, convs + 1):
            x = conv_bn(
                x, width, 3, scope=scope, index=index, weight_decay=weight_decay
            )
        x = layers.MaxPooling2D(2, name=f"{scope}_pool")(x)

    # === Head ===
    if not hidden:
        outputs = pooled_logits(x, classes, weight_decay=weight_decay)
        return keras.Model(inputs, outputs, name="vgg16")
    x = layers.Flatten(name="flatten")(x)
    for index, units in enumerate(hidden, start=1):
        x = dense(x, units, name=f"hidden{index}", weight_decay=weight_decay)
        x = layers.ReLU(name=f"hidden{index}_relu")(x)
        x = layers.Dropout(0.5, name=f"hidden{index}_dropout")(x)
    outputs = dense(x, classes, name="logits", weight_decay=weight_decay)
    return keras.Model(inputs, outputs, name="vgg16")
