"""Keras's nodes: calls in order, nested models, arguments and shapes."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

from resrep_tf.graph import keras_nodes


def names(function):
    return [node.op.name for node in keras_nodes.nodes(function)]


def nested(**call):
    """A model with two inputs, called within another one."""
    first, second = keras.Input((3,), name="first"), keras.Input((4,), name="second")
    inner = keras.Model([first, second], L.Concatenate()([first, second]), name="inner")
    a, b = keras.Input((3,), name="a"), keras.Input((4,), name="b")
    return inner, (a, b), lambda given: keras.Model([a, b], inner(given))


def test_calls_come_in_the_order_in_which_they_run():
    inputs = keras.Input((4,))
    x = L.Dense(3, name="one")(inputs)
    x = ops.relu(x)
    model = keras.Model(inputs, L.Dense(2, name="two")(x))
    one, relu, two = keras_nodes.nodes(model)
    assert (one.op.name, two.op.name) == ("one", "two")
    assert relu.inputs[0] is one.outputs[0] and two.inputs[0] is relu.outputs[0]
    assert one.inner is None
    keys = [node.key for node in keras_nodes.nodes(model)]
    assert keys == [one.key, relu.key, two.key] and len(set(keys)) == 3


def test_arguments_are_filled_with_values():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, ops.split(inputs, 2, axis=-1))
    (node,) = keras_nodes.nodes(model)
    args, kwargs = node.arguments(["value"])
    assert args[0] == "value" and not kwargs
    assert len(node.outputs) == 2


def test_a_sequential_model_needs_its_shape():
    model = keras.Sequential([L.Dense(2)])
    with pytest.raises(ValueError, match=r"has no input shape yet.*Received: model=<"):
        keras_nodes.check_model(model)
    model.build((None, 3))
    assert names(keras_nodes.check_model(model)) == [model.layers[0].name]


def test_what_is_no_graph_is_refused():
    with pytest.raises(TypeError, match=r"must be a `keras.Model`.*of type int"):
        keras_nodes.check_model(3)

    class Own(keras.Model):
        pass

    with pytest.raises(ValueError, match=r"Functional or Sequential.*`resrep_tf.trace"):
        keras_nodes.check_model(Own())


@pytest.mark.parametrize("by_name", [False, True])
def test_what_enters_a_nested_model_is_in_the_order_of_its_inputs(by_name):
    inner, (a, b), build = nested()
    given = {"second": b, "first": a} if by_name else [a, b]
    model = build(given)
    (node,) = keras_nodes.nodes(model)
    assert node.inner is inner
    assert [t.shape[-1] for t in node.entering] == [3, 4]


def test_every_run_of_a_nested_model_has_its_own_shapes():
    image = keras.Input((None, None, 2))
    inner = keras.Model(image, L.Conv2D(3, 3, name="conv")(image), name="inner")
    inputs = keras.Input((8, 8, 2))
    pooled = inner(L.MaxPooling2D(2)(inputs))
    model = keras.Model(inputs, [inner(inputs), pooled])
    runs = keras_nodes.executions(model, [(None, 8, 8, 2)])
    shapes = [outputs[0] for node, _, outputs in runs if node.op.name == "conv"]
    assert sorted(shapes) == [(None, 2, 2, 3), (None, 6, 6, 3)]
    keys = {node.key for node, _, _ in runs if node.op.name == "conv"}
    assert len(keys) == 1


def test_open_extents_get_a_size():
    model = keras.Model(image := keras.Input((None, None, 3)), L.ReLU()(image))
    shape = keras_nodes.input_shapes(model, None)
    assert shape == [(None, 224, 224, 3)]
    assert keras_nodes.input_shapes(model, (32, None, 3)) == [(None, 32, 224, 3)]
    with pytest.raises(ValueError, match=r"Received: input_shape=\(32, 32, 1\)"):
        keras_nodes.input_shapes(model, (32, 32, 1))


def test_an_input_is_copied_under_its_name():
    tensor = keras.Input((8, 8, 3), batch_size=2, dtype="float16")
    new = keras_nodes.copy_input(tensor, (None, 8, 8, 5))
    assert new.shape == (2, 8, 8, 5) and new.dtype == "float16"
    assert new.name == tensor.name and new is not tensor


def test_structures_are_those_of_the_user():
    a = keras.Input((2,), name="a")
    model = keras.Model({"a": a}, {"x": L.ReLU()(a), "y": a})
    inputs, outputs = keras_nodes.structures(model)
    assert list(inputs) == ["a"] and list(outputs) == ["x", "y"]
    assert np.shape(outputs["y"]) == (None, 2)
