"""Small graphs with channels that can only be removed together, in several ways."""

import keras
from keras import layers as L
from keras import ops


def conv_bn(x, width, size=3, groups=1):
    x = L.Conv2D(width, size, padding="same", groups=groups, use_bias=False)(x)
    return L.BatchNormalization()(x)


def closed(inputs, x, classes=3):
    return keras.Model(inputs, L.Dense(classes)(L.GlobalAveragePooling2D()(x)))


def grouped():
    """Builds 1x1, grouped 3x3, 1x1 and a shortcut, twice; padded, with BatchNorms."""
    inputs = keras.Input((6, 6, 3))
    x = L.ReLU()(conv_bn(inputs, 8))
    for _ in range(2):
        y = L.ReLU()(conv_bn(x, 12, 1))
        y = L.ReLU()(conv_bn(y, 18, groups=3))
        x = L.ReLU()(L.Add()([x, conv_bn(y, 8, 1)]))
    return closed(inputs, x)


def grouped_stream():
    """Builds a stream that dense and grouped convolutions write, and one reads."""
    inputs = keras.Input((6, 6, 3))
    x = conv_bn(inputs, 24)
    x = L.ReLU()(L.Add()([x, conv_bn(x, 24, groups=4)]))
    x = L.Add()([x, L.Conv2D(24, 3, padding="same", groups=2, activation="tanh")(x)])
    return closed(inputs, conv_bn(x, 5))


def grouped_behind_constants():
    """Builds a graph whose pruned channel is another constant in each group."""
    inputs = keras.Input((6, 6, 3))
    x = L.DepthwiseConv2D(3)(conv_bn(inputs, 12))
    x = L.Activation("sigmoid")(L.BatchNormalization()(x))
    x = L.Conv2D(6, 2, groups=2, use_bias=False)(x)
    return closed(inputs, L.Conv2D(6, 1)(L.Activation("softplus")(x)))


def side_by_side():
    """Builds two layers side by side, added to the output of a third one."""
    inputs = keras.Input((6, 6, 3))
    x = conv_bn(inputs, 6)
    y = L.Concatenate()([conv_bn(x, 4), conv_bn(x, 3, 1)])
    x = L.ReLU()(L.Add()([y, conv_bn(x, 7)]))
    return closed(inputs, conv_bn(x, 5))


def ghost():
    """Builds channels whose half is made of the other half, beside a shortcut."""
    inputs = keras.Input((6, 6, 3))
    x = conv_bn(inputs, 6)
    for width in (4, 3):
        y = L.ReLU()(conv_bn(x, width, 1))
        y = L.Concatenate()([y, L.DepthwiseConv2D(3, padding="same")(y)])
        x = L.Add()([y, L.Conv2D(2 * width, 1)(x)])
    return closed(inputs, x)


def padded_shortcuts():
    """Builds a network for CIFAR with zeros for the channels that shortcuts lack."""
    inputs = keras.Input((6, 6, 3))
    x = L.ReLU()(conv_bn(inputs, 4))
    for width in (4, 6, 8):
        y = conv_bn(L.ReLU()(conv_bn(x, width)), width)
        missing = width - x.shape[-1]
        before = missing // 2
        if missing:
            x = ops.pad(x, [[0, 0], [0, 0], [0, 0], [before, missing - before]])
        x = L.ReLU()(L.Add()([x, y]))
    return closed(inputs, x)


def zeros_beside():
    """Builds a shortcut with as many zeros beside it."""
    inputs = keras.Input((6, 6, 3))
    x = conv_bn(inputs, 4)
    y = conv_bn(x, 8)
    x = L.Add()([y, ops.concatenate([x, ops.zeros_like(x)], axis=-1)])
    return closed(inputs, conv_bn(x, 5))


def split_and_added():
    """Builds a stream of a part of a layer's channels (CSP, C2f)."""
    inputs = keras.Input((6, 6, 3))
    left, right = ops.split(L.ReLU()(conv_bn(inputs, 10)), [4], axis=-1)
    parts = [left, right]
    for _ in range(2):
        parts.append(parts[-1] + conv_bn(L.ReLU()(conv_bn(parts[-1], 5)), 6))
    x = ops.concatenate([*parts, parts[1][..., :3]], axis=-1)
    return closed(inputs, conv_bn(x, 5, 1))


def shuffled(groups=2, size=4, blocks=3):
    """Units of ShuffleNetV2: split, convolve one half, concatenate, shuffle."""
    inputs = keras.Input((4, 6, 3))
    x = conv_bn(inputs, groups * size)
    for block in range(blocks):
        left, right = ops.split(x, 2, axis=-1)
        right = L.ReLU()(conv_bn(right, groups * size // 2))
        x = ops.concatenate([left, right], axis=-1)
        if block % 2:
            x = L.Reshape((4, 6, groups, size))(x)
            x = L.Reshape((4, 6, groups * size))(L.Permute((1, 2, 4, 3))(x))
        else:
            x = ops.reshape(x, (-1, 4, 6, groups, size))
            x = ops.transpose(x, (0, 1, 2, 4, 3))
            x = ops.reshape(x, (-1, 4, 6, groups * size))
    return closed(inputs, x)


GRAPHS = {
    graph.__name__: graph
    for graph in (
        *(grouped, grouped_stream, grouped_behind_constants, side_by_side, ghost),
        *(padded_shortcuts, zeros_beside, split_and_added, shuffled),
    )
}
