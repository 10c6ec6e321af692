"""`trace` lifts the variables that a `call` uses directly into layers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import resrep_tf
from resrep_tf.graph.tracing import trace
from support.checks import precision
from support.traced import assert_traces, images


class Affine(layers.Layer):
    """Scales and shifts, per channel and as a whole."""

    def build(self, input_shape):
        width = (input_shape[-1],)
        self.gamma = self.add_weight(shape=width, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=width, initializer="zeros", name="beta")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return (x * self.gamma + self.beta) / self.scale - 1.0


def net(*inner, width=4):
    """A Functional model with layers between two convolutions."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(width, 3, name="first")(inputs)
    for layer in inner:
        x = layer(x)
    x = layers.Conv2D(width, 1, name="second")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(2, name="last")(x))


def test_variables_per_channel_and_scalars(tmp_path):
    traced, _ = assert_traces(net(Affine(name="affine")), images(), tmp_path)
    assert [layer.name for layer in traced.layers][2:5] == [
        *("affine_gamma", "affine_beta", "affine_scale"),
    ]


def test_variables_per_channel_are_pruned_with_their_channels(tmp_path):
    traced = trace(net(Affine(name="affine"), width=8))
    statuses = {la.name: la.status for la in resrep_tf.explain(traced).layers}
    assert statuses["first"] == "internal"
    pruner = resrep_tf.wrap(traced)
    keep = np.array([True] * 3 + [False] * 5)
    slim = resrep_tf.convert(pruner, keep={"first": keep})
    assert slim.get_layer("affine_gamma").weight.shape == (3,)
    assert slim.get_layer("affine_scale").weight.shape == ()
    slim.save(tmp_path / "slim.keras")
    loaded = keras.models.load_model(tmp_path / "slim.keras")
    np.testing.assert_array_equal(loaded(images()), slim(images()))


class Computed(layers.Layer):
    """Computes with its variables before they meet the input."""

    def build(self, input_shape):
        self.scales = [
            self.add_weight(shape=(input_shape[-1],), initializer="zeros", name=name)
            for name in ("a", "b")
        ]
        self._position = {"row": self.add_weight(shape=(1, 6, 1, 1), name="row")}

    def call(self, x):
        first, second = self.scales
        x = x * ops.exp(first) + ops.reshape(second, (1, 1, 1, -1))
        return x + self._position["row"]


def test_what_is_computed_from_variables_is_traced(tmp_path):
    model = net(Computed(name="inner"))
    traced, _ = assert_traces(model, images(), tmp_path, rounding=1e-5)
    names = {op.name for op in traced.operations}
    assert {"inner_scales_0", "inner_exp", "inner_position_row"} <= names


class Twice(layers.Layer):
    """Uses one variable at two places, in two ways."""

    def build(self, input_shape):
        self.gamma = self.add_weight(shape=(input_shape[-1],), name="gamma")

    def call(self, x):
        return x * self.gamma + self.gamma


def test_a_variable_used_twice_stays_one(tmp_path):
    traced, _ = assert_traces(net(Twice()), images(), tmp_path)
    assert len(traced.trainable_variables) == 7


class OwnKernel(layers.Layer):
    """A convolution with standardised weights, written by hand."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters

    def build(self, input_shape):
        self.kernel = self.add_weight(
            shape=(3, 3, input_shape[-1], self.filters),
            regularizer=keras.regularizers.L2(1e-2),
            constraint=keras.constraints.MaxNorm(1.0),
        )
        self.bias = self.add_weight(shape=(self.filters,), trainable=False)

    def call(self, x):
        kernel = self.kernel - ops.mean(self.kernel, axis=(0, 1, 2), keepdims=True)
        return ops.relu(ops.conv(x, kernel, padding="same") + self.bias)


def test_a_kernel_of_its_own(tmp_path):
    traced, _ = assert_traces(net(OwnKernel(4, name="own")), images(), tmp_path)
    loaded = keras.models.load_model(tmp_path / "traced.keras")
    kernel = loaded.get_layer("own_kernel").weight
    assert kernel.regularizer.l2 == pytest.approx(1e-2)
    assert kernel.constraint.max_value == 1.0
    assert not loaded.get_layer("own_bias").weight.trainable
    reasons = {la.name: la.reason for la in resrep_tf.explain(traced).layers}
    assert "conv" in reasons["first"]


def test_the_rest_of_a_model_with_a_kernel_of_its_own_prunes():
    inputs = keras.Input((8, 8, 3))
    x = OwnKernel(4)(inputs)
    x = layers.Conv2D(6, 3, name="first")(x)
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 3)(ops.relu(x)))
    traced = trace(keras.Model(inputs, layers.Dense(2)(x)))
    pruner = resrep_tf.wrap(traced)
    keep = np.array([True, False] * 3)
    slim, report = resrep_tf.convert(pruner, keep={"first": keep}, return_report=True)
    assert report.difference <= 1e-5
    assert slim.get_layer("first").filters == 3


class Embeds(keras.Model):
    """Adds a trained token to what a patch embedding makes."""

    def __init__(self):
        super().__init__()
        self.patches = layers.Conv2D(6, 4, strides=4)
        self.norm = layers.LayerNormalization()
        self.head = layers.Dense(2)

    def build(self, input_shape):
        self.patches.build(input_shape)
        self.token = self.add_weight(shape=(1, 4, 6), name="token")
        self.norm.build((None, 4, 6))
        self.head.build((None, 6))

    def call(self, x):
        x = ops.reshape(self.patches(x), (-1, 4, 6))
        return self.head(ops.mean(self.norm(x + self.token), axis=1))


def test_variables_of_the_model_itself(tmp_path):
    traced, _ = assert_traces(Embeds(), images(), tmp_path)
    assert "token" in [layer.name for layer in traced.layers]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize("layer", [Affine, Computed])
def test_types(policy, layer, tmp_path):
    rounding = 0.0 if layer is Affine else 1e-12 if policy == "float64" else 1e-2
    old = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = net(layer(name="inner"))
    finally:
        keras.config.set_dtype_policy(old)
    traced, _ = assert_traces(model, images(), tmp_path, rounding=rounding)
    assert traced.output.dtype == model.output.dtype


def test_double_precision(tmp_path):
    with precision("float64"):
        assert_traces(net(Affine()), images(), tmp_path)
        model = net(Affine(), Computed())
        assert_traces(model, images(), tmp_path, rounding=1e-12)


class Tied(layers.Layer):
    """Uses the kernel of a layer inside it in another way."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(4)

    def call(self, x):
        return ops.matmul(self.dense(x), ops.transpose(self.dense.kernel))


def test_the_weight_of_another_layer_is_not_lifted():
    traced, report = assert_traces(net(Tied(name="tied")), images(), opaque=1)
    (opaque,) = report.opaque
    assert opaque.path == "tied" and "kernel" in opaque.reason
    assert traced.get_layer("tied").dense.kernel is not None
