"""Facts about channels, followed to a fixed point."""

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.propagation import Link, propagate


def run(graph, at, join=np.maximum):
    """Counts along the graph how many calls lie between a call and each tensor."""

    def transfer(call, inputs):
        if call.name in at:
            return [np.full(t.width, at[call.name]) for t in call.outputs]
        worst = max((fact.max(initial=0) for fact in inputs), default=0)
        return [np.full(t.width, worst + 1) for t in call.outputs]

    facts = propagate(graph.steps, lambda t: np.zeros(t.width, int), transfer, join)
    return {
        call.name: int(facts[id(call.outputs[0])].max())
        for call in graph.calls.values()
    }


def test_facts_follow_the_calls():
    inputs = keras.Input((4,))
    x = L.Dense(3, name="one")(inputs)
    y = L.Add(name="sum")([L.ReLU(name="relu")(x), x])
    graph = ChannelGraph(keras.Model(inputs, y))
    assert run(graph, {}) == {"one": 1, "relu": 2, "sum": 3}
    assert run(graph, {"relu": 7}) == {"one": 1, "relu": 7, "sum": 8}


def shared_model():
    """A nested model that is called on two tensors."""
    image = keras.Input((4,))
    inner = keras.Model(image, L.ReLU(name="inside")(image), name="inner")
    inputs = keras.Input((3,))
    a, b = L.Dense(4, name="a")(inputs), L.Dense(4, name="b")(inputs)
    out = L.Concatenate(name="both")([inner(a), inner(b)])
    return ChannelGraph(keras.Model(inputs, out))


def test_a_nested_model_knows_what_holds_at_all_of_its_calls():
    graph = shared_model()
    assert sum(isinstance(step, Link) for step in graph.steps) == 4
    # The second call corrects what the first one left inside.
    found = run(graph, {"a": 2, "b": 9})
    assert found["inside"] == 10 and found["both"] == 11
    found = run(graph, {"a": 9, "b": 2})
    assert found["inside"] == 10 and found["both"] == 11


@pytest.mark.parametrize(
    ("values", "expected"), [((3.0, 3.0), 3.0), ((3.0, 4.0), None)]
)
def test_unequal_constants_are_none(values, expected):
    graph = shared_model()
    a, b = (next(c for c in graph.calls.values() if c.name == n) for n in "ab")
    given = {id(a): np.full(4, values[0]), id(b): np.full(4, values[1])}

    def transfer(call, inputs):
        if id(call) in given:
            return [given[id(call)]]
        return call.rule.constants(call, inputs)

    facts = propagate(
        graph.steps,
        lambda tensor: np.full(tensor.width, np.nan),
        transfer,
        lambda x, y: np.where(x == y, x, np.nan),
    )
    inside = next(c for c in graph.calls.values() if c.name == "inside")
    found = facts[id(inside.outputs[0])]
    if expected is None:
        assert np.isnan(found).all()
    else:
        np.testing.assert_array_equal(found, expected)
