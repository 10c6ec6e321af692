import re

import numpy as np
import pytest

from resrep_tf import models
from support.models.torch_files import CIFAR, RESNET50, torch_state, write_safetensors

TINY = {"input_shape": (8, 8, 1), "classes": 3}


def tiny(builder=models.cifar_resnet, depth=8, **options):
    return builder(depth, **TINY | options)


def randomise(model, seed=0):
    """Gives every weight, statistics included, a value of its own."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(0.1 + rng.random(variable.shape, "float32"))


def values(model):
    return [variable.numpy() for variable in model.weights]


def same(left, right):
    return all(np.array_equal(x, y) for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize(
    "builder, options, convention",
    [
        (models.cifar_resnet, {}, CIFAR),
        (models.cifar_resnet, {"shortcut": "projection"}, CIFAR),
        (models.imagenet_resnet, {"depth": 18}, ((2,) * 4, 2, "fc", "downsample")),
        (models.imagenet_resnet, {"depth": 50}, RESNET50),
    ],
)
def test_safetensors(tmp_path, builder, options, convention):
    model = tiny(builder, **options)
    randomise(model)
    expected = values(model)
    write_safetensors(tmp_path / "w.safetensors", torch_state(model, *convention))
    randomise(model, seed=1)
    models.load_weights(model, tmp_path / "w.safetensors")
    assert same(values(model), expected)


@pytest.mark.parametrize("dtype, error", [("F64", 0), ("F16", 1e-3), ("BF16", 1e-2)])
def test_safetensors_of_other_precisions(tmp_path, dtype, error):
    model = tiny()
    randomise(model)
    expected = values(model)
    write_safetensors(tmp_path / "w.safetensors", torch_state(model, *CIFAR), dtype)
    randomise(model, seed=1)
    models.load_weights(model, str(tmp_path / "w.safetensors"))
    for loaded, original in zip(values(model), expected, strict=True):
        np.testing.assert_allclose(loaded, original, rtol=error)


def test_safetensors_that_do_not_fit_change_nothing(tmp_path):
    model = tiny()
    state = torch_state(model, *CIFAR)
    randomise(model)
    before = values(model)
    state["linear.weight"] = np.zeros((10, 64), "float32")
    state["extra.weight"] = state.pop("bn1.running_var")
    path = tmp_path / "w.safetensors"
    write_safetensors(path, state)
    with pytest.raises(ValueError) as error:
        models.load_weights(model, path)
    message = str(error.value)
    assert "Missing in the file: bn1.running_var. " in message
    assert "Not in the model: extra.weight. " in message
    assert "linear.weight (model: (64, 3), file: (64, 10)). " in message
    assert message.endswith(f"Received: path={str(path)!r}, model='resnet8'")
    assert same(values(model), before)


def test_a_long_list_of_wrong_weights_is_cut(tmp_path):
    path = tmp_path / "w.safetensors"
    write_safetensors(path, torch_state(tiny(), *CIFAR))
    with pytest.raises(ValueError, match=r"bn2.bias and 22 more\. Received") as error:
        models.load_weights(tiny(depth=14), path)
    assert len(str(error.value)) < 600


def test_safetensors_for_another_architecture(tmp_path):
    path = tmp_path / "w.safetensors"
    write_safetensors(path, {})
    with pytest.raises(ValueError, match=r"'block0_depthwise_conv'.*='mobilenet'"):
        models.load_weights(models.build("mobilenet", **TINY), path)


@pytest.mark.parametrize("cut", [0, 5, 100, -4])
def test_incomplete_safetensors(tmp_path, cut):
    model, path = tiny(), tmp_path / "w.safetensors"
    write_safetensors(path, torch_state(model, *CIFAR))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=re.escape(f"Received: path={str(path)!r}")):
        models.load_weights(model, path)


def save(model, path):
    model.save(path) if path.suffix == ".keras" else model.save_weights(path)


@pytest.mark.parametrize("file", ["model.keras", "model.weights.h5"])
def test_keras_files(tmp_path, file):
    model = tiny()
    randomise(model)
    expected = values(model)
    save(model, tmp_path / file)
    randomise(model, seed=1)
    models.load_weights(model, tmp_path / file)
    assert same(values(model), expected)


@pytest.mark.parametrize("file", ["model.keras", "model.weights.h5"])
@pytest.mark.parametrize(
    "other", [{"depth": 14}, {"shortcut": "projection"}, {"classes": 4}]
)
def test_keras_files_that_do_not_fit_change_nothing(tmp_path, file, other):
    source = tiny(**other)
    randomise(source)
    path = tmp_path / file
    save(source, path)
    model = tiny()
    before = values(model)
    with pytest.raises(ValueError, match="are not those of the model") as error:
        models.load_weights(model, path)
    assert str(error.value).endswith(f"Received: path={str(path)!r}, model='resnet8'")
    assert same(values(model), before)


def test_keras_file_names_the_layers_that_do_not_fit(tmp_path):
    tiny(classes=4).save(tmp_path / "model.keras")
    message = r"logits\.weights\[0\] \(model: \(64, 3\), file: \(64, 4\)\)"
    with pytest.raises(ValueError, match=message):
        models.load_weights(tiny(), tmp_path / "model.keras")


def test_paths_that_are_no_weights(tmp_path):
    with pytest.raises(ValueError, match=r"must end with .*path='w\.pth'$"):
        models.load_weights(tiny(), "w.pth")
    missing = str(tmp_path / "w.keras")
    with pytest.raises(FileNotFoundError, match=re.escape(f"path={missing!r}")):
        models.load_weights(tiny(), missing)
