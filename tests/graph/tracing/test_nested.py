"""`trace` of models inside of models, functional and subclassed."""

import keras
import tensorflow as tf
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


def test_a_functional_model_with_a_call_of_its_own_is_traced(tmp_path):
    traced, _ = assert_traces(Changed(), images(), tmp_path)
    assert traced.operations[1].name == "multiply"


def test_frozen_parts_stay_frozen():
    model = AroundModels()
    model.backbone.trainable = False
    traced, _ = assert_traces(model, images())
    assert not traced.get_layer("backbone_conv").trainable


class AroundTwoInputs(keras.Model):
    """Calls a Functional model on a list; Keras adds a list of masks, all None."""

    def __init__(self):
        super().__init__()
        left, right = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
        x = layers.Add()([Block(4)(left), layers.Conv2D(4, 3, padding="same")(right)])
        self.both = keras.Model([left, right], layers.Conv2D(2, 1)(x))

    def call(self, inputs, training=None):
        return self.both(inputs, training=training)


def test_a_functional_model_of_several_inputs_inside_a_subclassed_one():
    traced, report = trace(
        AroundTwoInputs(), [(8, 8, 3), (8, 8, 3)], return_report=True
    )
    assert str(report) == "Everything was traced."
    assert "both_block_conv" in names(traced)


def test_a_traced_model_keeps_its_report():
    class Closed(layers.Layer):
        def call(self, x):
            return tf.nn.relu(x)

    inputs = keras.Input((8, 8, 3))
    first, report = trace(keras.Model(inputs, Closed()(inputs)), return_report=True)
    again, same = trace(first, return_report=True)
    assert again is first and same is report and len(report.opaque) == 1
