"""The examples in docstrings run, and really prune."""

import inspect
import re
import textwrap
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf

BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def documented():
    """Yields the public objects, and what public modules and classes define."""
    for name in resrep_tf.__all__:
        found = getattr(resrep_tf, name)
        yield name, found
        inside = []
        if isinstance(found, ModuleType):
            inside = [
                (key, value)
                for key, value in vars(found).items()
                if getattr(value, "__module__", None) == found.__name__
            ]
        elif inspect.isclass(found):
            inside = [(k, v) for k, v in vars(found).items() if callable(v)]
        for key, value in inside:
            if not key.startswith("_"):
                yield f"{name}.{key}", value


def examples():
    for name, found in documented():
        for _, code in BLOCK.findall(inspect.getdoc(found) or ""):
            yield pytest.param(textwrap.dedent(code), id=name)


def network():
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(6, 3, padding="same", use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Conv2D(6, 3, activation="relu", name="second")(x)
    outputs = L.Dense(3, activation="softmax")(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


@pytest.fixture
def names():
    """What an example may take for granted."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 8, 8, 1)), rng.integers(0, 3, 80)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model = network()
    model.compile("sgd", loss)
    pruner = resrep_tf.wrap(model)
    pruner.compile("sgd", loss)
    for compactor in pruner.compactors:
        compactor.kernel.assign(np.eye(6) * [1, 0, 1, 0, 1, 0])
    return {
        "keras": keras,
        "resrep_tf": resrep_tf,
        "criteria": resrep_tf.criteria,
        "minimal_structure": resrep_tf.minimal.minimal_structure,
        "model": model,
        "pruner": pruner,
        "data": data,
        "train": data,
        "validation": data,
        "test_batches": [(x, y)],
        "loss": loss,
    }


def test_there_are_examples():
    assert {"wrap", "convert", "plan", "ChannelSelection"} <= {
        example.id for example in examples()
    }


@pytest.mark.parametrize("code", list(examples()))
def test_an_example_does_what_it_says(code, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "report.json" in code:
        pytest.skip("needs the report of a run")
    exec(compile(code, "docstring", "exec"), names)
    if "slim" in names:
        before, after = (resrep_tf.count_flops(names[n]) for n in ("model", "slim"))
        assert after < before
    if "flops_target=0.5" in code and "slim" in names:
        assert after <= 0.5 * before
