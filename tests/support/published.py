"""Networks written the way people publish them: as subclassed models and layers.

Each is small, for images of 32 x 32.
"""

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
        super().build(input_shape)

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
