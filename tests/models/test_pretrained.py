"""Published weights, without a connection: files take the place of downloads."""

import functools

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.models import architectures
from resrep_tf.data.pixels import scale_of
from resrep_tf.train.settings import parse

SHAPE, CLASSES = (32, 32, 3), 3
ARCH = "keras:MobileNetV2"
SMALL = {"alpha": 0.35}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The body of a network, whose weights are taken for the published ones."""
    real = keras.applications.MobileNetV2
    body = real(include_top=False, weights=None, input_shape=SHAPE, **SMALL)
    body.save_weights(tmp_path / "published.weights.h5")

    @functools.wraps(real)
    def builder(weights, **arguments):
        file = str(tmp_path / "published.weights.h5")
        return real(weights=file if weights == "imagenet" else weights, **arguments)

    monkeypatch.setattr(keras.applications, "MobileNetV2", builder)
    return body


def build(arch, **arguments):
    return architectures.build(arch, SHAPE, CLASSES, **{"options": {}, **arguments})


def test_published_weights_get_a_new_head(published):
    model = build(ARCH, options=SMALL, init_weights="imagenet", weight_decay=1e-4)
    assert (
        model.output_shape == (None, CLASSES)
        and architectures.head(model, 10).from_logits
    )
    assert scale_of(model).name == "-1..1"
    images = np.random.default_rng(0).uniform(-1, 1, (2, *SHAPE)).astype("float32")
    kernel, bias = model.get_layer("new_head").get_weights()
    features = np.mean(published(images), axis=(1, 2))
    np.testing.assert_allclose(model(images), features @ kernel + bias, atol=1e-5)


def test_without_a_connection_it_is_said_what_to_do(monkeypatch):
    @functools.wraps(keras.applications.MobileNetV2)
    def offline(**arguments):
        raise Exception("URL fetch failure on https://x.org/w.h5: None -- no route")

    monkeypatch.setattr(keras.applications, "MobileNetV2", offline)
    with pytest.raises(CommandError) as caught:
        build(ARCH, init_weights="imagenet")
    message = str(caught.value)
    assert message.startswith("`--init_weights`: the published weights could not be")
    assert "https://x.org/w.h5" in message and ".keras" in message
    assert "keras.applications.MobileNetV2(include_top=False)" in message


def test_published_weights_are_those_of_keras_networks():
    with pytest.raises(CommandError, match="is for `--arch=keras:NAME`"):
        build("resnet20", init_weights="imagenet")


def test_a_new_head_is_trained_first():
    flags = f"--arch={ARCH}", "--init_weights=imagenet"
    settings, text = parse([*flags, "--dataset=folder:/nowhere"])
    assert settings.base_epochs and "--init_weights=imagenet\n" in text
    assert parse([*flags, "--dataset=imagenet2012"])[0].base_epochs == 0
    preset = ["--arch=hub:some_preset", "--dataset=folder:/nowhere"]
    assert parse(preset)[0].base_epochs


def test_a_folder_with_a_preset_is_found_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    flags = "--arch=hub:mine", "--dataset=folder:/nowhere"
    assert parse(flags)[0].arch == f"hub:{tmp_path / 'mine'}"
    preset = "hub:some_preset"  # No folder of that name.
    assert parse([f"--arch={preset}", *flags[1:]])[0].arch == preset


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 16],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
    )
    converter = hub.layers.ResNetImageConverter(
        image_size=SHAPE[:2], scale=[0.01, 0.02, 0.03], offset=[-1.0, -2.0, -3.0]
    )
    classifier = hub.models.ResNetImageClassifier(
        backbone=backbone,
        preprocessor=hub.models.ResNetImageClassifierPreprocessor(converter),
        num_classes=CLASSES,
    )
    folder = tmp_path_factory.mktemp("hub") / "preset"
    classifier.save_to_preset(str(folder))
    return classifier, folder


def test_a_preset_gets_raw_pixels(preset):
    classifier, folder = preset
    model = build(f"hub:{folder}", weight_decay=1e-4)
    assert scale_of(model).name == "0..255"
    images = np.random.default_rng(0).uniform(0, 255, (2, *SHAPE)).astype("float32")
    expected = classifier(classifier.preprocessor(images))
    np.testing.assert_allclose(model(images), expected, atol=1e-4)
    other = architectures.build(f"hub:{folder}", SHAPE, 5, options={})
    assert other.output_shape == (None, 5)
    assert any(isinstance(layer, L.Rescaling) for layer in other.layers)


def test_a_preset_that_is_not_there_is_named():
    pytest.importorskip("keras_hub")
    with pytest.raises(CommandError, match=r"save_to_preset.*Received: hub:no_such"):
        build("hub:no_such_preset")
