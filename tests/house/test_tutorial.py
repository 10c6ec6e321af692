"""The tutorial runs from its first cell to its last, on small generated images."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from support.checks import assert_plain
from support.web import documentation
from support.web.pages import DOCS

CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
SETTINGS = 'tags=["parameters"]'


def run_tutorial(folder, **settings) -> dict:
    """Executes the cells, with other settings than those of the page."""
    _, *cells = CELL.split((DOCS / "tutorial.py").read_text(encoding="utf-8"))
    kinds = [kind.strip() for kind in cells[::2]]
    assert kinds.count(SETTINGS) == 1
    documentation.write_images(folder / "images", {"train": 12, "val": 4}, size=32)
    names = {}
    for kind, code in zip(kinds, cells[1::2], strict=True):
        exec(compile(code, "tutorial.py", "exec"), names)
        if kind == SETTINGS:
            assert {*settings} < {*names}
            names |= settings
    return names


def check(names, folder, printed):
    model, slim = names["model"], keras.models.load_model(folder / "slim.keras")
    assert_plain(slim)
    most = (1 - names["flops_target"]) * resrep_tf.count_flops(model)
    assert resrep_tf.count_flops(slim) <= most
    predict = resrep_tf.export.load(folder / "slim.tflite")
    assert predict.dtype == "int8"
    assert (folder / "slim.tflite").stat().st_size == names["exported"].bytes
    images, _ = next(iter(names["validation"]))
    np.testing.assert_allclose(predict(images), slim(images), atol=0.1)
    # What it prints last is what Keras itself measures.
    metrics = names["model"].evaluate(names["validation"], return_dict=True, verbose=0)
    assert f"trained: {metrics['accuracy']:.2%}" in printed
    assert f"int8: {names['accuracy']['pruned, int8']:.2%}" in printed


def small(include_top, weights, input_shape, pooling):
    """A network with the arguments of those of keras.applications."""
    assert (include_top, weights, pooling) == (False, None, "avg")
    inputs = keras.Input(input_shape)
    x = inputs
    for strides in (2, 1):
        x = L.Conv2D(8, 3, strides=strides, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    return keras.Model(inputs, L.GlobalAveragePooling2D()(x))


QUICK = {
    "weights": None,
    "size": (32, 32),
    "batch_size": 8,
    "head_epochs": 1,
    "base_epochs": 1,
    "pruning_epochs": 3,
}


def test_the_tutorial_runs_with_a_small_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tf.config.run_functions_eagerly(True)
    try:
        names = run_tutorial(tmp_path, network=small, **QUICK)
    finally:
        tf.config.run_functions_eagerly(False)
    check(names, tmp_path, capsys.readouterr().out)


@pytest.mark.slow
def test_the_tutorial_runs_with_its_own_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run_tutorial(tmp_path, **QUICK)
    check(names, tmp_path, capsys.readouterr().out)
