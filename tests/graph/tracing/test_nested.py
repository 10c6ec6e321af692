"""`trace` of models inside of models, functional and subclassed."""

import keras
from keras import layers

from resrep_tf.graph.tracing import trace
from support.traced import Block, assert_traces, images, names


def functional(width=4):
    x = inputs = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(width, 3, name="conv")(x)
    x = layers.BatchNormalization(name="bn")(x)
    x = x * 0.5 + 1.0
    return keras.Model(inputs, x, name="backbone")


class AroundModels(keras.Model):
    def __init__(self):
        super().__init__()
        self.backbone = functional()
        self.neck = keras.Sequential([layers.ReLU(), Block(4), layers.Dropout(0.5)])
        self.head = keras.Sequential([layers.Flatten(), layers.Dense(2)])

    def call(self, x, training=None):
        x = self.backbone(x, training=training)
        return self.head(self.neck(x, training=training))


def test_functional_and_sequential_models_inside_a_subclassed_one(tmp_path):
    traced, _ = assert_traces(AroundModels(), images(), tmp_path)
    assert names(traced) == [
        *("x", "backbone_conv", "backbone_bn", "neck_0", "neck_1_conv", "neck_1_bn"),
        *("neck_2", "head_0", "head_1"),
    ]


def test_subclassed_models_inside_a_functional_one(tmp_path):
    inputs = keras.Input((8, 8, 3), name="picture")
    x = layers.Conv2D(3, 3, padding="same", name="first")(inputs)
    x = AroundModels()(x) + 1.0
    model = keras.Model(inputs, layers.Dense(3, name="last")(x), name="outer")
    traced, _ = assert_traces(model, images(), tmp_path)
    assert names(traced)[:2] == ["picture", "first"] and names(traced)[-1] == "last"
    assert "around_models_backbone_conv" in "".join(names(traced))


class Backbone(keras.Model):
    """A Functional model in a class of its own, as in keras-hub."""

    def __init__(self, width=4, **kwargs):
        inner = functional(width)
        super().__init__(inner.inputs, inner.outputs, **kwargs)
        self.width = width


def test_a_functional_model_in_a_class_of_its_own_is_returned_as_it_is():
    model = Backbone()
    assert trace(model) is model


class Changed(Backbone):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs * 2.0, training=training, mask=mask)


def test_a_functional_model_with_a_call_of_its_own_is_drawn(tmp_path):
    traced, _ = assert_traces(Changed(), images(), tmp_path)
    assert traced.operations[1].name == "multiply"


def test_frozen_parts_stay_frozen():
    model = AroundModels()
    model.backbone.trainable = False
    traced, _ = assert_traces(model, images())
    assert not traced.get_layer("backbone_conv").trainable
