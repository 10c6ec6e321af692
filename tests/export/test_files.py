"""Files and folders that are there whole or not at all, whenever Ctrl-C comes."""

import shutil
import signal
import sys

import keras
import numpy as np
import pytest
from keras import layers

import resrep_tf
from resrep_tf.export import files
from resrep_tf.export.exporting import FORMATS
from support.interrupting import Moments


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """A process that was started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _write_file(path):
    with files.atomic(path) as temporary:
        temporary.write_text("new")


def _write_folder(path):
    with files.atomic(path) as temporary:
        (temporary / "inner").mkdir(parents=True)
        (temporary / "inner" / "a").write_text("new")


def _content(path):
    inner = path / "inner" / "a" if path.is_dir() else path
    return inner.read_text() if inner.exists() else None


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("write", [_write_file, _write_folder])
def test_ctrl_c_at_every_moment(write, before, tmp_path):
    """Either the old content is there or the new one, and nothing else."""
    path = tmp_path / "made"
    moments = Moments("resrep_tf.export.files", "contextlib", __name__)
    count, found = 0, set()
    while True:
        if before is not None:
            write(path)
            inner = path / "inner" / "a" if path.is_dir() else path
            inner.write_text(before)
        count += 1
        over = moments.interrupt(count, lambda: write(path))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert {left.name for left in tmp_path.iterdir()} <= {"made"}
        found.add(_content(path))
        if over:
            break
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert count > 30 and found == {before, "new"}


def test_a_signal_that_waited_is_not_lost(tmp_path):
    with pytest.raises(KeyboardInterrupt), files.Signals():
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done


@pytest.mark.slow
@pytest.mark.parametrize("format", ["keras", "saved_model", "tflite", "int8"])
def test_ctrl_c_leaves_nothing_of_an_export(format, tmp_path, monkeypatch):
    for name in ("out", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    inputs = keras.Input((8, 8, 1))
    x = layers.Flatten()(layers.Conv2D(2, 3)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    images = np.random.default_rng(0).normal(size=(8, 8, 8, 1)).astype("float32")
    path = tmp_path / "out" / f"m{FORMATS[format]}"
    moments = Moments("resrep_tf.export", "tempfile")

    def write():
        resrep_tf.export(model, path, format, calibration=images)

    write()
    total = moments.count(write)
    assert total > 100
    steps = 30 if format == "keras" else 6
    streams = sys.stdout, sys.stderr
    for step in range(steps):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        over = moments.interrupt(1 + int((step + 0.5) * total / steps), write)
        left = {each.name for each in (tmp_path / "out").iterdir()}
        assert left in (set(), {path.name}) and not (over and not left)
        assert (sys.stdout, sys.stderr) == streams
        if left:  # It is whole.
            resrep_tf.export.load(path)(images)
        # TensorFlow removes its own when Python ends.
        temporary = {each.name for each in (tmp_path / "tmp").iterdir()}
        assert all(name.startswith("__autograph") for name in temporary)
