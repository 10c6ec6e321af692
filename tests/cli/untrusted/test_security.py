"""Code that is planted in files is not run."""

import json
import os
import zipfile

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.export.reading.keras_file import load_keras
from resrep_tf.train.checkpoints import Checkpoints


def _model(*more):
    inputs = keras.Input((3,))
    x = L.Dense(2, name="dense")(inputs)
    for layer in more:
        x = layer(x)
    return keras.Model(inputs, x)


def _rewritten(path, change):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    change(config["config"]["layers"][1])
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_a_lambda_is_not_run(tmp_path):
    trace = tmp_path / "ran"
    path = tmp_path / "model.keras"
    _model(L.Lambda(lambda x, where=str(trace): (os.makedirs(where), x)[1])).save(path)
    trace.rmdir()  # Building the model has run it.
    with pytest.raises(ValueError, match="is a Lambda"):
        load_keras(path)
    assert not trace.exists()


def _entry(trace, **names):
    return {**names, "config": f"open({str(trace)!r}, 'w')", "registered_name": None}


PLANTED = {
    "builtins": {"module": "builtins", "class_name": "eval"},
    "os": {"module": "os", "class_name": "system"},
    "function": {"module": "builtins", "class_name": "function"},
    "subprocess": {"module": "subprocess", "class_name": "Popen"},
}


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("place", ["layer", "initializer", "activation"])
def test_code_in_a_configuration_is_not_run(kind, place, tmp_path):
    trace, path = tmp_path / "ran", tmp_path / "model.keras"
    _model().save(path)
    planted = _entry(trace, **PLANTED[kind])

    def change(layer):
        if place == "layer":
            layer.update(planted)
        else:
            key = "kernel_initializer" if place == "initializer" else place
            layer["config"][key] = planted

    _rewritten(path, change)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_keras(path)
    assert not trace.exists()


class _Planted:
    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return (open, (self.trace, "w"))


def test_a_pickle_is_not_run(tmp_path):
    trace = tmp_path / "ran"
    objects = np.array([_Planted(trace)], object)
    np.savez(tmp_path / "base-000000001.npz", meta=objects, v00000=objects)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert Checkpoints(tmp_path, keep=1).newest() is None
    (tmp_path / "base-000000001.npz").write_bytes(objects.dumps())
    with pytest.warns(UserWarning, match="cannot be read"):
        assert Checkpoints(tmp_path, keep=1).newest() is None
    assert not trace.exists()
