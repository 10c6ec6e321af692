"""Random Keras graphs from the layers that have rules, reproducible from a seed."""

import keras
import numpy as np
from keras import layers as L
from keras import ops

from support.checks import convnext_layer
from support.models import random_blocks as blocks

ACTIVATIONS = ["relu", "sigmoid", "tanh", "swish", "linear", "softplus", "gelu"]


class RandomModel:
    """Grows a graph on a pool of image tensors, then closes it with readers."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.pool = []
        self.heads = []
        self.whole = self.flag(0.15)  # True to put a subclassed model around it all.

    def pick(self, items):
        return items[self.rng.integers(len(items))]

    def width(self):
        return int(self.rng.integers(2, 6))

    def flag(self, chance=0.5):
        return bool(self.rng.random() < chance)

    def build(self) -> keras.Model:
        inputs = [keras.Input((6, 6, 2), name="first")]
        if self.flag(0.25):
            inputs.append(keras.Input((6, 6, 3), name="second"))
        self.pool = [self.conv(x) for x in inputs]
        for _ in range(self.rng.integers(2, 8)):
            self.pool.append(self.grow(self.pick(self.pool)))
        outputs = [self.close(self.pool[-1]), *self.heads]
        if self.flag(0.25):
            outputs.append(self.close(self.pick(self.pool)))
        model = keras.Model(inputs, outputs)
        return blocks.traced(blocks.Around(model)) if self.whole else model

    # === Growing ===

    def grow(self, x):
        block = self.pick(
            [
                self.conv,
                self.conv,
                self.conv_bn,
                self.conv_bn,
                self.depthwise,
                self.separable,
                self.transpose,
                self.residual,
                self.residual,
                self.squeeze_excite,
                self.concatenate,
                self.plain,
                self.plain,
                self.arithmetic,
                self.grouped,
                self.grouped,
                self.partial,
                self.widened,
                self.ghost,
                self.shuffle,
                self.split,
                self.shared,
                self.siamese,
                self.skip,
                self.pyramid,
                self.nested_model,
                self.subclassed,
                self.subclassed,
                self.subclassed,
            ]
        )
        return block(x)

    def conv(self, x, width=None):
        kernel = self.pick([1, 2, 3])
        return L.Conv2D(
            width or self.width(),
            kernel,
            padding=self.pick(["same", "valid"]) if x.shape[1] >= 4 else "same",
            strides=self.pick([1, 1, 2]) if x.shape[1] >= 6 else 1,
            use_bias=self.flag(),
            activation=self.pick(ACTIVATIONS),
        )(x)

    def conv_bn(self, x, width=None):
        x = L.Conv2D(width or self.width(), 3, padding="same", use_bias=self.flag())(x)
        x = L.BatchNormalization(scale=self.flag(), center=self.flag(0.8))(x)
        return L.Activation(self.pick(ACTIVATIONS))(x)

    def depthwise(self, x):
        x = L.DepthwiseConv2D(
            self.pick([1, 3]),
            padding=self.pick(["same", "valid"]) if x.shape[1] >= 4 else "same",
            depth_multiplier=self.pick([1, 1, 2]),
            use_bias=self.flag(),
        )(x)
        x = L.BatchNormalization()(x) if self.flag() else x
        return L.ReLU()(x) if self.flag() else x

    def separable(self, x):
        return L.SeparableConv2D(
            self.width(), 3, padding="same", depth_multiplier=self.pick([1, 2])
        )(x)

    def transpose(self, x):
        return L.Conv2DTranspose(self.width(), self.pick([1, 2]), padding="same")(x)

    def residual(self, x):
        """Makes x + f(x), with or without a projection, joined in one of many ways."""
        width = x.shape[-1]
        y = self.conv_bn(x)
        y = L.Conv2D(width, 3, padding="same")(y)
        if self.flag():
            y = L.BatchNormalization()(y)
        if self.flag(0.3):
            y = convnext_layer("LayerScale")(0.5, width)(y)
        if self.flag(0.3):
            y = convnext_layer("StochasticDepth")(0.2)(y)
        if self.flag(0.3):
            x = L.Conv2D(width, 1)(x)
        join = self.pick(
            [
                L.Add(),
                L.Average(),
                L.Maximum(),
                L.Subtract(),
                lambda pair: pair[0] + pair[1],
                lambda pair: ops.minimum(*pair),
            ]
        )
        y = join([x, y])
        return L.ReLU()(y) if self.flag() else y

    def squeeze_excite(self, x):
        gate = (
            L.GlobalAveragePooling2D(keepdims=True)(x)
            if self.flag()
            else ops.mean(x, axis=(1, 2), keepdims=True)
        )
        gate = L.Conv2D(self.width(), 1, activation="relu")(gate)
        gate = L.Conv2D(x.shape[-1], 1, activation=self.pick(["sigmoid", "relu"]))(gate)
        return L.Multiply()([x, gate]) if self.flag() else x * gate

    def concatenate(self, x):
        y = self.conv_bn(x)
        parts = [x, y] if self.flag() else [y, x, y]
        return L.Concatenate()(parts) if self.flag() else ops.concatenate(parts, -1)

    def plain(self, x):
        size = x.shape[1]
        choices = [
            lambda: L.BatchNormalization()(x),
            lambda: L.ReLU()(x),
            lambda: L.PReLU(shared_axes=self.pick([None, [1, 2]]))(x),
            lambda: L.LeakyReLU(0.1)(x),
            lambda: L.Activation(self.pick(ACTIVATIONS))(x),
            lambda: L.Dropout(0.2)(x),
            lambda: L.ZeroPadding2D(((1, 0), (0, 1)))(x),
            lambda: L.MaxPooling2D(2, 1, padding="same")(x),
            lambda: L.AveragePooling2D(3, 1, padding="same")(x),
            lambda: L.Permute((2, 1, 3))(x),
            lambda: L.Rescaling(0.5, offset=self.pick([0.0, 0.3]))(x),
            lambda: self.normalization(x),
            lambda: L.Resizing(size + 1, size)(x),
            lambda: L.Softmax()(x),  # Pins.
            lambda: L.LayerNormalization()(x),  # Pins.
            lambda: L.RMSNormalization(epsilon=0.01)(x),
            lambda: L.UnitNormalization()(x),
            lambda: x - ops.mean(x, axis=-1, keepdims=True),
        ]
        if size >= 4:
            choices += [
                lambda: L.Cropping2D(((1, 0), (0, 1)))(x),
                lambda: L.MaxPooling2D(2)(x),
            ]
        if size <= 3:
            choices.append(lambda: L.UpSampling2D(2)(x))
        return self.pick(choices)()

    def normalization(self, x):
        width = x.shape[-1]
        mean, variance = self.rng.normal(size=width), self.rng.uniform(1, 2, width)
        return L.Normalization(mean=mean.tolist(), variance=variance.tolist())(x)

    def arithmetic(self, x):
        width = x.shape[-1]
        return self.pick(
            [
                lambda: x * 0.5,
                lambda: x + 1.0,
                lambda: 1.0 - x,
                lambda: x / 2.0,
                lambda: x * np.linspace(0.5, 1.5, width).astype("float32"),
                lambda: x * ops.relu6(x + 3.0),
                lambda: ops.silu(x),
                lambda: ops.pad(x, [[0, 0], [1, 0], [0, 1], [0, 0]]),
                lambda: ops.transpose(x, (0, 2, 1, 3)),
                lambda: ops.reshape(x, (-1, x.shape[2], x.shape[1], width)),
                lambda: x[:, :, ::-1],
                lambda: ops.take(x, self.rng.permutation(width), axis=-1),
                lambda: x[..., : width - 1] if width > 2 else x,
                lambda: (
                    ops.concatenate(ops.split(x, 2, axis=2)[::-1], axis=2)
                    if x.shape[2] % 2 == 0
                    else x
                ),
            ]
        )()

    def grouped(self, x):
        """Calls a grouped convolution, sometimes with one channel in each group."""
        groups = self.pick([2, 3, 4])
        x = self.pick([self.conv, self.conv_bn])(x, groups * self.pick([1, 2, 3]))
        y = L.Conv2D(
            self.pick([x.shape[-1], 2 * groups, 3 * groups]),
            self.pick([1, 3]),
            padding="same",
            groups=groups,
            use_bias=self.flag(),
            activation=self.pick(ACTIVATIONS),
        )(x)
        y = L.BatchNormalization()(y) if self.flag() else y
        if self.flag(0.4) and y.shape == x.shape:
            y = L.Add()([x, y])
        return self.conv_bn(y) if self.flag() else y

    def partial(self, x):
        """Layers side by side, added to what one layer makes."""
        parts = [self.conv_bn(x) for _ in range(self.pick([2, 3]))]
        y = L.Concatenate()(parts)
        x = L.Conv2D(y.shape[-1], 1, groups=self.pick([1, y.shape[-1]]))(
            self.conv_bn(x, y.shape[-1])
        )
        return L.Add()([x, y]) if self.flag(0.7) else L.Multiply()([x, y])

    def widened(self, x):
        """Adds a shortcut with zeros for the channels that it lacks."""
        x = self.conv_bn(x)
        before, after = self.pick([(0, 2), (1, 1), (2, 1)])
        y = self.conv_bn(x, x.shape[-1] + before + after)
        if self.flag(0.7):
            x = ops.pad(x, [[0, 0], [0, 0], [0, 0], [before, after]])
        else:
            x, y = (
                ops.concatenate([x, ops.zeros_like(x)], -1),
                self.conv_bn(y, 2 * x.shape[-1]),
            )
        return L.ReLU()(L.Add()([x, y]))

    def ghost(self, x):
        """Channels, and cheap ones made of them, perhaps beside a shortcut."""
        y = self.conv_bn(x)
        y = L.Concatenate()([y, L.DepthwiseConv2D(3, padding="same")(y)])
        return L.Add()([y, self.conv_bn(x, y.shape[-1])]) if self.flag() else y

    def shuffle(self, x):
        """Channels of two layers in turn; then parts of them go different ways."""
        groups, size = self.pick([2, 3]), self.pick([2, 3])
        x = L.Concatenate()([self.conv_bn(x, size) for _ in range(groups)])
        height, width = x.shape[1:3]
        if self.flag():
            x = ops.reshape(x, (-1, height, width, groups, size))
            x = ops.reshape(ops.swapaxes(x, 3, 4), (-1, height, width, groups * size))
        else:
            x = L.Reshape((height, width, groups, size))(x)
            x = L.Reshape((height, width, groups * size))(L.Permute((1, 2, 4, 3))(x))
        left, right = ops.split(x, [size], axis=-1)
        left = L.Add()([left, self.conv_bn(right, size)]) if self.flag() else left
        return L.Concatenate()([left, right])

    def split(self, x):
        """Parts of the channels go different ways and meet again."""
        x = self.conv_bn(x, 6)
        first, second = ops.split(x, self.pick([2, [2]]), axis=-1)
        second = self.conv_bn(second) if self.flag() else second
        return L.Concatenate()([first, second])

    def shared(self, x):
        """Calls one convolution, and possibly its BatchNorm, at two places."""
        width = x.shape[-1]
        conv = L.Conv2D(width, 3, padding="same", activation=self.pick(ACTIVATIONS))
        norm = L.BatchNormalization() if self.flag() else L.Identity()
        y = norm(conv(x))
        y = norm(conv(y))
        return L.Add()([x, y]) if self.flag() else y

    def siamese(self, x):
        """Calls one convolution on tensors of two layers, and compares the results."""
        width = self.width()
        conv = L.Conv2D(self.width(), 3, padding="same", activation="relu")
        left, right = (conv(self.conv_bn(x, width)) for _ in range(2))
        return self.pick([L.Subtract(), L.Multiply(), L.Concatenate()])([left, right])

    def skip(self, x):
        """Goes down and up again, beside a skip connection, as in a U-Net."""
        height, width = x.shape[1:3]
        y = self.conv_bn(L.MaxPooling2D(2, padding="same")(x))
        if self.flag():
            y = L.UpSampling2D(2)(y)
        else:
            y = L.Conv2DTranspose(self.width(), self.pick([2, 3]), 2, "same")(y)
        return L.Concatenate()([x, y[:, :height, :width]])

    def pyramid(self, x):
        """Makes two levels of features in one stream, with the same head as outputs."""
        height, width = x.shape[1:3]
        channels, head = self.width(), L.Conv2D(2, 3, padding="same")
        coarse = self.conv_bn(L.MaxPooling2D(2, padding="same")(x))
        coarse = L.Conv2D(channels, 1)(coarse)
        fine = L.UpSampling2D(2)(coarse)[:, :height, :width]
        fine = L.Add()([L.Conv2D(channels, 1)(x), fine])
        self.heads += [head(coarse), head(fine)]
        return fine

    def nested_model(self, x):
        """Calls a nested Functional or Sequential model, sometimes twice."""
        width = x.shape[-1]
        shape = x.shape[1:]
        if self.flag():
            inner_input = keras.Input(shape)
            y = self.conv_bn(inner_input, width)
            y = L.Add()([inner_input, y]) if self.flag() else y
            inner = keras.Model(inner_input, y)
        else:
            inner = keras.Sequential(
                [
                    keras.Input(shape),
                    L.Conv2D(self.width(), 3, padding="same", activation="relu"),
                    L.BatchNormalization(),
                    L.Conv2D(width, 1),
                ]
            )
        y = inner(x)
        return inner(y) if self.flag(0.4) else y

    def subclassed(self, x):
        """Calls a custom layer or a subclassed model, sometimes an opaque one."""
        width = self.pick([self.width(), x.shape[-1]])
        if x.sparse:  # To Keras, that is what a tensor times an array makes.
            x = self.conv(x)
        return blocks.grow(x, width, self.pick, self.pick(ACTIVATIONS))

    # === Closing ===

    def close(self, x):
        x = self.pick(
            [
                lambda: L.GlobalAveragePooling2D()(x),
                lambda: L.GlobalMaxPooling2D()(x),
                lambda: L.Flatten()(x),
                lambda: L.Flatten()(L.Conv2D(self.width(), 1)(x)),
                lambda: L.Reshape((-1,))(x),
                lambda: ops.mean(x, axis=[1, 2]),
            ]
        )()
        if self.flag():
            x = L.Dense(self.width(), activation=self.pick(ACTIVATIONS))(x)
            x = L.BatchNormalization()(x) if self.flag(0.3) else x
        return L.Dense(3)(x)


def random_model(seed: int) -> keras.Model:
    return RandomModel(seed).build()


# === Many of them ===

BATCH = 20


def check_batch(check, first):
    """Runs `check` on a batch of seeds; it returns false if there was nothing to do."""
    done = 0
    for seed in range(first, first + BATCH):
        try:
            done += check(seed)
        except Exception as error:
            error.add_note(f"Reproduce with `check({seed})`.")
            raise
    assert done > 0.7 * BATCH
