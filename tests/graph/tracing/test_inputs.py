"""What `trace` needs to know of a model's input, and which models it returns."""

import keras
import pytest
from keras import layers, ops

import resrep_tf
from resrep_tf.graph.tracing import trace
from support.traced import assert_same_outputs, images


class Block(layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(filters, 3, padding="same")

    def call(self, x):
        return ops.relu(self.conv(x))


class Lists(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(4), Block(6)]
        self.dense = layers.Dense(3)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.dense(ops.mean(x, axis=(1, 2)))


def test_input_shape_is_asked_for():
    with pytest.raises(ValueError, match=r"is not known.*input_shape=None"):
        trace(Lists())
    traced = trace(Lists(), input_shape=(8, 8, 3))
    assert traced.input_shape == (None, 8, 8, 3)


def test_open_extents():
    model = Lists()
    model(images())
    traced = trace(model, input_shape=(None, None, 3))
    assert traced.input_shape == (None, None, None, 3)
    assert_same_outputs(model, traced, images(12, 10, 3))


@pytest.mark.parametrize("wrong", ["image", 32, [(8, 8, 3), "image"]])
def test_an_odd_input_shape(wrong):
    with pytest.raises(ValueError, match=r"`input_shape` must be.*Received"):
        trace(Lists(), input_shape=wrong)


def test_a_model_that_does_not_run_on_the_shape():
    with pytest.raises(ValueError, match="cannot be called on inputs of this shape"):
        trace(Lists(), input_shape=(3,))


def test_something_else_than_a_model():
    with pytest.raises(TypeError, match=r"`model` must be a `keras.Model`"):
        trace(layers.Dense(3))


def test_a_sequential_model_without_an_input():
    model = keras.Sequential([Block(4), layers.Flatten()])
    traced = trace(model, input_shape=(8, 8, 3))
    assert_same_outputs(model, traced, images())


@pytest.mark.parametrize("name", ["ResNet50", "ConvNeXtTiny", "EfficientNetB0"])
def test_stock_models_are_returned_as_they_are(name):
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3))
    assert trace(model) is model


def test_weights_that_are_loaded_later(tmp_path):
    model = Lists()
    model(images())
    model.save_weights(tmp_path / "lists.weights.h5")
    fresh = Lists()
    traced = trace(fresh, input_shape=(8, 8, 3))
    fresh.load_weights(tmp_path / "lists.weights.h5")
    assert_same_outputs(model, traced, images())


def test_a_traced_model_prunes():
    model = Lists()
    model(images())
    explanation = resrep_tf.explain(trace(model))
    assert [layer.name for layer in explanation.layers][:2] == [
        "blocks_0_conv",
        "blocks_1_conv",
    ]
