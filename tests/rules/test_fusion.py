"""What kernels absorb: declared by rules, merged in one way."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.compactor import SplitActivation
from resrep_tf.rules import Fusion, rule_for
from resrep_tf.rules.fusion import ACTIVATION, AFFINE, MATRIX, Merged


def chain(*layers, shape=(6, 6, 3)):
    """The graph of a model of these layers, and the calls of the first."""
    inputs = x = keras.Input(shape)
    for layer in layers:
        x = layer(x)
    graph = ChannelGraph(keras.Model(inputs, L.GlobalAveragePooling2D()(x)))
    return graph, graph.calls_by_op()[0]


@pytest.mark.parametrize(
    ("layers", "roles"),
    [
        ([L.Conv2D(4, 1)], []),
        ([L.Conv2D(4, 1), L.BatchNormalization()], [AFFINE]),
        ([L.Conv2D(4, 1, activation="relu"), L.BatchNormalization()], []),
        ([L.Conv2D(4, 1), resrep_tf.Compactor()], [MATRIX]),
        (
            [L.Conv2D(4, 1), L.BatchNormalization(), resrep_tf.Compactor()],
            [AFFINE, MATRIX],
        ),
        (
            [L.Conv2D(4, 1), resrep_tf.Compactor(), SplitActivation("relu")],
            [MATRIX, ACTIVATION],
        ),
        # Not in this order: an activation or a compactor comes between.
        ([L.Conv2D(4, 1), resrep_tf.Compactor(), L.BatchNormalization()], [MATRIX]),
        ([L.Conv2D(4, 1), L.ReLU(), L.BatchNormalization()], []),
        ([L.DepthwiseConv2D(3), L.BatchNormalization()], [AFFINE]),
        ([L.DepthwiseConv2D(3), resrep_tf.Compactor(kind="vector")], [MATRIX]),
        ([L.ReLU(), L.BatchNormalization()], []),
    ],
)
def test_what_stands_behind_a_layer_and_can_be_merged(layers, roles):
    graph, calls = chain(*layers)
    found = graph.absorbable(calls)
    assert list(found) == roles
    for (part,), layer in zip(found.values(), layers[1:], strict=False):
        assert part.op is layer


@pytest.mark.parametrize("layer", [L.DepthwiseConv2D(3), L.BatchNormalization()])
def test_a_matrix_is_not_merged_into_a_layer_that_makes_each_channel_alone(layer):
    inputs = keras.Input((6, 6, 3))
    x = resrep_tf.Compactor([layer.name])(layer(L.ReLU()(inputs)))
    model = resrep_tf.ResRepModel(inputs, L.Conv2D(2, 1)(x))
    resrep_tf.convert(model, keep={})  # As long as it does not mix channels.
    model.compactors[0].kernel.assign(np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"must be of kind 'vector'.*mixes channels"):
        resrep_tf.convert(model, keep={})


def test_a_batchnorm_of_two_layers_is_not_absorbed_and_a_compactor_is():
    inputs = keras.Input((6, 6, 3))
    convs = [L.Conv2D(4, 1), L.Conv2D(4, 1)]
    for shared, roles in [
        (L.BatchNormalization(), []),
        (resrep_tf.Compactor(), [MATRIX]),
    ]:
        x = L.Add()([shared(conv(inputs)) for conv in convs])
        graph = ChannelGraph(keras.Model(inputs, x))
        by_op = {id(calls[0].op): calls for calls in graph.calls_by_op()}
        for conv in convs:
            assert list(graph.absorbable(by_op[id(conv)])) == roles


def test_an_output_that_is_read_elsewhere_is_not_absorbed():
    inputs = keras.Input((6, 6, 3))
    x = L.Conv2D(4, 1, name="conv")(inputs)
    model = keras.Model(inputs, [L.BatchNormalization()(x), L.ReLU()(x)])
    graph = ChannelGraph(model)
    assert graph.absorbable(graph.calls_by_op()[0]) == {}


def test_a_registered_subclass_of_batchnorm_is_absorbed():
    class MyNorm(L.BatchNormalization):
        def call(self, inputs, training=None, mask=None):
            # A function of TensorFlow: what this layer does cannot be drawn.
            return tf.identity(super().call(inputs, training, mask))

        def compute_output_spec(self, inputs, *args, **kwargs):
            return keras.KerasTensor(inputs.shape, inputs.dtype)

    graph, calls = chain(L.Conv2D(4, 1), MyNorm())
    assert graph.absorbable(calls) == {}
    resrep_tf.rules.register(MyNorm)(type(rule_for(L.BatchNormalization())))
    graph, calls = chain(L.Conv2D(4, 1), MyNorm())
    assert list(graph.absorbable(calls)) == [AFFINE]


def test_parts_are_put_together():
    one = Fusion().with_part(Fusion(scale=np.ones(2), shift=np.zeros(2)))
    both = one.with_part(Fusion(matrix=np.eye(2)))
    assert both.scale is one.scale and both.shift is one.shift
    assert both.matrix is not None and both.activation is None
    assert one.matrix is None


@pytest.mark.parametrize(("shape", "axes"), [((3, 2, 4), 1), ((3, 2, 2), 2)])
def test_scaling_and_shifting_merged_weights(shape, axes):
    rng = np.random.default_rng(0)
    kernel, scale, shift = (
        rng.normal(size=shape),
        rng.normal(size=4),
        rng.normal(size=4),
    )
    merged = Merged(kernel, None, output_axes=axes).scaled(scale).shifted(shift)
    x = rng.normal(size=3)
    y = np.tensordot(x, kernel, 1).reshape(-1, 4)
    found = np.tensordot(x, merged.kernel, 1).reshape(-1, 4) + merged.bias
    np.testing.assert_allclose(found, y * scale + shift, rtol=1e-12)
    np.testing.assert_array_equal(merged.scaled(scale).bias, shift * scale)
