"""Runs that are stopped or killed, and come to the same result."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import resrep_tf
from resrep_tf.cli import output
from resrep_tf.cli.interruption import EXIT_CODE, Interrupted
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train import job, pipeline
from resrep_tf.train.loop import Loop
from support import runs
from support.latency import flags_of
from support.runs import ROOT, digits_network, events

STEPS = 11


FLAGS = (
    *("--dataset=digits", "--batch_size=32", "--epochs=3"),
    *("--base_epochs=2", f"--steps_per_epoch={STEPS}", "--eval_steps=3"),
    *("--checkpoint_interval=4", "--keep_checkpoints=2"),
)


@pytest.fixture(scope="module", autouse=True)
def rewritten_graphs():
    """Graphs as in the processes that are started here, where bits are compared."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options(before)


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    """For a network with all that has a state: BatchNorm, Dropout's random numbers.

    With a teacher, and shrinking, which is the default.
    """
    network = network_flags(tmp_path_factory.mktemp("model"))
    return [*network, "--flops_target=0.4", "--teacher=base"]


def network_flags(folder: Path) -> list[str]:
    path = runs.save(folder / "small.keras", digits_network, dropout=0.1)
    return [f"--arch={path}", *FLAGS]


@pytest.fixture(scope="module")
def uninterrupted(flags, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    pipeline.run([*flags, f"--output={folder}"])
    assert (folder / output.SHRUNK).exists()
    return folder


def start(flags: list[str], folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "resrep_tf.train", *flags, f"--output={folder}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def written(folder: Path) -> set[Path]:
    """The checkpoints that are there, without one that is being written."""
    return set(folder.glob("checkpoints/[!.]*.npz"))


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, known=()) -> None:
    """Waits for a checkpoint that was not known before."""
    while not written(folder) - set(known):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def assert_same_results(folder: Path, other: Path) -> None:
    """Bit by bit: metrics, weights, masks, both optimizers, structure, events."""
    one, two = ((f / output.METRICS).read_text() for f in (folder, other))
    assert one == two
    shown = [[(p, s, str(v)) for p, s, v in events(f)] for f in (folder, other)]
    assert shown[0] == shown[1]
    for name in (output.BASE, output.PRUNER, output.PRUNED):
        one, two = (keras.models.load_model(f / name) for f in (folder, other))
        assert one.get_config() == two.get_config()
        for a, b in zip(variables(one), variables(two), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), a.path)


def variables(model: keras.Model) -> list[keras.Variable]:
    """All that a .keras file holds; not the state of random numbers."""
    found = list(model.weights)
    if isinstance(model, resrep_tf.ResRepModel):
        found += model.optimizer.variables + model.compactor_optimizer.variables
    return found


