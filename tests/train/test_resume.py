"""Runs that are stopped, killed or spoilt, and what becomes of them."""

import dataclasses
import errno
import random
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import resrep_tf
from resrep_tf import data
from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import EXIT_CODE, Interrupted, Interruption
from resrep_tf.cli.workers import start as start_workers
from resrep_tf.data.splits import RecordSplit
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train import pipeline, training
from resrep_tf.train import settings as settings_module
from resrep_tf.train.checkpoints import (
    Checkpoint,
    Checkpoints,
    Position,
    assign,
    values,
)
from resrep_tf.train.loop import Loop, build_state
from resrep_tf.train.metrics import EpochLog, MetricsFile

ROOT = Path(__file__).resolve().parents[2]
STEPS = 11
FLAGS = (
    *("--dataset=digits", "--flops_target=0.4", "--batch_size=32", "--epochs=3"),
    *("--base_epochs=2", f"--steps_per_epoch={STEPS}", "--eval_steps=3"),
    *("--checkpoint_interval=4", "--keep_checkpoints=2"),
)


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    """For a network with all that has a state: BatchNorm, Dropout's random numbers."""
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
    return [f"--arch={path}", *FLAGS]


@pytest.fixture(scope="module")
def uninterrupted(flags, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    pipeline.run([*flags, f"--output={folder}"])
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
    assert events(folder) == events(other)
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


def events(folder: Path) -> list:
    """All that TensorBoard would show, in order."""
    found = []
    for path in sorted(folder.glob("tensorboard/**/events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            if event.HasField("summary"):
                found.append((path.parent.name, event.step, str(event.summary)))
    assert found
    return found


def test_a_run_comes_to_the_same_result_after_a_signal_and_a_kill(
    flags, uninterrupted, tmp_path
):
    process = start(flags, tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == EXIT_CODE, printed
    assert "the same command goes on" in printed
    known = written(tmp_path)
    assert known

    process = start(flags, tmp_path)
    wait_for_checkpoint(process, tmp_path, known)
    process.kill()
    assert "Going on after epoch 0, step" in process.communicate()[0]

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


def test_filters_that_are_being_forgotten_come_to_the_same_result(
    flags, tmp_path, monkeypatch
):
    """Their plan depends on the norms they had at the start."""
    flags = [*flags, "--compactor=filters", "--compactor_momentum=0.9", "--drop_masked"]
    whole, part = tmp_path / "whole", tmp_path / "part"
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


def test_a_signal_at_any_stage_changes_nothing(
    flags, uninterrupted, tmp_path, monkeypatch
):
    """While an epoch is evaluated, the base, and while the result is exported."""
    flags = [*flags, f"--output={tmp_path}"]
    for where in (
        (evaluation, "_count_in_top"),
        (pipeline.Job, "evaluate"),
        (keras.Model, "export", lambda *args, **kwargs: "format" in kwargs),
    ):
        signal_at(monkeypatch, *where)
        with pytest.raises(Interrupted):
            pipeline.run(flags)
        monkeypatch.undo()
    assert (tmp_path / output.SAVED_MODEL).exists()
    assert not (tmp_path / output.TFLITE).exists()
    pipeline.run(flags)
    assert (tmp_path / output.TFLITE).exists()
    assert_same_results(uninterrupted, tmp_path)


def test_what_was_logged_but_not_saved_is_logged_again(tmp_path):
    """A run that was killed between its last epoch's log and its checkpoint."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    for start in (0, 1):
        file = MetricsFile(tmp_path / output.METRICS)
        log = EpochLog("prune", file, tmp_path / output.TENSORBOARD, start)
        log.set_model(model)
        log.set_params({"steps": 5})
        log.on_train_begin()
        for epoch in range(start, 2):
            log.on_epoch_end(epoch, {"loss": 1.0})
        log.on_train_end()
    steps = [step for _, step, text in events(tmp_path) if '"loss"' in text]
    assert steps == [5, 10]


def test_a_signal_waits_for_a_convenient_moment():
    interruption = Interruption()
    with interruption.watching():
        with pytest.raises(Interrupted), interruption.handled(at_once=False):
            signal.raise_signal(signal.SIGTERM)
            assert interruption.requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    interruption = Interruption()
    with interruption.watching(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("error", [RuntimeError("MISMATCH"), CommandError("full")])
def test_what_a_signal_leads_to_is_told_from_what_needs_attention(error):
    expected = CommandError if isinstance(error, CommandError) else Interrupted
    interruption = Interruption()
    with (
        pytest.raises(expected),
        interruption.watching(),
        interruption.handled(at_once=False),
    ):
        signal.raise_signal(signal.SIGTERM)
        raise error


# === Checkpoints ===


def checkpoint(step: int) -> Checkpoint:
    values = [np.full((3, 4), step, np.float32), np.array(step, np.int64)]
    return Checkpoint("prune", Position(1, step), [{"epoch": 1}], values)


@pytest.fixture
def store(tmp_path) -> Checkpoints:
    store = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (1, 2, 3):
        store.save(checkpoint(step), step)
    return store


def paths(store: Checkpoints) -> list[Path]:
    return sorted(store._folder.iterdir())


def test_the_newest_checkpoints_are_kept(store):
    assert [p.name for p in paths(store)] == [
        "prune-000000002.npz",
        "prune-000000003.npz",
    ]
    found = store.newest()
    assert (found.phase, found.position) == ("prune", Position(1, 3))
    assert found.rows == [{"epoch": 1}]
    for value, expected in zip(found.values, checkpoint(3).values, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """Changes one bit of a value."""
    place = content.index(np.full((3, 4), 3, np.float32).tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def empty(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_checkpoint_is_passed_over(store, damage):
    newest = paths(store)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match="prune-000000003.npz cannot be read"):
        assert store.newest().position == Position(1, 2)


def test_pruning_is_newer_than_the_base(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    store.save(dataclasses.replace(checkpoint(9), phase="base"), 9)
    store.save(checkpoint(1), 1)
    assert len(paths(store)) == 2
    assert store.newest().phase == "prune"


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    store.save(checkpoint(8), 8).write_bytes(b"")
    store.save(checkpoint(4), 4)
    assert [path.name for path in paths(store)] == ["prune-000000004.npz"]
    assert store.newest().position == Position(1, 4)


def test_a_full_disk_leaves_the_last_checkpoint(store, monkeypatch):
    def full(path, **arrays):
        path.write_bytes(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(CommandError, match=r"Cannot write .*No space left on device"):
        store.save(checkpoint(4), 4)
    assert len(paths(store)) == 2
    assert store.newest().position == Position(1, 3)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EROFS, "Read-only file system"),
        # As TensorFlow has them, when it exports or writes for TensorBoard.
        tf.errors.ResourceExhaustedError(None, None, "{{node}} No space left [Op:S]"),
        tf.errors.FailedPreconditionError(None, None, "Read-only file system"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("before")
    with (
        pytest.raises(CommandError, match=r"file\..*intact.*Received: .*(space|Read)"),
        output.atomic(path) as temporary,
    ):
        temporary.write_text("some")
        raise error
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_becomes_read_only_is_named(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("unlink", "write_text"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(CommandError, match=r"Cannot write .*Received: .*Read-only"):
        output.write_text(tmp_path / "file", "some")


def test_a_lost_file_of_records_is_named(tmp_path):
    path = tmp_path / "train.tfrecord"
    records = RecordSplit([str(path)], [3], shuffle_buffer=1).ordered()
    with (
        pytest.raises(CommandError, match=r"`--dataset`.*Received: .*train\.tfrecord"),
        evaluation.blame_images(data.load("digits", batch_size=50)),
    ):
        next(iter(records))


def test_a_checkpoint_of_another_model_is_refused():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    found = values(model)
    found[0] = found[0][:, :1]
    with pytest.raises(ValueError, match=r"kernel.*Received: \(3, 1\)"):
        assign(model, found)


def test_bfloat16_comes_back_from_a_checkpoint(tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="bfloat16")])
    model.compile("sgd", "mse")
    store, before = Checkpoints(tmp_path, keep=1), values(model)
    store.save(Checkpoint("base", Position(), [], before), 0)
    for variable in model.variables:
        variable.assign(variable + 1)
    assign(model, store.newest().values)
    np.testing.assert_array_equal(values(model)[0], before[0])


def test_two_processes_do_not_share_a_folder(tmp_path):
    (tmp_path / output.FLAGS).touch()
    with (
        output.locked(tmp_path),
        pytest.raises(CommandError, match="another process is working in it"),
        output.locked(tmp_path),
    ):
        pass
    with output.locked(tmp_path):
        pass


# === Losses that are not finite ===


def spoilt(steps: Collection[int]):
    """Training data with images of NaN at some steps."""
    whole = data.Dataset.train_from

    def train_from(self, step=0):
        def spoil(index, batch):
            bad = tf.reduce_any(index == tf.constant(list(steps), tf.int64))
            return tf.where(bad, np.nan, batch[0]), batch[1]

        return whole(self, step).enumerate(step).map(spoil)

    return train_from


def train(
    on_nan: str,
    wrapped: bool,
    saved: list[Position],
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> keras.Model:
    """Trains for 40 steps, and notes when checkpoints are written."""
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(6, 3, name="conv")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    callbacks, arguments = list(callbacks), {}
    if wrapped:
        model = resrep_tf.wrap(model, "conv")
        callbacks += [resrep_tf.ChannelSelection(0.3, 2, 5, schedule="auto")]
        arguments = {"snap": True}
    settings, _ = settings_module.parse([f"--on_nan={on_nan}"])
    model.compile(
        training.optimizer(0.1, 0.9, settings),
        **evaluation.compile_arguments(model, 10),
        **arguments,
    )
    workers = start_workers("none")
    build_state(model, workers.strategy)
    Loop(
        model,
        data.load("digits", batch_size=16),
        workers,
        epochs=2,
        steps_per_epoch=20,
        callbacks=callbacks,
        evaluate=lambda after_batch: {},
        save=saved.append,
        save_every=3,
        interruption=Interruption(),
        on_nan=on_nan,
        verbose=0,
    ).run(Position())
    return model


@pytest.mark.parametrize("wrapped", [False, True])
def test_bad_steps_are_skipped_without_a_trace(monkeypatch, capsys, wrapped):
    monkeypatch.setattr(data.Dataset, "train_from", spoilt({4, 5, 30}))
    saved = []
    model = train("skip", wrapped, saved)
    assert capsys.readouterr().out.count("step skipped") == 3
    assert saved[-1] == Position(2, 0)
    for value in values(model):
        assert np.isfinite(value).all()
    # Of 40 batches, three were no steps.
    assert int(model.optimizer.iterations) == 37


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_bad_step_ends_the_run_and_is_not_saved(monkeypatch, wrapped):
    monkeypatch.setattr(data.Dataset, "train_from", spoilt({5}))
    saved = []
    with pytest.raises(
        CommandError,
        match=r"after epoch 0, step 3\. Received: NaN or infinity in epoch 1, step 6",
    ):
        train("stop", wrapped, saved)
    assert saved == [Position(0, 3)]


class Overflow(keras.callbacks.Callback):
    """A step whose loss was a number still and whose result is none."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            bias = self.model.trainable_variables[1]
            bias.assign(np.full(bias.shape, np.inf))


def test_bad_weights_are_not_saved():
    saved = []
    with pytest.raises(CommandError, match=r"The weights are no longer.*step 6"):
        train("stop", wrapped=False, saved=saved, callbacks=[Overflow()])
    assert saved == [Position(0, 3)]


def test_bad_steps_without_end_are_not_skipped(monkeypatch):
    monkeypatch.setattr(data.Dataset, "train_from", spoilt(range(4, 40)))
    with pytest.raises(CommandError, match="in 21 steps in a row"):
        train("skip", wrapped=False, saved=[])
