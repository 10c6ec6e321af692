"""ShuffleNetV2, GhostNet, RepVGG and a detector, as people publish them in Keras."""

import keras
from keras import layers, ops

from support.models.published_residual import ConvNorm, SqueezeExcite

# === ShuffleNetV2 ===


def channel_shuffle(x, groups=2):
    _, height, width, channels = x.shape
    x = ops.reshape(x, (-1, height, width, groups, channels // groups))
    x = ops.transpose(x, (0, 1, 2, 4, 3))
    return ops.reshape(x, (-1, height, width, channels))


class ShuffleUnit(layers.Layer):
    def __init__(self, filters, stride=1, **kwargs):
        super().__init__(**kwargs)
        self.stride = stride
        half = filters // 2
        self.branch = [
            layers.Conv2D(half, 1, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.Conv2D(half, 1, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
        ]
        self.shortcut = []
        if stride > 1:
            self.shortcut = [
                layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.Conv2D(half, 1, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
            ]

    def call(self, x):
        if self.stride == 1:
            left, right = ops.split(x, 2, axis=-1)
        else:
            left = right = x
        for layer in self.shortcut:
            left = layer(left)
        for layer in self.branch:
            right = layer(right)
        return channel_shuffle(ops.concatenate([left, right], axis=-1))


class ShuffleNetV2(keras.Model):
    def __init__(self, widths=(16, 32), depth=3, classes=10, **kwargs):
        super().__init__(**kwargs)
        self.conv1 = ConvNorm(8, 3, 2)
        self.stages = [
            keras.Sequential(
                [ShuffleUnit(width, 2 if i == 0 else 1) for i in range(depth)],
                name=f"stage{number}",
            )
            for number, width in enumerate(widths, 2)
        ]
        self.conv5 = ConvNorm(48)
        self.pool = layers.GlobalAveragePooling2D()
        self.fc = layers.Dense(classes)

    def call(self, x, training=None):
        x = self.conv1(x, training=training)
        for stage in self.stages:
            x = stage(x, training=training)
        return self.fc(self.pool(self.conv5(x, training=training)))


# === GhostNet ===


class GhostModule(layers.Layer):
    """Half of the channels are cheap depthwise copies of the other half."""

    def __init__(self, filters, relu=True, **kwargs):
        super().__init__(**kwargs)
        self.primary_conv = layers.Conv2D(filters // 2, 1, use_bias=False)
        self.primary_bn = layers.BatchNormalization()
        self.cheap_conv = layers.DepthwiseConv2D(3, padding="same", use_bias=False)
        self.cheap_bn = layers.BatchNormalization()
        self.relu = relu

    def call(self, x, training=None):
        x1 = self.primary_bn(self.primary_conv(x), training=training)
        x1 = ops.relu(x1) if self.relu else x1
        x2 = self.cheap_bn(self.cheap_conv(x1), training=training)
        x2 = ops.relu(x2) if self.relu else x2
        return ops.concatenate([x1, x2], axis=-1)


class GhostBottleneck(layers.Layer):
    def __init__(self, expanded, filters, stride=1, se=False, **kwargs):
        super().__init__(**kwargs)
        self.ghost1 = GhostModule(expanded)
        self.stride = stride
        if stride > 1:
            self.dw = layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)
            self.dw_bn = layers.BatchNormalization()
        self.se = SqueezeExcite(expanded, expanded // 4) if se else None
        self.ghost2 = GhostModule(filters, relu=False)
        self.filters = filters

    def build(self, input_shape):
        self.shortcut = None
        if self.stride > 1 or input_shape[-1] != self.filters:
            self.shortcut = keras.Sequential(
                [
                    layers.DepthwiseConv2D(
                        3, self.stride, padding="same", use_bias=False
                    ),
                    layers.BatchNormalization(),
                    layers.Conv2D(self.filters, 1, use_bias=False),
                    layers.BatchNormalization(),
                ]
            )

    def call(self, inputs, training=None):
        x = self.ghost1(inputs, training=training)
        if self.stride > 1:
            x = self.dw_bn(self.dw(x), training=training)
        if self.se is not None:
            x = self.se(x)
        x = self.ghost2(x, training=training)
        if self.shortcut is None:
            return x + inputs
        return x + self.shortcut(inputs, training=training)


class GhostNet(keras.Model):
    def __init__(self, classes=10, **kwargs):
        super().__init__(**kwargs)
        self.stem = ConvNorm(16, 3, 2)
        self.blocks = [
            GhostBottleneck(16, 16),
            GhostBottleneck(48, 24, stride=2),
            GhostBottleneck(72, 24, se=True),
        ]
        self.conv = ConvNorm(64)
        self.classifier = layers.Dense(classes)

    def call(self, x, training=None):
        x = self.stem(x, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        x = ops.mean(self.conv(x, training=training), axis=(1, 2))
        return self.classifier(x)


# === RepVGG ===


class RepVGGBlock(layers.Layer):
    """3x3, 1x1 and identity branches in training, each with a BatchNorm."""

    def __init__(self, filters, stride=1, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.stride = stride
        self.rbr_dense = ConvNorm(filters, 3, stride, activation=None)
        self.rbr_1x1 = ConvNorm(filters, 1, stride, activation=None)
        self.nonlinearity = layers.ReLU()

    def build(self, input_shape):
        self.rbr_identity = None
        if input_shape[-1] == self.filters and self.stride == 1:
            self.rbr_identity = layers.BatchNormalization()

    def call(self, inputs, training=None):
        if self.rbr_identity is None:
            identity = 0
        else:
            identity = self.rbr_identity(inputs, training=training)
        dense = self.rbr_dense(inputs, training=training)
        pointwise = self.rbr_1x1(inputs, training=training)
        return self.nonlinearity(dense + pointwise + identity)


class RepVGG(keras.Model):
    def __init__(self, blocks=(1, 2, 2), widths=(8, 16, 24), classes=10, **kwargs):
        super().__init__(**kwargs)
        self.stages = {}
        for number, (depth, width) in enumerate(zip(blocks, widths, strict=True)):
            for index in range(depth):
                self.stages[f"stage{number}_{index}"] = RepVGGBlock(
                    width, 2 if index == 0 else 1
                )
        self.gap = layers.GlobalAveragePooling2D()
        self.linear = layers.Dense(classes)

    def call(self, x, training=None):
        for block in self.stages.values():
            x = block(x, training=training)
        return self.linear(self.gap(x))


# === A detector like YOLO ===


class Bottleneck(layers.Layer):
    def __init__(self, filters, shortcut=True, **kwargs):
        super().__init__(**kwargs)
        self.cv1 = ConvNorm(filters, 3, activation="silu")
        self.cv2 = ConvNorm(filters, 3, activation="silu")
        self.shortcut = shortcut

    def call(self, x):
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C2f(layers.Layer):
    """Splits, and concatenates what every bottleneck makes."""

    def __init__(self, filters, depth=1, shortcut=True, **kwargs):
        super().__init__(**kwargs)
        self.cv1 = ConvNorm(filters, activation="silu")
        self.cv2 = ConvNorm(filters, activation="silu")
        self.m = [Bottleneck(filters // 2, shortcut) for _ in range(depth)]

    def call(self, x):
        y = list(ops.split(self.cv1(x), 2, axis=-1))
        for module in self.m:
            y.append(module(y[-1]))
        return self.cv2(ops.concatenate(y, axis=-1))


class SPPF(layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.cv1 = ConvNorm(filters // 2, activation="silu")
        self.cv2 = ConvNorm(filters, activation="silu")
        self.m = layers.MaxPooling2D(5, 1, padding="same")

    def call(self, x):
        y = [self.cv1(x)]
        for _ in range(3):
            y.append(self.m(y[-1]))
        return self.cv2(ops.concatenate(y, axis=-1))


class Detector(keras.Model):
    """A backbone, a neck from top to bottom and two heads that return a dict."""

    def __init__(self, classes=3, **kwargs):
        super().__init__(**kwargs)
        self.stem = ConvNorm(8, 3, 2, activation="silu")
        self.down1 = ConvNorm(16, 3, 2, activation="silu")
        self.c2f1 = C2f(16)
        self.down2 = ConvNorm(32, 3, 2, activation="silu")
        self.c2f2 = C2f(32, 2)
        self.sppf = SPPF(32)
        self.up = layers.UpSampling2D()
        self.neck = C2f(24, shortcut=False)
        self.heads = {}
        for level in ("p2", "p3"):
            self.heads[level] = {
                "box": [ConvNorm(16, 3, activation="silu"), layers.Conv2D(4, 1)],
                "cls": [ConvNorm(16, 3, activation="silu"), layers.Conv2D(classes, 1)],
            }

    def call(self, images, training=None):
        p2 = self.c2f1(self.down1(self.stem(images)))
        p3 = self.sppf(self.c2f2(self.down2(p2)))
        p2 = self.neck(ops.concatenate([self.up(p3), p2], axis=-1))
        outputs = {}
        for level, x in {"p2": p2, "p3": p3}.items():
            for kind, (conv, last) in self.heads[level].items():
                y = last(conv(x))
                outputs[f"{level}_{kind}"] = ops.reshape(
                    y, (-1, y.shape[1] * y.shape[2], y.shape[3])
                )
        return outputs
