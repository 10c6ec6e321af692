"""`trace` records what people write: one test for each way of writing it."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from resrep_tf.graph.tracing import trace
from support.traced import Block, assert_traces, images, names


class Told(Block):
    """The same, with `training` handed on."""

    def call(self, x, training=None):
        return ops.relu(self.bn(self.conv(x), training=training))


class Lists(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(4), Block(6)]
        self.heads = {"a": layers.Dense(2), "b": [layers.Dense(3)]}
        self.pool = layers.GlobalAveragePooling2D()

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.pool(x)
        return ops.concatenate([self.heads["a"](x), self.heads["b"][0](x)], axis=-1)


def test_blocks_in_lists_loops_and_dicts(tmp_path):
    traced, _ = assert_traces(Lists(), images(), tmp_path)
    assert names(traced) == [
        *("x", "blocks_0_conv", "blocks_0_bn", "blocks_1_conv", "blocks_1_bn"),
        *("pool", "heads_a", "heads_b_0"),
    ]
    assert all(type(layer).__module__.startswith("keras") for layer in traced.layers)


class MadeInBuild(keras.Model):
    def build(self, input_shape):
        self.conv = layers.Conv2D(2 * input_shape[-1], 3)
        self.conv.build(input_shape)
        self.dense = layers.Dense(2)
        self.dense.build((None, 2 * input_shape[-1]))

    def call(self, inputs):
        return self.dense(ops.mean(self.conv(inputs), axis=(1, 2)))


def test_layers_made_in_build(tmp_path):
    traced, _ = assert_traces(MadeInBuild(), images(), tmp_path)
    assert names(traced) == ["inputs", "conv", "dense"]


class WithTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = Told(4)
        self.second = Block(4)  # Finds out by itself.
        self.dropout = layers.Dropout(0.5)
        self.dense = layers.Dense(2)

    def call(self, x, training=False):
        x = self.first(x, training=training)
        x = self.second(x)
        x = self.dropout(x, training=training)
        return self.dense(ops.max(x, axis=[1, 2]))


def test_training_is_handed_on(tmp_path):
    traced, _ = assert_traces(WithTraining(), images(), tmp_path)
    for op in traced.operations:
        for node in op._inbound_nodes:
            assert not node.arguments.kwargs.get("training")
    bn = traced.get_layer("first_bn")
    before = np.array(bn.moving_mean)
    traced(images(), training=True)
    assert (np.array(bn.moving_mean) != before).any()


class Untold(keras.Model):
    """Tells neither its block nor the dropout."""

    def __init__(self):
        super().__init__()
        self.block = Told(4)
        self.dropout = layers.Dropout(0.5)
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        return self.dense(self.dropout(ops.max(self.block(x), axis=[1, 2])))


def test_training_is_not_handed_on(tmp_path):
    traced, _ = assert_traces(Untold(), images(), tmp_path)
    assert type(traced.get_layer("dropout")) is layers.Dropout


class OldIdiom(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = Told(4)
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        if training is None:
            training = False
        return self.dense(ops.max(self.block(x, training=training), axis=[1, 2]))


def test_a_default_for_training(tmp_path):
    assert_traces(OldIdiom(), images(), tmp_path)


class DropsInTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3)
        self.dropout = layers.Dropout(0.5)
        self.noise = layers.GaussianNoise(0.1)
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        x = self.conv(x)
        if training:
            x = self.dropout(self.noise(x), training=True)
        return self.dense(ops.max(x, axis=[1, 2]))


def test_layers_that_only_train_may_be_called_in_training_only(tmp_path):
    traced, _ = assert_traces(DropsInTraining(), images(), tmp_path)
    assert "dropout" in names(traced) and "noise" in names(traced)


class Arguments(keras.Model):
    def __init__(self):
        super().__init__()
        self.scaled = ScaledBlock(4)
        self.dense = layers.Dense(2)

    def call(self, x, features=False, factor=2.0):
        x = self.scaled(x, x, factor=factor, activation="relu")
        pooled = ops.mean(x, axis=(1, 2))
        return x if features else self.dense(pooled)


class ScaledBlock(Block):
    def call(self, x, other, factor=1.0, activation=None):
        x = self.conv(x * factor) + self.conv(other)
        return getattr(ops, activation)(x) if activation else x


def test_extra_arguments(tmp_path):
    traced, _ = assert_traces(Arguments(), images(), tmp_path)
    assert traced.output_shape == (None, 2)


class Several(keras.Model):
    """Takes a dict and returns a dict."""

    def __init__(self):
        super().__init__()
        self.left = Block(4)
        self.right = Told(4)
        self.dense = layers.Dense(2)

    def call(self, inputs, training=None):
        x = self.left(inputs["image"])
        y = self.right(inputs["depth"], training=training)
        both = ops.mean(x + y, axis=(1, 2))
        return {"classes": self.dense(both), "features": both}


def test_dicts_of_inputs_and_outputs(tmp_path):
    x = {"image": images(), "depth": images(8, 8, 1)}
    traced, _ = assert_traces(Several(), x, tmp_path)
    assert names(traced)[:2] == ["image", "depth"]
    assert set(traced.output) == {"classes", "features"}


class Pair(keras.Model):
    """Takes a list and returns a tuple."""

    def __init__(self):
        super().__init__()
        self.block = Block(4)  # Shared.
        self.dense = layers.Dense(2)

    def call(self, inputs):
        left, right = inputs
        left, right = self.block(left), self.block(right)
        return self.dense(ops.mean(left, axis=(1, 2))), left * right


def test_lists_of_inputs_and_a_shared_block(tmp_path):
    x = [images(), images(seed=1)]
    traced, _ = assert_traces(Pair(), x, tmp_path)
    assert names(traced).count("block_conv") == 1


def test_a_shared_batchnorm_is_updated_in_the_order_of_the_calls():
    model = Pair()
    x = [images(), images(seed=1) + 1]
    model(x)
    traced = trace(model)
    bn = model.block.bn
    means = []
    for each in (model, traced):
        bn.moving_mean.assign(np.zeros(4))
        each(x, training=True)
        means.append(np.array(bn.moving_mean))
    np.testing.assert_array_equal(*means)


class Recursive(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = Block(3)
        self.act = layers.ReLU()
        self.dense = layers.Dense(2)

    def call(self, x):
        for _ in range(3):
            x = self.act(self.block(x))
        return self.dense(ops.max(x, axis=[1, 2]))


def test_a_layer_called_again_on_its_own_output(tmp_path):
    traced, _ = assert_traces(Recursive(), images(), tmp_path)
    assert len(traced.get_layer("block_conv")._inbound_nodes) == 3


class TwoArguments(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = Block(4)
        self.dense = layers.Dense(2)

    def call(self, image, other):
        return self.dense(ops.mean(self.block(image + other), axis=(1, 2)))


def test_inputs_in_several_arguments():
    model = TwoArguments()
    x, y = images(), images(seed=1)
    expected = model(x, other=y)
    with pytest.raises(ValueError, match="is not known"):
        trace(model)  # Keras records the shape of the first argument only.
    with pytest.raises(ValueError, match="takes 2 arguments"):
        trace(model, input_shape=(8, 8, 3))
    shape = (8, 8, 3)
    for shapes in ([shape, shape], {"image": shape, "other": shape}):
        traced = trace(model, input_shape=shapes)
        np.testing.assert_array_equal(traced([x, y]), expected)


class OwnConv(layers.Conv2D):
    """Makes a convolution in another way, and computes the same."""

    def __init__(self, filters, **kwargs):
        super().__init__(filters, 3, padding="same", **kwargs)


def test_a_class_that_only_makes_a_layer_is_that_layer(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 3)), OwnConv(4), layers.Flatten()])
    traced, _ = assert_traces(model, images(), tmp_path)
    assert type(traced.layers[1]) is layers.Conv2D


class Stateless(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3)
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        x = layers.ReLU()(self.conv(x))
        x = layers.Concatenate()([x, layers.MaxPooling2D(3, 1, "same")(x)])
        return self.dense(layers.Flatten()(layers.add([x, x])))


def test_layers_without_weights_may_be_made_in_call(tmp_path):
    traced, _ = assert_traces(Stateless(), images(), tmp_path)
    assert "re_lu" in names(traced)


class WithPolicies(layers.Layer):
    """Hands its type policy on, as the layers of keras-hub do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(3, 3, padding="same", dtype=self.dtype_policy)
        self.same = layers.Identity(dtype=self.dtype_policy)
        self.add = layers.Add(dtype=self.dtype_policy)

    def call(self, x):
        return self.add([x, self.same(self.conv(x))])


def test_layers_that_cannot_say_how_they_were_made(tmp_path):
    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, layers.Flatten()(WithPolicies(name="block")(inputs)))
    traced, _ = assert_traces(model, images(), tmp_path)
    assert "block_same" in names(traced)


# === Frozen parts ===


def test_a_frozen_block_freezes_what_is_inside():
    model = Lists()
    model(images())
    model.blocks[0].trainable = False
    model.blocks[0].conv.trainable = True  # Counts for nothing inside a frozen block.
    traced = trace(model)
    assert {id(v) for v in traced.trainable_variables} == {
        id(v) for v in model.trainable_variables
    }
