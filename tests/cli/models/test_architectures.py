"""Networks by name and from files."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.models import architectures
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.export.precision import in_float32
from support import runs
from support.runs import CLASSES, SHAPE, one_convolution


@pytest.fixture
def saved(tmp_path) -> Path:
    return runs.save(tmp_path / "dense.keras", one_convolution)


def build(arch, **kwargs) -> keras.Model:
    return architectures.build(arch, SHAPE, CLASSES, **{"options": {}, **kwargs})


def test_networks_of_the_package_take_options():
    model = build("resnet20", options={"shortcut": "projection"}, weight_decay=3e-4)
    assert model.input_shape == (None, *SHAPE)
    assert "stage2_block0_shortcut_conv" in [layer.name for layer in model.layers]
    penalty = model.get_layer("stem_conv").kernel_regularizer
    assert float(penalty.l2) == pytest.approx(1.5e-4)
    assert architectures.head(model, 10).from_logits


def test_networks_of_keras_give_logits_and_are_decayed():
    model = architectures.build(
        "keras:MobileNet", (32, 32, 3), 7, options={"alpha": 0.25}, weight_decay=1e-4
    )
    assert model.output_shape == (None, 7)
    assert architectures.head(model, 10).from_logits
    decayed = [
        layer.name
        for layer in model.layers
        if getattr(layer, "kernel_regularizer", None) is not None
    ]
    assert "conv1" in decayed
    assert not any(
        getattr(layer, "depthwise_regularizer", None) for layer in model.layers
    )
    with pytest.raises(CommandError, match="`weights` is not an option"):
        architectures.build(
            "keras:MobileNet", (32, 32, 3), 7, options={"weights": "imagenet"}
        )


def test_a_file_keeps_its_weights_and_its_regularizers(saved):
    original = keras.models.load_model(saved)
    plain, decayed = build(str(saved)), build(str(saved), weight_decay=0.5)
    for model, penalties in ((plain, 0), (decayed, 2)):
        for a, b in zip(original.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(model.losses) == penalties


def test_a_file_must_fit_the_data(tmp_path):
    one_convolution(classes=3).save(tmp_path / "three.keras")
    with pytest.raises(CommandError, match=r"`--arch` must fit the data.*\(3,\)$"):
        build(str(tmp_path / "three.keras"))
    one_convolution(shape=(9, 9, 1)).save(tmp_path / "nine.keras")
    with pytest.raises(CommandError, match="must fit the data"):
        build(str(tmp_path / "nine.keras"))
    keras.Sequential([keras.Input(SHAPE), one_convolution()]).save(
        tmp_path / "fits.keras"
    )
    assert build(str(tmp_path / "fits.keras")).output_shape == (None, CLASSES)
    (tmp_path / "broken.keras").write_bytes(b"nothing")
    with pytest.raises(CommandError, match="`--arch`: "):
        build(str(tmp_path / "broken.keras"))


def test_init_weights_must_be_those_of_the_network(saved):
    with pytest.raises(CommandError, match="`--init_weights`: The weights in `path`"):
        build("resnet20", init_weights=str(saved))


def test_probabilities_are_told_from_logits():
    assert not architectures.head(one_convolution(activation="softmax"), 10).from_logits
    ends = keras.Sequential([one_convolution(), layers.Softmax()])
    ends.build((None, *SHAPE))
    assert not architectures.head(ends, 10).from_logits
    nested = keras.Sequential([one_convolution(activation="softmax", name="inner")])
    nested.build((None, *SHAPE))
    assert not architectures.head(nested, 10).from_logits
    loss = evaluation.compile_arguments(one_convolution(activation="softmax"), 10)[
        "loss"
    ]
    assert loss.get_config()["from_logits"] is False


def test_arch_options_are_literals_or_strings():
    options = architectures.parse_options(["alpha=0.5", "shortcut=projection", "n=3"])
    assert options == {"alpha": 0.5, "shortcut": "projection", "n": 3}
    assert architectures.parse_options([]) == {}


def test_in_float32_only_the_precision_changes():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build("resnet20")
    assert model.get_layer("stem_conv").compute_dtype == "bfloat16"
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype("float32")
    outputs = model(images)
    assert outputs.dtype == "float32"
    copy = in_float32(model)
    kinds = {layer.compute_dtype for layer in copy.layers if layer.weights}
    assert kinds == {"float32"}
    np.testing.assert_allclose(outputs, copy(images), atol=0.2)
