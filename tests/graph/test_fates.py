"""What becomes of pruned channels: statuses and constants agree."""

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.fates import Constants, Statuses, blocked, refused
from resrep_tf.rules.base import CONSTANT, VARYING, ZERO
from support.checks import randomise


def graph_of(*behind, reader=None):
    """A convolution, some layers, and a kernel that reads them."""
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 3, name="conv")(inputs)
    for layer in behind:
        x = layer(x)
    x = (reader or L.Conv2D(3, 1, name="reader"))(x)
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    return ChannelGraph(randomise(model))


def call_named(graph, name):
    return next(call for call in graph.calls.values() if call.name == name)


def pruned(graph, analysis, value, dtype):
    """Facts if all of `conv` is pruned, at `reader`, and what `reader` refuses."""
    conv, reader = call_named(graph, "conv"), call_named(graph, "reader")
    removed = {id(conv): np.full(4, value, dtype)}
    facts = analysis.follow(graph.steps, removed)
    refused = [r for r in analysis.refusals(graph.steps, facts) if r.call is reader]
    return facts[id(reader.inputs[0])], refused[0].channels


@pytest.mark.parametrize(
    ("behind", "status"),
    [
        ([L.ReLU()], ZERO),
        ([L.BatchNormalization()], CONSTANT),
        ([L.BatchNormalization(), L.ZeroPadding2D()], VARYING),
        ([L.ZeroPadding2D()], ZERO),
        ([L.Activation("sigmoid")], CONSTANT),
    ],
)
def test_statuses_and_constants_agree(behind, status):
    graph = graph_of(*behind)
    found, refused = pruned(graph, Statuses(), ZERO, np.uint8)
    np.testing.assert_array_equal(found, status)
    assert len(refused) == (4 if status == VARYING else 0)
    values, again = pruned(graph, Constants(), 0.0, float)
    np.testing.assert_array_equal(refused, again)
    if status == ZERO:
        np.testing.assert_array_equal(values, 0.0)
    elif status == CONSTANT:
        assert np.isfinite(values).all() and values.any()
    else:
        assert np.isnan(values).all()


def test_a_padded_kernel_accepts_only_zero():
    reader = L.Conv2D(3, 3, padding="same", name="reader")
    graph = graph_of(L.Activation("sigmoid"), reader=reader)
    for analysis, value, dtype in [
        (Statuses(), ZERO, np.uint8),
        (Constants(), 0.0, float),
    ]:
        _, numbers = pruned(graph, analysis, value, dtype)
        assert len(numbers) == 4
    conv = call_named(graph, "conv")
    owner = np.full(graph.num_channels, -1)
    owner[conv.outputs[0].channels] = 5
    reasons = blocked(refused(graph.steps, {id(conv): np.zeros(4, np.uint8)}), owner)
    assert list(reasons) == [5]
    assert "`reader` (Conv2D) pads its input" in reasons[5]


def test_one_bias_holds_one_constant():
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 3, name="conv")(inputs)
    reader = L.Conv2D(3, 1, name="reader")
    norm, other = L.BatchNormalization(), L.BatchNormalization()
    for second, count in [(norm, 0), (other, 4)]:
        x1, x2 = norm(x), second(x)
        model = keras.Model(inputs, L.Add()([reader(x1), reader(x2)]))
        graph = ChannelGraph(randomise(model))
        conv = call_named(graph, "conv")
        analysis = Constants()
        facts = analysis.follow(graph.steps, {id(conv): np.zeros(4)})
        refused = [
            len(r.channels)
            for r in analysis.refusals(graph.steps, facts)
            if r.call.name == "reader"
        ]
        assert refused == [0, count]
        # Without weights the two constants could always be different ones.
        analysis = Statuses()
        facts = analysis.follow(graph.steps, {id(conv): np.zeros(4, np.uint8)})
        found = [r for r in analysis.refusals(graph.steps, facts) if r.shared]
        assert [len(r.channels) for r in found] == [4, 4]


def test_spaces_are_frozen():
    graph = graph_of()
    with pytest.raises(AttributeError):
        graph.spaces[0].reason = "another"
    with pytest.raises(AttributeError):
        graph.producers[0].batchnorm = None
