"""Dense networks around attention: what is wide in them can be pruned."""

import keras
import pytest
from keras import layers as L
from keras import ops

import resrep_tf
from support.checks import assert_prunes_exactly, every_second


def functional():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(12, 4, strides=4, name="patches")(inputs)
    x = L.Reshape((4, 12))(x)
    for number in range(2):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(2, 6)(y, y)])
        y = L.Dense(24, activation="gelu", name=f"wide{number}")(
            L.LayerNormalization()(x)
        )
        x = L.Add()([x, L.Dense(12)(L.Dropout(0.1)(y))])
    x = L.GlobalAveragePooling1D()(L.LayerNormalization()(x))
    return keras.Model(inputs, L.Dense(3)(x))


class Attention(L.Layer):
    """Attention as people write it: one layer for queries, keys and values."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.qkv = L.Dense(3 * width)
        self.proj = L.Dense(width)

    def call(self, x):
        _, length, width = x.shape
        size = width // self.heads
        x = ops.reshape(self.qkv(x), (-1, length, 3, self.heads, size))
        q, k, v = (ops.transpose(x[:, :, i], (0, 2, 1, 3)) for i in range(3))
        weights = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * size**-0.5
        x = ops.matmul(ops.softmax(weights), v)
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, length, width))
        return self.proj(x)


class Block(L.Layer):
    def __init__(self, width, heads, own, **kwargs):
        super().__init__(**kwargs)
        self.own = own
        self.norm1 = L.LayerNormalization(epsilon=1e-6)
        self.attn = Attention(width, heads) if own else L.MultiHeadAttention(heads, 6)
        self.norm2 = L.LayerNormalization(epsilon=1e-6)
        self.fc1 = L.Dense(4 * width)
        self.fc2 = L.Dense(width)
        self.drop = L.Dropout(0.1)

    def call(self, x, training=None):
        y = self.norm1(x)
        x = x + (self.attn(y) if self.own else self.attn(y, y, training=training))
        y = self.drop(ops.gelu(self.fc1(self.norm2(x))), training=training)
        return x + self.fc2(y)


class ClassToken(L.Layer):
    """Puts a trained position before the others; `tile` cannot be traced."""

    def build(self, input_shape):
        self.token = self.add_weight(shape=(1, 1, input_shape[-1]))

    def call(self, x):
        return ops.concatenate([ops.tile(self.token, (ops.shape(x)[0], 1, 1)), x], 1)

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[1] + 1, input_shape[2]


class ViT(keras.Model):
    def __init__(self, width=12, depth=2, own=False, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.cls_token = ClassToken()
        self.patch_embed = L.Conv2D(width, 4, strides=4)
        self.blocks = [Block(width, 2, own) for _ in range(depth)]
        self.norm = L.LayerNormalization()
        self.head = L.Dense(3)

    def build(self, input_shape):
        length = (input_shape[1] // 4) * (input_shape[2] // 4)
        self.pos_embed = self.add_weight(shape=(1, length + 1, self.width))

    def call(self, x, training=None):
        x = self.patch_embed(x)
        x = ops.reshape(x, (-1, x.shape[1] * x.shape[2], self.width))
        x = self.cls_token(x) + self.pos_embed
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(self.norm(x)[:, 0])


def explained(model):
    return {layer.name: layer for layer in resrep_tf.explain(model).layers}


def assert_loses_half_of_what_is_wide(model, names):
    assert {explained(model)[name].status for name in names} == {"internal"}
    pruner, slim, report = assert_prunes_exactly(model, choose=every_second)
    assert {c.targets[0] for c in pruner.compactors} == set(names)
    for name in names:
        assert slim.get_layer(name).units == model.get_layer(name).units // 2
    assert not report.kept


def test_a_functional_one():
    model = functional()
    assert_loses_half_of_what_is_wide(model, ["wide0", "wide1"])
    why = explained(model)["patches"].reason
    assert "(LayerNormalization) computes each channel from others too" in why
    assert "(MultiHeadAttention)" in str(resrep_tf.explain(model))


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_subclassed_one(own):
    model = resrep_tf.trace(ViT(own=own), (8, 8, 3))
    assert_loses_half_of_what_is_wide(model, ["blocks_0_fc1", "blocks_1_fc1"])


def test_attention_holds_its_channels_with_a_reason():
    inputs = keras.Input((4, 6))
    x = L.Dense(8, name="read")(inputs)
    model = keras.Model(inputs, L.Dense(2)(L.MultiHeadAttention(2, 4)(x, x)))
    assert "compares positions by all of" in explained(model)["read"].reason