def test_a_run_comes_to_the_same_result_after_a_signal_and_an_end_without_one(
    flags, uninterrupted, tmp_path, monkeypatch
):
    process = start(flags, tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == EXIT_CODE, printed
    assert "the same command continues" in printed
    assert written(tmp_path)

    flags = [*flags, f"--output={tmp_path}"]
    kill_after(monkeypatch, 3 * STEPS)
    with pytest.raises(Killed):
        pipeline.run(flags)
    monkeypatch.undo()
    signal_at(monkeypatch, tf.lite.TFLiteConverter, "from_saved_model")
    with pytest.raises(Interrupted):
        pipeline.run(flags)
    monkeypatch.undo()
    assert_goes_on_with_the_export(flags, uninterrupted, tmp_path)
    assert not (tmp_path / output.CHECKPOINTS).exists()


@pytest.mark.slow
def test_a_run_comes_to_the_same_result_after_a_signal_and_a_kill(
    flags, uninterrupted, tmp_path
):
    process = start(flags, tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == EXIT_CODE, printed
    assert "the same command continues" in printed
    known = written(tmp_path)
    assert known

    process = start(flags, tmp_path)
    wait_for_checkpoint(process, tmp_path, known)
    process.kill()
    assert "Continuing after epoch 0, step" in process.communicate()[0]

    pipeline.run([*flags, f"--output={tmp_path}"])
    assert_same_results(uninterrupted, tmp_path)
    assert not (tmp_path / output.CHECKPOINTS).exists()


@pytest.mark.slow
def test_a_run_that_is_killed_at_twenty_moments_comes_to_the_same_result(
    flags, uninterrupted, tmp_path
):
    moments = random.Random(0)
    kills = 0
    while kills < 20:
        process = start(flags, tmp_path)
        known = written(tmp_path)
        # Not before it has got further, so that 20 kills do not take for ever, unless
        # training is over. Then some time later, anywhere.
        while process.poll() is None and not written(tmp_path) - known:
            if (tmp_path / output.PRUNER).exists():
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
    assert kills >= 20, process.communicate()[0]
    pipeline.run([*flags, f"--output={tmp_path}"])
    assert_same_results(uninterrupted, tmp_path)


class Killed(BaseException):
    """Ends a run as a kill does: nobody catches it."""


def kill_after(monkeypatch, steps: int) -> None:
    judge, left = Loop._judge, iter(range(steps))

    def killing(self, bad, position):
        judge(self, bad, position)
        if next(left, None) is None:
            raise Killed

    monkeypatch.setattr(Loop, "_judge", killing)


@pytest.mark.slow
def test_filters_that_are_being_forgotten_come_to_the_same_result(
    flags, tmp_path, monkeypatch
):
    """Their plan depends on the norms they had at the start."""
    flags = [*flags, "--compactor=filters", "--compactor_momentum=0.9", "--drop_masked"]
    assert_goes_on_after_a_kill(flags, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["params", "latency", "all"])
def test_every_budget_comes_to_the_same_result(budget, tmp_path, monkeypatch):
    flags = network_flags(tmp_path)
    model = runs.load(tmp_path / "small.keras")
    flags += flags_of(model, budget, tmp_path / "latency.json")
    assert_goes_on_after_a_kill(flags, tmp_path, monkeypatch)


def assert_goes_on_after_a_kill(flags, folder, monkeypatch):
    """Kills a run in the middle of pruning."""
    whole, part = folder / "whole", folder / "part"
    pipeline.run([*flags, f"--output={whole}"])
    kill_after(monkeypatch, 4 * STEPS)
    with pytest.raises(Killed):
        pipeline.run([*flags, f"--output={part}"])
    monkeypatch.undo()
    pipeline.run([*flags, f"--output={part}"])
    assert_same_results(whole, part)
    pruner = keras.models.load_model(part / output.PRUNER)
    assert any(np.asarray(c.mask).min() == 0 for c in pruner.compactors)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, STEPS, 2 * STEPS, 2 * STEPS + 5, 5 * STEPS])
def test_a_run_that_ends_at_any_step_comes_to_the_same_result(
    flags, uninterrupted, tmp_path, monkeypatch, steps
):
    kill_after(monkeypatch, steps)
    if steps < 5 * STEPS:
        with pytest.raises(Killed):
            pipeline.run([*flags, f"--output={tmp_path}"])
    monkeypatch.undo()
    pipeline.run([*flags, f"--output={tmp_path}"])
    assert_same_results(uninterrupted, tmp_path)


def signal_at(monkeypatch, owner, name: str, when=lambda *args, **kwargs: True) -> None:
    """Sends the process a SIGTERM where a function is called for the first time."""
    whole, sent = getattr(owner, name), []

    def signalling(*args, **kwargs):
        if not sent and when(*args, **kwargs):
            sent.append(True)
            signal.raise_signal(signal.SIGTERM)
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, signalling)


def assert_goes_on_with_the_export(flags, uninterrupted, folder):
    assert (folder / output.SAVED_MODEL).exists()
    assert not (folder / output.TFLITE).exists()
    pipeline.run(flags)
    assert (folder / output.TFLITE).exists()
    assert_same_results(uninterrupted, folder)


@pytest.mark.slow
def test_a_signal_at_any_stage_changes_nothing(
    flags, uninterrupted, tmp_path, monkeypatch
):
    """While an epoch is evaluated, the base, and while the result is exported."""
    flags = [*flags, f"--output={tmp_path}"]
    for where in (
        (evaluation, "_count_in_top"),
        (job.Job, "evaluate"),
        (tf.lite.TFLiteConverter, "from_saved_model"),
    ):
        signal_at(monkeypatch, *where)
        with pytest.raises(Interrupted):
            pipeline.run(flags)
        monkeypatch.undo()
    assert_goes_on_with_the_export(flags, uninterrupted, tmp_path)
