"""Input scales: exact, and the right one for every model that tells."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

from resrep_tf import models
from resrep_tf.data import pixels
from resrep_tf.data.detection import detect, near_chance
from resrep_tf.data.images import normalise
from support.models.networks import APPLICATIONS

MODULES = {
    "ResNet": "resnet",
    "ResNetV2": "resnet_v2",
    "MobileNet": "mobilenet",
    "MobileNetV2": "mobilenet_v2",
    "MobileNetV3": "mobilenet_v3",
    "EfficientNet": "efficientnet",
    "EfficientNetV2": "efficientnet_v2",
    "InceptionV3": "inception_v3",
    "InceptionResNetV2": "inception_resnet_v2",
    "Xception": "xception",
    "NASNet": "nasnet",
    "DenseNet": "densenet",
    "ConvNeXt": "convnext",
}
SELF_SCALING = ("MobileNetV3", "EfficientNet", "EfficientNetV2", "ConvNeXt")


def module(network):
    family = network.family
    name = network.name.lower() if family == "VGG" else MODULES[family]
    return getattr(keras.applications, name)


def raw(shape=(4, 5, 5, 3)):
    return np.random.default_rng(1).uniform(0, 255, shape).astype("float32")


def network(*first, name="mine", shape=(16, 16, 3)):
    """A small network behind other layers."""
    inputs = keras.Input(shape)
    x = inputs
    for layer in first:
        x = layer(x)
    x = L.Conv2D(4, 3, activation="relu")(x)
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(3)(x), name=name)


# === Scales ===


def test_raw_pixels_stay():
    np.testing.assert_array_equal(pixels.scale("0..255")(raw()), raw())


def test_of_bytes():
    images = raw().astype("uint8")
    np.testing.assert_allclose(pixels.scale("0..1")(images), images / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "mode"), [("imagenet", "torch"), ("caffe", "caffe"), ("-1..1", "tf")]
)
def test_as_keras_does(name, mode):
    expected = keras.applications.imagenet_utils.preprocess_input(raw(), mode=mode)
    np.testing.assert_allclose(pixels.scale(name)(raw()), expected, atol=2e-5)


def test_imagenet_as_the_pipelines_do():
    """Bit for bit, also where the size of the images is open."""
    images = raw()
    expected = normalise(images, pixels.MEAN, pixels.STD)
    np.testing.assert_array_equal(pixels.scale("imagenet")(images), expected)
    spec = tf.TensorSpec((None, None, None, 3), tf.float32)
    opened = tf.function(pixels.scale("imagenet").function, input_signature=[spec])
    np.testing.assert_array_equal(opened(images), expected)


def test_colours_of_one_channel_images():
    assert pixels.names(channels=1) == ["0..255", "0..1", "-1..1"]
    with pytest.raises(ValueError, match=r"of 3 channels\. Received: images of shape"):
        pixels.scale("caffe")(raw((2, 4, 4, 1)))


def test_unknown_scale():
    with pytest.raises(ValueError, match=r"Received: pixels='0\.\.2'"):
        pixels.scale("0..2")


# === The scale of a model ===


@pytest.mark.parametrize("entry", APPLICATIONS, ids=lambda entry: entry.name)
def test_applications_by_name(entry):
    builder = getattr(keras.applications, entry.name)
    name = inspect.signature(builder).parameters["name"].default
    name = {
        "MobileNet": "mobilenet_1.00_224",
        "MobileNetV2": "mobilenetv2_1.00_224",
    }.get(entry.name, name)
    first = [L.Rescaling(1 / 255)] if entry.family in SELF_SCALING else []
    choice = pixels.scale_of(network(*first, name=name))
    expected = module(entry).preprocess_input(raw())
    np.testing.assert_allclose(pixels.scale(choice.name)(raw()), expected, atol=2e-5)


@pytest.mark.parametrize("family", ["MobileNetV3", "MobileNetV2", "VGG"])
def test_applications_as_built(family):
    check_built(next(n for n in APPLICATIONS if n.family == family))


@pytest.mark.slow
@pytest.mark.parametrize("entry", APPLICATIONS, ids=lambda entry: entry.name)
def test_every_application_as_built(entry):
    check_built(entry)


def check_built(entry):
    size = entry.smallest
    base = getattr(keras.applications, entry.name)(
        weights=None, include_top=False, input_shape=(size, size, 3)
    )
    expected = module(entry).preprocess_input(raw())
    top = keras.Sequential([keras.Input((size, size, 3)), base, L.Flatten()])
    for model in (base, top):
        choice = pixels.scale_of(model)
        scaled = pixels.scale(choice.name)(raw())
        np.testing.assert_allclose(scaled, expected, atol=2e-5)


def test_networks_of_this_package():
    for name in ("resnet20", "resnet18", "vgg16", "mobilenet"):
        choice = pixels.scale_of(models.build(name, (32, 32, 3), 10))
        assert choice.name == "imagenet"
        assert "of this package" in choice.reason


def test_transfer_learning():
    base = network(name="mobilenetv2_1.00_96")
    assert pixels.scale_of(network(base_only(base))).name == "-1..1"
    outer = network(L.RandomFlip(), L.Rescaling(1 / 127.5, -1), base_only(base))
    assert pixels.scale_of(outer).name == "0..255"


def base_only(model):
    return keras.Model(model.input, model.layers[1].output, name=model.name)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([L.Rescaling(1 / 255)], "0..255"),
        ([L.Rescaling(1 / 127.5, -1)], "0..255"),
        ([L.Rescaling(2.0, -1)], "0..1"),
        ([L.Rescaling(0.5, 0.5), L.Normalization(mean=0.45, variance=0.05)], "-1..1"),
        ([L.Normalization(mean=[120.0] * 3, variance=[60.0**2] * 3)], "0..255"),
        ([L.Normalization(mean=[0.485] * 3, variance=[0.05] * 3)], "0..1"),
        ([L.Resizing(8, 8), L.RandomFlip(), L.Rescaling(1 / 255)], "0..255"),
        ([L.ZeroPadding2D(6), L.RandomFlip()], None),
        ([L.Resizing(8, 8)], None),
        ([], None),
    ],
    ids=lambda value: None if isinstance(value, list) else str(value),
)
def test_own_layers(first, expected):
    # Layers are made when the tests are collected, so they are made anew here.
    fresh = [type(layer).from_config(layer.get_config()) for layer in first]
    choice = pixels.scale_of(network(*fresh))
    assert choice.name == expected
    assert choice.reason


@pytest.mark.parametrize("mode", ["tf", "torch", "caffe"])
def test_preprocessing_as_operations(mode):
    def first(x):
        return keras.applications.imagenet_utils.preprocess_input(x, mode=mode)

    assert pixels.scale_of(network(first)).name == "0..255"


def test_inside_a_nested_sequential():
    augmentation = keras.Sequential(
        [keras.Input((16, 16, 3)), L.RandomFlip(), L.Rescaling(1 / 255)]
    )
    assert pixels.scale_of(network(augmentation)).name == "0..255"


def test_open_size_and_one_channel():
    assert pixels.scale_of(network(shape=(None, None, 3))).name is None
    first = L.Rescaling(1 / 255)
    assert pixels.scale_of(network(first, shape=(None, None, 1))).name == "0..255"


def test_not_for_images():
    model = keras.Sequential([keras.Input((7,)), L.Dense(2)])
    assert pixels.scale_of(model).name is None


# === Detection ===


def separable(scale):
    """A model and images that it classifies when they come in one scale."""
    model = keras.Sequential([keras.Input((4, 4, 3)), L.Flatten(), L.Dense(3)])
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 64)
    brightness = np.array([60.0, 130.0, 200.0])[:, None, None, None]
    images = brightness[labels] + rng.normal(0, 5, (64, 4, 4, 3))
    # The class whose brightness, in the units of the scale, is the nearest.
    colours = pixels.scale(scale)(np.broadcast_to(brightness, (3, 4, 4, 3)))
    centres = np.mean(colours, axis=(1, 2, 3))
    kernel = np.broadcast_to(2 * centres / 48, (48, 3))
    model.set_weights([kernel, -(centres**2)])
    return model, images.astype("float32"), labels


@pytest.mark.parametrize("scale", ["0..255", "0..1", "imagenet", "caffe"])
def test_detects_the_scale(scale):
    found = detect(*separable(scale))
    assert found.scale == scale
    assert found.warning is None
    assert found.trials[0].accuracy == 1
    assert {trial.scale for trial in found.trials} == set(pixels.names())
    assert "100% right" in found.reason


def test_says_that_two_scales_do_as_well():
    found = detect(*separable("-1..1"), scales=["-1..1", "imagenet", "0..255"])
    assert found.trials[0].accuracy == found.trials[1].accuracy == 1
    assert f"few images: {found.trials[1].scale}; if it is" in found.reason


def test_surer_answers_of_a_rare_scale_are_not_better_ones():
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            L.GlobalAveragePooling2D(),
            L.Dense(1, activation="sigmoid"),
        ]
    )
    # Bright ones are of the second class, on numbers of 0 to 1.
    model.set_weights([np.full((3, 1), 2.0), np.array([-3.0])])
    labels = np.arange(32) % 2
    images = np.broadcast_to((60 + 140 * labels)[:, None, None, None], (32, 4, 4, 3))
    found = detect(model, images, labels)
    trials = {trial.scale: trial for trial in found.trials}
    assert found.scale == "0..1" and "few images: -1..1, caffe" in found.reason
    assert trials["caffe"].accuracy == trials["0..1"].accuracy == 1
    assert trials["caffe"].loss < trials["0..1"].loss


def test_one_hot_labels():
    model, images, labels = separable("0..1")
    assert detect(model, images, np.eye(3)[labels]) == detect(model, images, labels)


def test_warns_near_chance():
    model, images, labels = separable("0..255")
    found = detect(model, images, (labels + 1) % 3, scales=["0..1", "-1..1"])
    assert "near what guessing gives" in found.warning
    assert found.warning in str(found)


def test_near_chance():
    labels = np.arange(300) % 3
    assert near_chance(1 / 3, labels, 3)
    assert near_chance(0.6, labels, 3) is None
    # Guessing the most frequent class.
    assert near_chance(0.9, np.arange(100) < 90, 2)


def test_detection_wants_labels():
    model, images, _ = separable("0..1")
    with pytest.raises(ValueError, match="Received: 64 images and 3 labels"):
        detect(model, images, [0, 1, 0])
