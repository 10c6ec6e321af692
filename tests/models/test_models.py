import functools
import math

import keras
import numpy as np
import pytest
from keras import layers

from resrep_tf import models

TINY = {"input_shape": (8, 8, 1), "classes": 3}


def tiny(**options):
    return models.cifar_resnet(8, **TINY, **options)


def macs(model):
    """Multiply-adds of one image: every kernel weight, once per output pixel."""
    total = 0
    for layer in model.layers:
        if isinstance(layer, (layers.Conv2D, layers.DepthwiseConv2D, layers.Dense)):
            total += math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1])
    return total


def trainable(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


# === Architectures ===


@pytest.fixture(scope="module")
def shared():
    """Builds a model with its defaults, once for all tests that only look at it."""
    return functools.cache(models.build)


@pytest.mark.parametrize(
    "name, options, expected_macs, parameters, target_layers",
    [
        ("resnet20", {}, 40_551_040, 269_722, 9),
        ("resnet32", {}, 68_862_592, 464_154, 15),
        ("resnet44", {}, 97_174_144, 658_586, 21),
        ("resnet56", {}, 125_485_696, 853_018, 27),
        ("resnet56", {"shortcut": "projection"}, 125_747_840, 855_770, 27),
        ("resnet110", {"shortcut": "projection"}, 253_149_824, 1_730_714, 54),
        ("resnet18", {}, 1_814_073_344, 11_689_512, 8),
        ("resnet50", {}, 4_089_184_256, 25_557_032, 32),
        ("mobilenet", {}, 568_740_352, 4_231_976, 14),
        ("mobilenet", {"alpha": 0.5}, 149_497_088, 1_331_592, 14),
        ("vgg16", {}, 313_201_664, 14_724_042, 13),
        pytest.param(
            *("resnet34", {}, 3_663_761_408, 21_797_672, 16), marks=pytest.mark.slow
        ),
        pytest.param(
            *("resnet101", {}, 7_801_405_440, 44_549_160, 66), marks=pytest.mark.slow
        ),
        pytest.param(
            *("resnet152", {}, 11_513_626_624, 60_192_808, 100), marks=pytest.mark.slow
        ),
        pytest.param(
            *("vgg16", {"input_shape": (224, 224, 3), "classes": 1000}),
            *(15_470_264_320, 138_361_768, 13),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_size(shared, name, options, expected_macs, parameters, target_layers):
    model = models.build(name, **options) if options else shared(name)
    assert macs(model) == expected_macs
    assert trainable(model) == parameters
    pattern = models.targets(name)
    found = [layer for layer in model.layers if pattern.search(layer.name)]
    assert len(found) == target_layers
    assert all(type(layer) is layers.Conv2D for layer in found)


def block_layers(blocks, *indices):
    return [
        f"stage{stage}_block{block}_conv{index}"
        for stage, count in enumerate(blocks, start=1)
        for block in range(count)
        for index in indices
    ]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("resnet20", block_layers((3, 3, 3), 1)),
        ("resnet18", block_layers((2, 2, 2, 2), 1)),
        ("resnet50", block_layers((3, 4, 6, 3), 1, 2)),
        ("mobilenet", ["stem_conv", *(f"block{i}_pointwise_conv" for i in range(13))]),
        ("vgg16", None),
    ],
)
def test_targets_are_the_papers(shared, name, expected):
    model = shared(name)
    if expected is None:
        expected = [x.name for x in model.layers if isinstance(x, layers.Conv2D)]
    pattern = models.targets(name)
    assert [x.name for x in model.layers if pattern.search(x.name)] == expected


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet50", "mobilenet"])
def test_strided_layers_pad_like_pytorch(shared, name):
    model = shared(name)
    producers = {id(operation.output): operation for operation in model.operations}
    strided = [
        layer
        for layer in model.layers
        if isinstance(
            layer, (layers.Conv2D, layers.DepthwiseConv2D, layers.MaxPooling2D)
        )
        and layer.strides == (2, 2)
    ]
    assert len(strided) >= 3
    for layer in strided:
        size = getattr(layer, "pool_size", None) or layer.kernel_size
        before = producers[id(layer.input)]
        padding = getattr(before, "padding", None)
        assert layer.padding == "valid"
        if size[0] > 1:
            assert padding == ((size[0] // 2,) * 2,) * 2, layer.name
        else:
            assert not isinstance(before, layers.ZeroPadding2D), layer.name


def test_zero_pad_shortcut_subsamples_and_centres_the_channels():
    model = tiny()
    block_input = model.get_layer("stage1_block0_relu").output
    shortcut = model.get_layer("stage2_block0_add").input[1]
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype("float32")
    x, y = keras.Model(model.input, [block_input, shortcut])(images)
    expected = np.zeros((2, 4, 4, 32), "float32")
    expected[..., 8:24] = x[:, ::2, ::2]
    np.testing.assert_array_equal(y, expected)
    assert np.any(expected)


def test_strides_of_bottlenecks_are_on_the_3x3(shared):
    model = shared("resnet50")
    strides = [
        model.get_layer(f"stage2_block0_conv{index}").strides for index in (1, 2, 3)
    ]
    assert strides == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("size", [7, 8])
def test_small_and_odd_images(size):
    model = models.build("resnet20", input_shape=(size, size, 1), classes=3)
    logits = model(np.zeros((2, size, size, 1), "float32"))
    assert logits.shape == (2, 3)


def test_vgg_heads():
    small = models.build("vgg16", input_shape=(64, 64, 1), classes=3)
    assert small.get_layer("logits").kernel.shape == (512, 3)
    dense = models.build("vgg16", input_shape=(64, 64, 1), classes=3, hidden=(16,))
    assert dense.get_layer("hidden1").kernel.shape == (4 * 512, 16)
    assert dense.get_layer("logits").kernel.shape == (16, 3)


def test_outputs_are_logits():
    model = tiny()
    images = np.random.default_rng(0).normal(size=(16, 8, 8, 1)).astype("float32")
    assert model.get_layer("logits").activation is keras.activations.linear
    assert np.min(model(images)) < 0


def test_batch_norm_has_pytorchs_constants(shared):
    norms = [
        x for x in shared("resnet20").layers if isinstance(x, layers.BatchNormalization)
    ]
    assert {(x.epsilon, x.momentum) for x in norms} == {(1e-5, 0.9)}


@pytest.mark.parametrize("name", ["resnet20", "mobilenet"])
def test_weight_decay_is_l2_in_the_gradient_of_kernels_alone(name):
    import tensorflow as tf

    strength = 0.01
    model = models.build(name, **TINY, weight_decay=strength)
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        penalty = tf.add_n(model.losses)
    gradients = tape.gradient(penalty, [v.value for v in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        decayed = variable.name == "kernel" and "depthwise" not in variable.path
        assert (gradient is not None) == decayed, variable.path
        if decayed:
            np.testing.assert_allclose(gradient, strength * variable.numpy(), rtol=1e-5)


def test_no_weight_decay():
    assert tiny(weight_decay=0.0).losses == []


def test_depthwise_kernels_have_he_initialisation(shared):
    model = shared("mobilenet")
    deviation = np.std(model.get_layer("block12_depthwise_conv").kernel)
    assert deviation == pytest.approx(math.sqrt(2 / 9), rel=0.05)


@pytest.mark.parametrize("shortcut", ["zero_pad", "projection"])
def test_reloads_without_custom_objects(tmp_path, shortcut):
    model = tiny(shortcut=shortcut)
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype("float32")
    np.testing.assert_array_equal(reloaded(images), model(images))
    assert [x.name for x in reloaded.layers] == [x.name for x in model.layers]


# === Registry ===


@pytest.mark.parametrize("name", ["resnet32", "resnet18", "mobilenet", "vgg16"])
def test_defaults_can_be_overridden(name):
    model = models.build(name, input_shape=[32, 32, 1], classes=7)
    assert model.input_shape == (None, 32, 32, 1)
    assert model.output_shape == (None, 7)
    assert model.name == name


def test_names():
    cifar = [f"resnet{depth}" for depth in (20, 32, 44, 56, 110)]
    imagenet = [f"resnet{depth}" for depth in (18, 34, 50, 101, 152)]
    assert sorted(models.names()) == sorted([*cifar, *imagenet, "mobilenet", "vgg16"])


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "mobilenet", "vgg16"])
def test_default_classes(shared, name):
    assert models.default_classes(name) == shared(name).output_shape[-1]
    assert models.default_input_shape(name) == shared(name).input_shape[1:]


def test_unknown_name():
    with pytest.raises(ValueError, match=r"Did you mean 'resnet56'.*name='ResNet-56'"):
        models.build("ResNet-56")
    with pytest.raises(ValueError, match=r"one of: resnet20, .*name='x'") as error:
        models.targets("x")
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize(
    "name, options, error, message",
    [
        ("resnet20", {"alpha": 2}, TypeError, r"options are: .*shortcut.* alpha=2$"),
        ("resnet20", {"depth": 56}, TypeError, r"`depth` is not .* depth=56$"),
        ("resnet20", {"shortcut": "B"}, ValueError, r"`shortcut` .* shortcut='B'$"),
        ("resnet20", {"classes": 0}, ValueError, r"`classes` .* classes=0$"),
        ("resnet20", {"weight_decay": -1}, ValueError, r"weight_decay=-1$"),
        ("resnet20", {"input_shape": (8, 8)}, ValueError, r"input_shape=\(8, 8\)$"),
        ("mobilenet", {"alpha": 0}, ValueError, r"`alpha` .* alpha=0$"),
        ("vgg16", {"input_shape": (8, 8, 1)}, ValueError, r"=\(8, 8, 1\)$"),
    ],
)
def test_wrong_options(name, options, error, message):
    with pytest.raises(error, match=message):
        models.build(name, **options)


def test_wrong_depths():
    with pytest.raises(ValueError, match=r"6 \* n \+ 2 .* depth=54$"):
        models.cifar_resnet(54)
    with pytest.raises(ValueError, match=r"\[18, 34, 50, 101, 152\].* depth=56$"):
        models.imagenet_resnet(56)
