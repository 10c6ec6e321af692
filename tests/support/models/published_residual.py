"""ResNet, U-Net, ResNeXt and RegNet, as people publish them in Keras."""

import keras
from keras import layers, ops

# === ResNet ===


class BasicBlock(layers.Layer):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, filters, stride=1, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.stride = stride
        self.conv1 = layers.Conv2D(
            filters, 3, strides=stride, padding="same", use_bias=False
        )
        self.bn1 = layers.BatchNormalization()
        self.conv2 = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self.bn2 = layers.BatchNormalization()
        self.relu = layers.ReLU()

    def build(self, input_shape):
        if self.stride != 1 or input_shape[-1] != self.filters:
            self.shortcut = keras.Sequential(
                [
                    layers.Conv2D(self.filters, 1, strides=self.stride, use_bias=False),
                    layers.BatchNormalization(),
                ]
            )
            self.shortcut.build(input_shape)
        else:
            self.shortcut = None
        self.conv1.build(input_shape)
        inner = self.conv1.compute_output_shape(input_shape)
        self.bn1.build(inner)
        self.conv2.build(inner)
        self.bn2.build(inner)

    def call(self, x, training=None):
        identity = x
        out = self.relu(self.bn1(self.conv1(x), training=training))
        out = self.bn2(self.conv2(out), training=training)
        if self.shortcut is not None:
            identity = self.shortcut(x, training=training)
        return self.relu(out + identity)


class ResNet(keras.Model):
    """ResNet of basic blocks, with stages in a list of lists."""

    def __init__(self, widths=(8, 16, 24), depth=2, classes=10, **kwargs):
        super().__init__(**kwargs)
        self.conv1 = layers.Conv2D(widths[0], 3, padding="same", use_bias=False)
        self.bn1 = layers.BatchNormalization()
        self.stages = []
        for number, width in enumerate(widths):
            blocks = []
            for index in range(depth):
                stride = 2 if number > 0 and index == 0 else 1
                blocks.append(BasicBlock(width, stride))
            self.stages.append(blocks)
        self.pool = layers.GlobalAveragePooling2D()
        self.dropout = layers.Dropout(0.2)
        self.fc = layers.Dense(classes)

    def call(self, x, training=None):
        x = ops.relu(self.bn1(self.conv1(x), training=training))
        for blocks in self.stages:
            for block in blocks:
                x = block(x, training=training)
        x = self.dropout(self.pool(x), training=training)
        return self.fc(x)


# === U-Net ===


class DoubleConv(layers.Layer):
    """Two convolutions with BatchNorm, as in U-Net."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.block = keras.Sequential(
            [
                layers.Conv2D(filters, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2D(filters, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
            ]
        )

    def call(self, x):
        return self.block(x)


class UNet(keras.Model):
    """U-Net with transposed convolutions."""

    def __init__(self, widths=(8, 16, 24), classes=2, **kwargs):
        super().__init__(**kwargs)
        self.downs = [DoubleConv(width) for width in widths]
        self.bottleneck = DoubleConv(2 * widths[-1])
        self.pool = layers.MaxPooling2D()
        self.ups = []
        for width in reversed(widths):
            self.ups.append(layers.Conv2DTranspose(width, 2, strides=2))
            self.ups.append(DoubleConv(width))
        self.dropout = layers.SpatialDropout2D(0.1)
        self.final = layers.Conv2D(classes, 1)

    def call(self, x, training=None):
        skips = []
        for down in self.downs:
            x = down(x, training=training)
            skips.append(x)
            x = self.pool(x)
        x = self.dropout(self.bottleneck(x, training=training), training=training)
        for index in range(0, len(self.ups), 2):
            x = self.ups[index](x)
            skip = skips.pop()
            x = self.ups[index + 1](
                ops.concatenate([skip, x], axis=-1), training=training
            )
        return self.final(x)


# === ResNeXt and RegNet ===


class ConvNorm(layers.Layer):
    """Convolution, BatchNorm and activation, the brick of many networks."""

    def __init__(
        self, filters, size=1, stride=1, groups=1, activation="relu", **kwargs
    ):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(
            filters,
            size,
            strides=stride,
            padding="same",
            groups=groups,
            use_bias=False,
        )
        self.norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        self.act = layers.Activation(activation) if activation else None

    def call(self, x, training=None):
        x = self.norm(self.conv(x), training=training)
        return self.act(x) if self.act is not None else x


class SqueezeExcite(layers.Layer):
    def __init__(self, filters, reduced, **kwargs):
        super().__init__(**kwargs)
        self.pool = layers.GlobalAveragePooling2D(keepdims=True)
        self.reduce = layers.Conv2D(reduced, 1, activation="relu")
        self.expand = layers.Conv2D(filters, 1, activation="sigmoid")

    def call(self, x):
        return x * self.expand(self.reduce(self.pool(x)))


class GroupedBottleneck(layers.Layer):
    """1x1, grouped 3x3, 1x1 and a shortcut: ResNeXt, and RegNet with a gate."""

    def __init__(self, filters, inner, groups, stride=1, gate=0, **kwargs):
        super().__init__(**kwargs)
        self.a = ConvNorm(inner)
        self.b = ConvNorm(inner, 3, stride, groups)
        self.se = SqueezeExcite(inner, gate) if gate else None
        self.c = ConvNorm(filters, activation=None)
        self.proj = None
        self.filters = filters
        self.stride = stride

    def build(self, input_shape):
        if self.stride > 1 or input_shape[-1] != self.filters:
            self.proj = ConvNorm(self.filters, 1, self.stride, activation=None)

    def call(self, x, training=None):
        shortcut = x
        if self.proj is not None:
            shortcut = self.proj(x, training=training)
        x = self.b(self.a(x, training=training), training=training)
        if self.se is not None:
            x = self.se(x)
        return ops.relu(self.c(x, training=training) + shortcut)


class GroupedNet(keras.Model):
    """A stem, stages of grouped bottlenecks and a head."""

    def __init__(self, stages, groups, gate=0, classes=10, **kwargs):
        super().__init__(**kwargs)
        self.stem = ConvNorm(stages[0][0] // 2, 3)
        self.blocks = []
        for filters, inner, depth in stages:
            for index in range(depth):
                stride = 2 if index == 0 else 1
                self.blocks.append(
                    GroupedBottleneck(filters, inner, groups, stride, gate)
                )
        self.head = layers.Dense(classes)

    def call(self, x, training=None):
        x = self.stem(x, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(ops.mean(x, axis=(1, 2)))


def resnext():
    return GroupedNet([(32, 16, 2), (48, 24, 2)], groups=4)


def regnet():
    return GroupedNet([(24, 24, 1), (40, 40, 2)], groups=8, gate=6)
