"""Every Python block of every page runs, and does what the page says."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.rules.base import _RULES
from support.checks import assert_plain, assert_prunes_exactly
from support.web import documentation
from support.web.pages import blocks, pages

PAGE = "page"  # The name of the module that a page is.
# What is replaced to make the blocks of a page quick; all of it must occur.
QUICK = {
    "README.md": {"(224, 224)": "(16, 16)", "epochs=20": "epochs=3"},
    "docs/budgets.md": {'"litert", batch_size=1, threads=1': '"keras", rounds=2'},
    "docs/data.md": {"image_size=224": "image_size=16"},
    "docs/distributed.md": {"epochs=180": "epochs=1"},
    "docs/how_to.md": {
        "epochs=20, initial_epoch=12": "epochs=2, initial_epoch=1",
        "epochs=12": "epochs=1",
        "round_to=8": "round_to=2",
        "epochs=20": "epochs=1",
    },
    "docs/python.md": {
        'models.build("resnet20", digits.input_shape, digits.classes)': "small()",
        "digits.steps_per_epoch": "4",
        "epochs=15": "epochs=3",
    },
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which a reader stands: images, and a trained model."""
    monkeypatch.chdir(tmp_path)
    documentation.write_images(tmp_path, {"train": 32, "val": 4})
    documentation.write_trained(tmp_path / "trained.keras")
    return tmp_path


@pytest.fixture
def eager():
    """For a few steps, tracing takes far longer than training."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def own_rules():
    """Takes away the rules that a page registers."""
    yield
    for key in [key for key in _RULES if getattr(key, "__module__", "") == PAGE]:
        del _RULES[key]


def read(page: str, replaced: dict[str, str]) -> dict:
    """Runs a page's blocks in their order, in one namespace, and returns that."""
    names = {"__name__": PAGE, "tf": tf, "small": small, **documentation.names(20)}
    found = blocks(page, "python")
    for part in replaced:
        assert any(part in block.code for block in found), part
    for block in found:
        slim = names.get("slim")
        block.run(names, replaced)
        if names.get("slim") is not slim:
            before, after = (resrep_tf.count_flops(names[n]) for n in ("model", "slim"))
            assert after < before, f"{page}:{block.line} removes nothing"
    return names


def small() -> keras.Model:
    """In place of the large network of a page."""
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(8, 3, use_bias=False)(inputs)
    x = L.Conv2D(8, 3, use_bias=False)(L.ReLU()(L.BatchNormalization()(x)))
    x = L.GlobalAveragePooling2D()(L.ReLU()(L.BatchNormalization()(x)))
    return keras.Model(inputs, L.Dense(10)(x))


def check_readme(names, printed):
    lines = blocks("README.md", "python")[0].code.splitlines()
    assert len([line for line in lines if line and line[:6] != "import"]) <= 11
    assert "val_accuracy" in printed
    most = 0.5 * resrep_tf.count_flops(names["model"])
    for slim in (keras.models.load_model("slim.keras"), names["slim"]):
        assert_plain(slim)
        assert resrep_tf.count_flops(slim) <= most


def check_parts(names, printed):
    assert "compactor rows dropped" in printed
    assert names["report"].flops_removed >= 0.5
    assert_plain(keras.models.load_model("slim.keras"))
    assert Path("slim_savedmodel").is_dir()
    outputs = {
        name: np.concatenate([names[name](x) for x, _ in names["digits"].evaluation()])
        for name in ("pruner", "slim")
    }
    np.testing.assert_array_equal(*(o.argmax(-1) for o in outputs.values()))


def check_data(names, printed):
    for name in ("mine", "photos"):
        images, _ = next(iter(names[name].evaluation()))
        assert np.min(images) >= 0 and np.max(images) <= 1
    assert (names["mine"].classes, names["photos"].classes) == (10, 2)


def check_own_rule(names, printed):
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, name="target")(inputs)
    x = L.Conv2D(4, 3)(L.ReLU()(names["Affine"]()(x)))
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    _, slim, report = assert_prunes_exactly(model)
    assert slim.get_layer("target").filters < 6
    assert any(layer.folded for layer in report.layers)


CHECKS = {
    "README.md": check_readme,
    "docs/data.md": check_data,
    "docs/python.md": check_parts,
    "docs/rules.md": check_own_rule,
}


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page, "python")])
def test_the_blocks_of_a_page_run(page, folder, own_rules, eager, capsys):
    names = read(page, QUICK.get(page, {}))
    if page in CHECKS:
        CHECKS[page](names, capsys.readouterr().out)


@pytest.mark.slow
def test_the_parts_prune_as_they_stand(folder, capsys):
    names = read("docs/python.md", {})
    check_parts(names, capsys.readouterr().out)
    right = [
        np.argmax(names["slim"](x), -1) == y for x, y in names["digits"].evaluation()
    ]
    assert np.concatenate(right).mean() > 0.85


def test_no_page_is_missed():
    assert {*QUICK, *CHECKS} <= {page for page in pages() if blocks(page, "python")}
