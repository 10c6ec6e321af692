"""Subclassed blocks for random graphs, which have to be traced first."""

import keras
import tensorflow as tf
from keras import layers as L
from keras import ops

from resrep_tf.graph.tracing import trace
from support.models.published_light import GhostModule, RepVGGBlock, channel_shuffle
from support.models.published_residual import ConvNorm, SqueezeExcite


class Residual(L.Layer):
    """Convolutions in a list, a shortcut made in `build`, and a scale of its own."""

    def __init__(self, filters, inner, groups, activation, scaled, **kwargs):
        super().__init__(**kwargs)
        self.filters, self.scaled = filters, scaled
        self.convs = [
            ConvNorm(inner, activation=activation),
            ConvNorm(inner, 3, groups=groups, activation=activation),
            ConvNorm(filters, activation=None),
        ]
        self.drop = L.Dropout(0.1)

    def build(self, input_shape):
        self.shortcut = None
        if input_shape[-1] != self.filters:
            self.shortcut = L.Conv2D(self.filters, 1)
        if self.scaled:
            self.gamma = self.add_weight(shape=(self.filters,), initializer="ones")
            self.shift = self.add_weight(shape=(), initializer="zeros")

    def call(self, x, training=None):
        y = x
        for conv in self.convs:
            y = conv(y, training=training)
        y = self.drop(y, training=training)
        if self.scaled:
            y = y * self.gamma + self.shift
        if self.shortcut is not None:
            x = self.shortcut(x)
        return ops.relu(x + y)


class Shuffled(L.Layer):
    """One half of the channels goes through a branch; then all are shuffled."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.enter = ConvNorm(2 * filters)
        self.branch = keras.Sequential(
            [
                L.Conv2D(filters, 1, use_bias=False),
                L.BatchNormalization(),
                L.DepthwiseConv2D(3, padding="same"),
                L.ReLU(),
            ]
        )

    def call(self, x):
        left, right = ops.split(self.enter(x), 2, axis=-1)
        return channel_shuffle(ops.concatenate([left, self.branch(right)], axis=-1))


class Ghosts(L.Layer):
    """Cheap copies of channels, a gate, and a shortcut that ties them."""

    def __init__(self, filters, gate, **kwargs):
        super().__init__(**kwargs)
        self.first = GhostModule(2 * filters)
        self.gate = SqueezeExcite(2 * filters, 2) if gate else None
        self.second = GhostModule(2 * filters, relu=False)

    def call(self, x, training=None):
        x = y = self.first(x, training=training)
        if self.gate is not None:
            y = self.gate(y)
        return x + self.second(y, training=training)


class Branches(L.Layer):
    """Blocks in a dict; returns a dict, of tensors of different layers."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.heads = {"fine": ConvNorm(filters, 3), "coarse": ConvNorm(filters)}

    def call(self, x, training=None):
        return {name: block(x, training=training) for name, block in self.heads.items()}


class Again(L.Layer):
    """A block that is called on its own output."""

    def __init__(self, block, times, **kwargs):
        super().__init__(**kwargs)
        self.block, self.times = block, times

    def call(self, x, training=None):
        for _ in range(self.times):
            x = self.block(x, training=training)
        return x


class Stage(keras.Model):
    """A model of blocks, one of which it may leave out."""

    def __init__(self, filters, depth, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [RepVGGBlock(filters) for _ in range(depth)]
        self.pool = L.AveragePooling2D(2, 1, padding="same")

    def call(self, inputs, training=None):
        x, *more = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        for block in self.blocks:
            x = block(x, training=training)
        for other in more:
            x = ops.concatenate([x, self.pool(other)], axis=-1)
        return x


class Undrawable(L.Layer):
    """Calls TensorFlow itself, which cannot be traced."""

    def call(self, x):
        return tf.nn.relu(x)


class Around(keras.Model):
    """A subclassed model around a Functional one."""

    def __init__(self, net, **kwargs):
        super().__init__(**kwargs)
        self.net = net

    def call(self, inputs, training=None):
        outputs = self.net(inputs, training=training)
        return {"first": outputs[0], "rest": outputs[1:]}


def traced(model):
    """Traces a subclassed model around a Functional one."""
    shapes = [tensor.shape[1:] for tensor in model.net.inputs]
    return trace(model, shapes if len(shapes) > 1 else shapes[0])


# === Growing ===


def grow(x, width, pick, activation):
    """Calls a random block on an image tensor."""
    groups, channels = pick([1, 1, 2]), x.shape[-1]
    block = pick(
        [
            lambda: Residual(
                width, groups * pick([2, 3]), groups, activation, pick([True, False])
            )(x),
            lambda: Shuffled(width)(x),
            lambda: Ghosts(width, gate=pick([True, False]))(x),
            lambda: RepVGGBlock(width)(x),
            lambda: _join(Branches(width)(x), pick),
            lambda: Again(RepVGGBlock(channels), pick([1, 2]))(x),
            lambda: Stage(width, pick([1, 2]))(
                pick([x, [x, L.Conv2D(width, 3, padding="same")(x)]])
            ),
            lambda: Undrawable()(x) if pick([True, False]) else x,
        ]
    )
    return block()


def _join(parts, pick):
    fine, coarse = parts["fine"], parts["coarse"]
    return pick([L.Add(), L.Multiply(), L.Concatenate()])([fine, coarse])
