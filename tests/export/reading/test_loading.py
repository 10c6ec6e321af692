"""Files that are missing, damaged or something else: one line, and never a crash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers as L

from resrep_tf.export import FORMATS, export, load
from resrep_tf.export.reading import tflite_file

BY_TENSORFLOW = [name for name in FORMATS if name != "onnx"]
SHAPE = (6, 6, 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small model in every format."""
    folder = tmp_path_factory.mktemp("files")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            L.Conv2D(3, 3, activation="relu"),
            L.GlobalAveragePooling2D(),
            L.Dense(2, activation="softmax"),
        ]
    )
    paths = {}
    for name in BY_TENSORFLOW:
        paths[name] = folder / f"{name}{FORMATS[name]}"
        export(model, paths[name], name, np.ones((4, *SHAPE), "float32"))
    return paths


def refused(path):
    """Loads what must be refused; returns the error's text."""
    with pytest.raises(ValueError) as caught:
        load(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert text.startswith("`path` ")
    assert f"Received: path={str(path)!r}" in text
    return text


@pytest.mark.parametrize("suffix", [".keras", ".tflite", ".onnx", ""])
def test_missing(suffix, tmp_path):
    assert "must exist" in refused(tmp_path / f"none{suffix}")


@pytest.mark.parametrize("suffix", [".keras", ".tflite"])
def test_empty_and_text(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"")
    assert "is an empty file" in refused(path)
    path.write_text("This is no model, but a text of some length.\n" * 20)
    assert refused(path)


def test_something_else(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"0123")
    assert "must be a .keras" in refused(tmp_path / "a.h5")
    (tmp_path / "folder").mkdir()
    assert "folder of a SavedModel" in refused(tmp_path / "folder")


def test_images_of_another_shape(files):
    with pytest.raises(ValueError, match=r"tflite\.tflite, whose input is .*Received"):
        load(files["tflite"])(np.zeros((1, 6, 6, 3)))


def test_home_folder(files, monkeypatch):
    monkeypatch.setenv("HOME", str(files["keras"].parent))
    assert load("~/keras.keras").input_shape == (None, *SHAPE)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["keras", "tflite", "int8"])
def test_truncated(files, name, share, tmp_path):
    content = files[name].read_bytes()
    path = tmp_path / files[name].name
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


@pytest.mark.parametrize("inner", ["saved_model.pb", "variables/variables.index"])
def test_truncated_saved_model(files, inner, tmp_path):
    path = tmp_path / "saved"
    shutil.copytree(files["saved_model"], path)
    content = (path / inner).read_bytes()
    (path / inner).write_bytes(content[: len(content) // 2])
    refused(path)


def test_flipped_bits_in_keras_file(files, tmp_path):
    content = files["keras"].read_bytes()
    for place in np.random.default_rng(0).integers(0, len(content), 5):
        works_or_is_refused(flipped(content, 8 * int(place)), tmp_path / "a.keras")


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def works_or_is_refused(content, path):
    path.write_bytes(content)
    try:
        predictor = load(path)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
        assert str(path) in str(error)
        return False
    outputs = predictor(np.ones((2, *predictor.input_shape[1:]), "float32"))
    assert len(outputs) == 2
    return True


# === Fuzzing ===

# Each case is loaded by a process that survives all of them, or the test fails.
FUZZ = """
import sys
import numpy as np
from resrep_tf.export import load
for path in sys.argv[1:]:
    try:
        predictor = load(path)
    except ValueError as error:
        text = str(error)
        assert path in text and len(text.splitlines()) == 1, text
        print("refused", flush=True)
        continue
    shape = [3 if n is None else n for n in predictor.input_shape]
    predictor(np.random.default_rng(0).normal(size=shape))
    print("works", flush=True)
"""


def fuzzed(content, cuts, flips, seed, folder):
    """Writes damaged copies of a file; returns their paths."""
    rng = np.random.default_rng(seed)
    cases = [content[: int(rng.integers(len(content)))] for _ in range(cuts)]
    cases += [
        flipped(content, int(b)) for b in rng.integers(8 * len(content), size=flips)
    ]
    paths = [folder / f"{number}.tflite" for number in range(len(cases))]
    for path, case in zip(paths, cases, strict=True):
        path.write_bytes(case)
    return [str(path) for path in paths]


def survived(paths):
    """Loads files in another process; returns what became of each."""
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", FUZZ, *paths]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    found = done.stdout.split()
    assert done.returncode == 0, f"{paths[len(found)]}: {done.stderr[-2000:]}"
    return found


def test_fuzzed_tflite(files, tmp_path):
    found = survived(fuzzed(files["tflite"].read_bytes(), 8, 12, 0, tmp_path))
    assert found[:8] == ["refused"] * 8
    assert len(found) == 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tflite", "int8"])
def test_fuzzed_tflite_at_length(files, name, tmp_path):
    found = survived(fuzzed(files[name].read_bytes(), 200, 150, 1, tmp_path))
    assert len(found) == 350
    # The last bytes of a file may be padding.
    assert found[:200].count("refused") >= 198
    assert 0 < found[200:].count("refused") < 150


def test_most_cuts_are_seen_without_a_trial(files):
    content, path = files["tflite"].read_bytes(), Path("a.tflite")
    tflite_file.check(content, path)
    seen = 0
    for length in range(len(content)):
        try:
            tflite_file.check(content[:length], path)
        except ValueError:
            seen += 1
    assert seen > 0.9 * len(content)
