"""Methods of the command: their phases, shrinking and the teacher."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError
from resrep_tf.train import pipeline
from resrep_tf.train.loop import Loop
from support import runs
from support.checks import assert_plain
from support.runs import call, events, load


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    return [*runs.quick_flags(tmp_path_factory.mktemp("model")), "--noexport"]


@pytest.fixture(scope="module")
def shrunk(flags, tmp_path_factory):
    """The folder of a run with the defaults, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "shrunk"
    return folder, call(pipeline.run, *flags, f"--output={folder}")


def distilled(folder) -> dict[str, list[float]]:
    """The distillation's loss of every epoch, by phase."""
    found: dict[str, list[float]] = {}
    for phase, _, value in events(folder):
        if value.tag == "distillation_loss":
            found.setdefault(phase, []).append(float(tf.make_ndarray(value.tensor)))
    return found


def test_a_run_can_have_a_teacher(flags, shrunk, tmp_path):
    call(pipeline.run, *flags, "--teacher=base", f"--output={tmp_path}")
    assert_taught(tmp_path, shrunk[0], {"prune", "recover"})


@pytest.mark.slow
def test_every_method_can_have_a_teacher(flags, tmp_path):
    for teacher in ("base", "none"):
        more = ["--method=l2", f"--teacher={teacher}", f"--output={tmp_path / teacher}"]
        call(pipeline.run, *flags, *more)
    assert_taught(tmp_path / "base", tmp_path / "none", {"prune"})


def assert_taught(with_teacher, without, phases):
    losses = distilled(with_teacher)
    assert set(losses) == phases
    assert np.isfinite(np.concatenate(list(losses.values()))).all()
    assert not distilled(without)
    taught, alone = (load(f / output.PRUNED) for f in (with_teacher, without))
    assert_plain(taught)
    kernels = [model.get_layer("logits").kernel for model in (taught, alone)]
    assert kernels[0].shape != kernels[1].shape or not np.allclose(*kernels)


def test_a_teacher_from_a_file(flags, tmp_path):
    teacher = runs.save(tmp_path / "teacher.keras", runs.digits_network)
    short = ["--base_epochs=0", "--epochs=1", "--noshrink"]
    short += [f"--output={tmp_path / 'run'}"]
    call(pipeline.run, *flags, *short, f"--teacher={teacher}")
    assert distilled(tmp_path / "run")


@pytest.mark.parametrize("shape", [(8, 8, 3), None])
def test_a_teacher_that_does_not_fit_is_refused(flags, tmp_path, shape):
    path = tmp_path / "teacher.keras"
    if shape is not None:
        runs.save(path, runs.one_convolution, shape=shape)
    with pytest.raises(CommandError, match="`--teacher`"):
        pipeline.run([*flags, f"--teacher={path}", f"--output={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_shrinking_leaves_a_trainable_network(shrunk):
    folder, printed = shrunk
    assert "BatchNorms restored" in printed
    model = load(folder / output.SHRUNK)
    assert_plain(model)
    kinds = [type(layer) for layer in model.layers]
    assert kinds.count(keras.layers.BatchNormalization) == 2
    slim = load(folder / output.PRUNED)
    assert keras.layers.BatchNormalization not in map(type, slim.layers)
    widths = [each.get_layer("conv0").filters for each in (model, slim)]
    assert widths[0] == widths[1] < 8
    report = json.loads((folder / output.REPORT).read_text())
    assert report["conversion"]["difference"] < 1e-4


@pytest.mark.parametrize("other", ["--noreset", "--compactor=filters"])
def test_shrinking_needs_compactors_that_forget(flags, tmp_path, other):
    with pytest.raises(CommandError, match="`--shrink` rebuilds the network"):
        pipeline.run([*flags, "--shrink", other, f"--output={tmp_path / 'run'}"])


def test_without_shrinking_the_wrapped_model_trains_to_the_end(flags, tmp_path):
    printed = call(pipeline.run, *flags, "--noshrink", f"--output={tmp_path}")
    assert "BatchNorms restored" not in printed
    assert not (tmp_path / output.SHRUNK).exists()


FILTERS = ("--noreset", "--compactor=filters", "--compactor_momentum=0.9")


@pytest.mark.parametrize(
    "method",
    [
        ["--noshrink"],
        ["--method=l2"],
        pytest.param([*FILTERS, "--remove=minimal"], marks=pytest.mark.slow),
    ],
)
def test_a_report_that_is_gone_is_made_without_training(
    method, flags, tmp_path, monkeypatch
):
    short = ["--base_epochs=1", "--epochs=1", "--steps_per_epoch=5"]
    arguments = [*flags, *method, *short, "--eval_steps=2", f"--output={tmp_path}"]
    call(pipeline.run, *arguments)
    report = json.loads((tmp_path / output.REPORT).read_text())
    metrics = (tmp_path / output.METRICS).read_bytes()
    weights = load(tmp_path / output.PRUNED).get_weights()
    (tmp_path / output.REPORT).unlink()
    monkeypatch.setattr(Loop, "run", lambda *_: pytest.fail("It trains again."))
    call(pipeline.run, *arguments)
    again = json.loads((tmp_path / output.REPORT).read_text())
    for key in ("conversion", "plan", "channels"):
        assert again[key] == report[key]
    for key in ("before", "after"):
        assert again[key]["accuracy"] == report[key]["accuracy"]
    assert (tmp_path / output.METRICS).read_bytes() == metrics
    found = load(tmp_path / output.PRUNED).get_weights()
    for one, two in zip(weights, found, strict=True):
        np.testing.assert_array_equal(one, two)
