"""What `trace` cannot trace stays as it is, with a reason; the rest is traced."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import resrep_tf
from resrep_tf.graph.tracing import trace
from support.checks import assert_prunes_exactly
from support.traced import (
    assert_same_outputs,
    assert_same_training,
    assert_same_variables,
    assert_traces,
    images,
)


class Tensorflow(layers.Layer):
    def call(self, x):
        return tf.nn.relu(x)


class TensorflowShape(layers.Layer):
    def call(self, x):
        return tf.reshape(x, tf.shape(x))


class ByValue(layers.Layer):
    def call(self, x):
        return ops.cond(ops.mean(x) > 0, lambda: x, lambda: -x)


class ByBool(layers.Layer):
    def call(self, x):
        return x if ops.mean(x) > 0 else -x

    def compute_output_shape(self, shape):
        return shape


class Noise(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return x + keras.random.normal((1, 1, 1, 4), seed=self.seeds)


class DropPath(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x, training=None):
        if not training:
            return x
        mask = keras.random.uniform((ops.shape(x)[0], 1, 1, 1), seed=self.seeds)
        return x * ops.floor(mask + 0.5) / 0.5


class Differs(layers.Layer):
    def call(self, x, training=None):
        return ops.relu(x) if training else ops.tanh(x)


class DiffersInNumbers(layers.Layer):
    def call(self, x, training=None):
        return x * (2.0 if training else 1.0)


class AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(1e-3 * ops.sum(x**2))
        return x


class MakesLayers(layers.Layer):
    def call(self, x):
        return layers.Dense(4, kernel_initializer="ones")(x)

    def compute_output_shape(self, shape):
        return shape


class OwnCall(layers.Layer):
    def __call__(self, x):
        return super().__call__(2.0 * x)

    def call(self, x):
        return ops.relu(x)


class Counts(layers.Layer):
    """Keeps statistics of its own."""

    def build(self, input_shape):
        self.mean = self.add_weight(
            shape=(input_shape[-1],), trainable=False, initializer="zeros"
        )

    def call(self, x, training=None):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=(0, 1, 2)))
        return x - self.mean


def net(layer, **kwargs):
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, name="first")(inputs)
    x = layer(x, **kwargs)
    x = layers.Conv2D(6, 1, name="second")(x)
    x = layers.Conv2D(6, 1, name="third")(ops.relu(x))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(2, name="last")(x))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Tensorflow, "functions of TensorFlow"),
        (TensorflowShape, "functions of TensorFlow"),
        (Noise, "random numbers"),
        (DropPath, "something else in training|a size that is open"),
        (Differs, "something else in training"),
        (DiffersInNumbers, "something else in training"),
        (AddsLoss, "adds a loss"),
        (Counts, "fails on symbolic|statistics"),
    ],
)
def test_stays_opaque_with_a_reason(kind, reason):
    model = net(Outer(kind(name="inner")))
    if kind is Noise:  # Never returns the same again.
        traced, report = trace(model, return_report=True)
    else:
        traced, report = assert_traces(model, images(), opaque=1)
    (opaque,) = report.opaque
    assert (opaque.path, opaque.kind) == ("outer.inner", kind.__name__)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(opaque.reason)
    assert opaque.name == "outer_inner"
    assert str(opaque) in str(report)
    assert type(traced.get_layer("outer_inner")) is kind
    assert "outer_conv" in [layer.name for layer in traced.layers]
    assert trace(traced) is traced


class Outer(layers.Layer):
    """A block that is traced around a layer that is not."""

    def __init__(self, inner, **kwargs):
        super().__init__(name="outer", **kwargs)
        self.conv = layers.Conv2D(4, 1)
        self.inner = inner

    def call(self, x):
        return self.inner(ops.relu(self.conv(x)))


class ByBoolNet(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3)
        self.inner = ByBool()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(ops.mean(self.inner(self.conv(x)), axis=(1, 2)))


def test_data_dependent_python_stays_opaque():
    model = ByBoolNet()
    model(images())
    # Keras could not find out any shapes either.
    traced, report = trace(model, input_shape=(8, 8, 3), return_report=True)
    assert_same_outputs(model, traced, images())
    assert "depends on the values of its data" in report.opaque[0].reason


def test_a_layer_with_a_call_operator_of_its_own():
    model = net(Outer(OwnCall(name="inner")))
    _, report = assert_traces(model, images(), opaque=1)
    assert "`OwnCall` inside has a `__call__` of its own" in report.opaque[0].reason
    assert report.opaque[0].path == "outer"


def test_a_condition_of_keras_is_traced_or_stays():
    traced, report = trace(net(ByValue(name="inner")), return_report=True)
    assert len(report.opaque) <= 1
    assert "second" in [layer.name for layer in traced.layers]


def test_layers_with_weights_made_in_call():
    _, report = trace(net(MakesLayers(name="inner")), return_report=True)
    assert "makes a new layer with weights" in report.opaque[0].reason


def test_what_is_around_an_opaque_layer_prunes():
    traced = trace(net(Outer(Tensorflow(name="inner"))))
    _, _, report = assert_prunes_exactly(traced)
    assert report.new_flops < report.flops
    statuses = {la.name: la.status for la in resrep_tf.explain(traced).layers}
    assert statuses["second"] == statuses["first"] == "internal"
    assert statuses["outer_conv"] == "pinned"


class Root(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3)

    def call(self, x):
        return tf.nn.relu(self.conv(x))


def test_a_model_that_cannot_be_traced():
    model = Root()
    model(images())
    with pytest.raises(ValueError, match=r"Root.call.*TensorFlow.*layer of its own"):
        trace(model)


# === Fixed modes ===


class FixedInside(keras.Model):
    """Runs parts of it always as in inference, or as in training."""

    def __init__(self, training, *inner):
        super().__init__()
        self.fixed = training
        self.conv = layers.Conv2D(4, 3)
        self.bn = layers.BatchNormalization()
        self.relu = layers.ReLU()
        self.base = keras.Sequential(
            [layers.Conv2D(4, 3), layers.BatchNormalization(), *inner]
        )
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        x = self.relu(self.conv(x, training=self.fixed), training=False)
        x = self.base(self.bn(x, training=self.fixed), training=self.fixed)
        return self.dense(ops.max(x, axis=(1, 2)))


@pytest.mark.parametrize("training", [True, False])
def test_layers_that_are_always_told_the_same(training, tmp_path):
    x = images()
    model = FixedInside(training, layers.Dropout(0.5))
    model(x)
    traced, report = trace(model, return_report=True)
    assert [opaque.path for opaque in report.opaque] == ["bn", "base"]
    assert f"always called with `training={training}`" in report.opaque[0].reason
    assert_same_variables(model, traced)
    assert_same_training(model, traced, x)
    traced.save(tmp_path / "traced.keras")
    loaded = keras.models.load_model(tmp_path / "traced.keras")
    assert loaded.get_layer("base").fixed_training is training
    if not training:
        assert_same_outputs(model, traced, x)
        np.testing.assert_array_equal(loaded(x, training=True), traced(x))
    reasons = {la.name: la.reason for la in resrep_tf.explain(traced).layers}
    assert "always runs as in" in reasons["conv"]


def test_a_frozen_base_that_is_never_told_is_traced():
    model = FixedInside(False)
    model.bn.trainable = model.base.trainable = False
    traced, _ = assert_traces(model, images())
    assert "base_0" in [layer.name for layer in traced.layers]


class SometimesFixed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = SometimesFixedBlock()
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        return self.dense(ops.max(self.inner(x), axis=(1, 2)))


class SometimesFixedBlock(layers.Layer):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3, padding="same")
        self.bn = layers.BatchNormalization()

    def call(self, x):
        x = self.bn(self.conv(x))
        return self.bn(x, training=False)


def test_a_layer_that_is_told_and_not_told_stays_inside():
    """Drawn, its weights would be in two layers, and apart once they are saved."""
    traced, report = assert_traces(SometimesFixed(), images(), opaque=1)
    assert "with `training=" in report.opaque[0].reason
    assert [layer.name for layer in traced.layers] == ["x", "inner", "dense"]


class OnceUndrawable(layers.Layer):
    """Can be traced at one of its calls only."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)

    def call(self, x, native=False):
        x = self.dense(x)
        return tf.nn.relu(x) if native else ops.relu(x)


def test_a_layer_that_can_be_traced_at_one_call_only_stays_one_layer():
    inputs = keras.Input((8, 8, 3))
    layer = OnceUndrawable(name="once")
    x = layer(layer(inputs), native=True)
    model = keras.Model(inputs, layers.Flatten(name="flat")(x))
    traced, report = assert_traces(model, images(), opaque=1)
    assert [layer.name for layer in traced.layers][1:] == ["once", "flat"]
    assert "TensorFlow" in report.opaque[0].reason


# === What a graph does not show ===


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(4, 3)

    def call(self, x, training=None):
        return self.conv(x)

    def train_step(self, data):
        return {}


def test_the_report_names_what_the_class_does():
    _, report = trace(OwnStep(), input_shape=(8, 8, 3), return_report=True)
    assert report.overridden == ("train_step",)
    assert "`train_step` is not part of the traced model" in str(report)


def test_the_report_says_when_fit_does_not_tell_the_mode():
    class Silent(keras.Model):
        def __init__(self):
            super().__init__()
            self.bn = layers.BatchNormalization()

        def call(self, x):
            return self.bn(x)

    _, report = trace(Silent(), input_shape=(8, 8, 3), return_report=True)
    assert not report.told and "no argument `training`" in str(report)
