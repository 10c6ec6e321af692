"""Explanations: every layer, prunable or not, and why."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.explain import command
from resrep_tf.explain.explanation import LayerExplanation
from resrep_tf.explain.summary import where_flops_are
from support.models.small import small_model


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


class Closed(L.Layer):
    def call(self, inputs):
        return tf.nn.relu(inputs)


class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.free = L.Conv2D(4, 3)
        self.held = L.Conv2D(6, 3)
        self.closed = Closed()
        self.head = L.Conv2D(2, 1)

    def call(self, inputs, training=None):
        return self.head(self.closed(self.held(self.free(inputs))))


def test_a_subclassed_model_is_explained_with_what_holds_it():
    explanation = resrep_tf.explain(Mine(), (8, 8, 3))
    assert [layer.status for layer in explanation.layers] == [
        *("internal", "pinned", "pinned")
    ]
    (unknown,) = explanation.unknown
    assert "`closed` (Closed) (its `call` uses functions of TensorFlow" in unknown
    text = " ".join(str(explanation).split())
    assert "51.6% of the FLOPs are in layers that can lose channels." in text
    assert "What pins the rest: `closed` (Closed) has no pruning rule" in text


def test_flops_are_summed_by_what_holds_them():
    def layer(status, reason, share):
        return LayerExplanation("a", "Conv2D", 4, 1, share, 0, status, reason)

    free = [layer("internal", "yes", 0.3), layer("follows", "so", 0.2)]
    held = [layer("pinned", f"why {i}", share) for i, share in enumerate((0.1, 0.2))]
    held += [layer("pinned", "why 0", 0.2), layer("pinned", "hardly", 0.0001)]
    assert where_flops_are(free) == (
        "50.0% of the FLOPs are in layers that can lose channels."
    )
    assert where_flops_are(free + held) == (
        "50.0% of the FLOPs are in layers that can lose channels. What pins the rest: "
        "why 0 (30.0%); why 1 (20.0%)."
    )
    many = [layer("pinned", f"why {i}", 0.1) for i in range(6)]
    assert "; 2 further reasons (20.0%)." in where_flops_are(many)
    alike = [layer("pinned", f"`{name}` has no rule", 0.2) for name in "abc"]
    assert where_flops_are([*held[:1], *alike]).endswith(
        "What pins the rest: `a` has no rule and 2 more alike (60.0%); why 0 (10.0%)."
    )


def test_what_holds_a_model_is_one_line_of_the_users_own_names():
    class Outer(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [Mine(), L.Conv2D(3, 1)]

        def call(self, inputs, training=None):
            return self.parts[1](self.parts[0](inputs))

    text = str(resrep_tf.explain(Outer(), (8, 8, 3)))
    (line,) = [line for line in text.splitlines() if "can lose channels" in line]
    assert "What pins the rest: `parts.0.closed` (Closed) has no pruning rule" in line


def test_the_command_explains_subclassed_models(tmp_path, capsys):
    with keras.saving.custom_object_scope({"Saved": Saved}):
        model = Saved()
        model(np.zeros((1, 8, 8, 3)))
        model.save(tmp_path / "saved.keras")
        command.run([f"--model={tmp_path / 'saved.keras'}"])
    assert "conv  Conv2D" in capsys.readouterr().out


class Saved(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv = L.Conv2D(4, 3)
        self.head = L.Conv2D(2, 1)

    def call(self, inputs, training=None):
        return self.head(self.conv(inputs))
