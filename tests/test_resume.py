"""Runs that are killed, and come to the same result all the same."""

import random
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from resrep_tf.commands import output

ROOT = Path(__file__).resolve().parents[1]
FLAGS = (
    *("--dataset=digits", "--flops_target=0.4", "--batch_size=32", "--epochs=3"),
    *("--base_epochs=2", "--steps_per_epoch=23", "--eval_steps=3"),
    *("--checkpoint_interval=7", "--keep_checkpoints=2"),
)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    """A network with all that has a state: BatchNorm, and Dropout's random numbers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1), name="image")
    x = inputs
    for index, width in enumerate((8, 12)):
        x = layers.Conv2D(width, 3, padding="same", name=f"conv{index}")(x)
        x = layers.BatchNormalization(name=f"bn{index}")(x)
        x = layers.Dropout(0.1, name=f"dropout{index}")(layers.ReLU()(x))
        x = layers.MaxPooling2D(name=f"pool{index}")(x)
    outputs = layers.Dense(10, name="logits")(layers.Flatten()(x))
    path = tmp_path_factory.mktemp("model") / "small.keras"
    keras.Model(inputs, outputs, name="small").save(path)
    return path


@pytest.fixture(scope="module")
def uninterrupted(model_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    finish(model_file, folder)
    return folder


def start(model_file: Path, folder: Path) -> subprocess.Popen:
    flags = [f"--arch={model_file}", f"--output={folder}", *FLAGS]
    return subprocess.Popen(
        [sys.executable, "-m", "resrep_tf.train", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(model_file: Path, folder: Path) -> str:
    process = start(model_file, folder)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    return printed


def wait_for(process: subprocess.Popen, folder: Path, name: str) -> None:
    """Waits until a checkpoint of that name is there."""
    while not list((folder / output.CHECKPOINTS).glob(name)):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def assert_same_results(folder: Path, other: Path) -> None:
    """Bit by bit: metrics, weights, masks, both optimizers, structure."""
    one, two = ((f / output.METRICS).read_text() for f in (folder, other))
    assert one == two
    for name in (output.BASE, output.PRUNER, output.PRUNED):
        one, two = (keras.models.load_model(f / name) for f in (folder, other))
        assert one.get_config() == two.get_config()
        for model in (one, two):
            if name == output.PRUNER:
                model.all = model.variables + model.optimizer.variables
                model.all += model.compactor_optimizer.variables
            else:
                model.all = model.variables
        for a, b in zip(one.all, two.all, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), a.path)


def test_a_run_that_was_killed_comes_to_the_same_result(
    model_file, uninterrupted, tmp_path
):
    process = start(model_file, tmp_path)
    wait_for(process, tmp_path, "prune-00000003*")
    process.kill()
    process.communicate()
    assert not (tmp_path / output.REPORT).exists()
    assert "Going on after epoch 1, step" in finish(model_file, tmp_path)
    assert_same_results(uninterrupted, tmp_path)
    assert not (tmp_path / output.CHECKPOINTS).exists()


@pytest.mark.slow
def test_a_run_that_is_killed_at_twenty_moments_comes_to_the_same_result(
    model_file, uninterrupted, tmp_path
):
    moments = random.Random(0)
    kills = 0
    while kills < 20 and not (tmp_path / output.REPORT).exists():
        process = start(model_file, tmp_path)
        before = set(tmp_path.glob("checkpoints/*"))
        # Some time after it has got further than before, or is at the end.
        while process.poll() is None and set(tmp_path.glob("checkpoints/*")) == before:
            time.sleep(0.01)
        time.sleep(moments.expovariate(1 / 0.1))
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
    finish(model_file, tmp_path)
    assert kills >= 20
    assert_same_results(uninterrupted, tmp_path)
