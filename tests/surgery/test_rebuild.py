"""Copies of models: the same outputs and names, and nothing shared."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.tracing import trace
from resrep_tf.surgery.rebuild import Rebuilder
from support.checks import leaves, outputs, randomise
from support.models.random_models import random_model
from support.models.small import small_model


def copied(model):
    return Rebuilder(ChannelGraph(model)).build()


def assert_copies(model):
    copy = copied(model)
    for old, new in zip(model.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    left, right = outputs(model), outputs(copy)
    keras.tree.assert_same_structure(left, right)
    pairs = zip(keras.tree.flatten(left), keras.tree.flatten(right), strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a, b)
    assert [t.name for t in copy.inputs] == [t.name for t in model.inputs]
    mine = {id(variable) for variable in model.variables}
    assert not any(id(variable) in mine for variable in copy.variables)
    return copy


def nested_model():
    image = keras.Input((4, 4, 3))
    x = L.Conv2D(5, 3, padding="same", name="shared")(image)
    inner = keras.Model(image, L.BatchNormalization(name="norm")(x), name="inner")
    a, b = keras.Input((4, 4, 3), name="a"), keras.Input((4, 4, 3), name="b")
    x = L.Concatenate()([inner(a), inner(b)])
    return randomise(keras.Model([a, b], L.GlobalMaxPooling2D()(x), name="outer"))


def test_a_plain_model():
    model = small_model()
    copy = assert_copies(model)
    assert [layer.name for layer in copy.layers] == [x.name for x in model.layers]
    assert copy.name == model.name


@pytest.mark.parametrize("seed", (3, 4, 5))
def test_random_models(seed):
    keras.utils.set_random_seed(seed)
    # Tracing puts the weights of blocks into another order.
    assert_copies(randomise(trace(random_model(seed)), seed))


def test_a_nested_model_stays_one_model_with_two_calls():
    copy = assert_copies(nested_model())
    inner = copy.get_layer("inner")
    assert [layer.name for layer in leaves(inner)][-2:] == ["shared", "norm"]
    assert len([layer for layer in copy.layers if layer is inner]) == 1


def test_structures_of_inputs_and_outputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    x = L.Dense(2)(L.Add()([a, b]))
    model = keras.Model({"a": a, "b": b}, {"sum": x, "more": [a]})
    copy = assert_copies(model)
    assert set(outputs(copy)) == {"sum", "more"}


def test_what_is_frozen_stays_frozen():
    model = nested_model()
    model.get_layer("inner").get_layer("shared").trainable = False
    copy = copied(model)
    inner = copy.get_layer("inner")
    assert not inner.get_layer("shared").trainable
    assert inner.get_layer("norm").trainable
    model.get_layer("inner").trainable = False
    assert not copied(model).trainable_variables


def test_the_copy_of_an_operation():
    model = small_model()
    rebuilder = Rebuilder(ChannelGraph(model))
    copy = rebuilder.build()
    for name in ("conv1", "bn1"):
        assert rebuilder.made(model.get_layer(name)) is copy.get_layer(name)


def test_a_layer_without_a_config_is_named():
    class Odd(L.Layer):
        def __init__(self, factor):
            super().__init__(name="odd")
            self.factor = factor

        def call(self, inputs):
            return tf.math.scalar_mul(self.factor, inputs)

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Odd(2.0)(inputs))
    with pytest.raises(ValueError, match=r"`odd` \(Odd\) cannot be copied.*Received: "):
        copied(model)
