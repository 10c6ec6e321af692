"""Explanations: every layer, prunable or not, and why."""

import json

import keras
import pytest
from keras import layers as L

import resrep_tf
from support.small import small_model


def by_name(model):
    return {layer.name: layer for layer in resrep_tf.explain(model).layers}


def test_every_layer_with_a_kernel_is_listed():
    layers = by_name(small_model())
    assert list(layers) == ["conv1", "conv2", "conv3", "hidden", "logits"]
    assert layers["conv1"].status == "internal"
    assert layers["conv2"].status == "shared"
    assert "together with `conv3`" in layers["conv2"].reason
    assert layers["conv2"].space == layers["conv3"].space != layers["conv1"].space
    assert layers["logits"].status == "pinned"
    assert layers["logits"].reason == "it is an output of the model"
    assert layers["conv1"].flops == 64 * 9 * 3 * 6
    assert sum(layer.share for layer in layers.values()) == pytest.approx(1)


def test_smallest_counts_are_those_of_the_narrowest_models():
    explanation = resrep_tf.explain(small_model())
    for targets, smallest, params in [
        (None, explanation.smallest_flops, explanation.smallest_params),
        ("all", explanation.smallest_flops_all, explanation.smallest_params_all),
    ]:
        pruner = resrep_tf.wrap(small_model(), targets)
        keep = {
            c.name: [number == 0 for number in range(c.width)]
            for c in pruner.compactors
        }
        slim = resrep_tf.convert(pruner, keep=keep)
        assert resrep_tf.count_flops(slim) == smallest
        assert slim.count_params() == params
    assert explanation.smallest_flops_all < explanation.smallest_flops
    assert explanation.flops == resrep_tf.count_flops(small_model())


def test_wrapping_changes_neither_flops_nor_spaces():
    model = small_model()
    before, after = by_name(model), by_name(resrep_tf.wrap(model, "all"))
    assert before == after


def test_followers_and_unknown_layers():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, name="main")(inputs)
    x = L.DepthwiseConv2D(3, name="depthwise")(x)
    gate = L.Dense(4, name="gate")(L.GlobalAveragePooling2D(keepdims=True)(x))
    x = L.Conv2D(5, 1, name="last")(L.Multiply()([x, gate]))
    x = L.EinsumDense("bhwc,cd->bhwd", (4, 4, 3), name="einsum")(x)
    model = keras.Model(inputs, x, name="gated")
    layers = by_name(model)
    assert layers["depthwise"].status == "follows"
    assert layers["depthwise"].space is None
    assert layers["last"].status == "pinned"
    explanation = resrep_tf.explain(model)
    assert explanation.unknown == ("`einsum` (EinsumDense)",)
    assert "Without a rule, and not counted as FLOPs: `einsum`" in str(explanation)


def test_prints_and_serialises():
    explanation = resrep_tf.explain(small_model())
    text = str(explanation)
    assert "`small` has 42,080 FLOPs (multiply-adds) for input (8, 8, 3)." in text
    assert "pinned: it is an output of the model" in text
    data = json.loads(json.dumps(explanation.to_dict()))
    assert data["flops"] == 42080
    assert data["layers"][0]["name"] == "conv1"


def test_subclassed_models_are_refused():
    class Mine(keras.Model):
        pass

    with pytest.raises(ValueError, match="Only Functional and Sequential"):
        resrep_tf.explain(Mine())
