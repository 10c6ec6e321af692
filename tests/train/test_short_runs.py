"""Runs of the training command that are short, odd or slow."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import resrep_tf
from resrep_tf.cli.errors import CommandError
from resrep_tf.convert import command as convert
from resrep_tf.train import pipeline
from resrep_tf.train.methods.resrep import advice
from support import runs
from support.latency import made_up_table
from support.models.small import small_model
from support.runs import call, digits_network, load, process


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    return runs.quick_flags(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset=digit"], "`--dataset`: `name` must be one of: digits"),
        (["--dataset=folder:none"], "no folder"),
        (["--dataset=npz:none.npz"], "There is no such file"),
        (["--batch_size=5000"], "`batch_size` must not exceed the 1437"),
        (["--image_size=16"], "`image_size` must be None for 'digits'"),
        (["--arch_options=shortcut=none"], "`shortcut` must be one of"),
        (["--arch_options=widen=2"], "`widen` is not an option of 'resnet20'"),
        (["--arch_options=classes=3"], "the data decide `classes`"),
        (["--targets=nothing"], "`targets` matches none"),
        (["--flops_target=0.999"], "`--flops_target`: At most"),
        (["--min_width=60"], "`--flops_target`: At most"),
        (["--params_target=0.999"], "`--params_target`: At most"),
        (["--latency_target=0.3"], "`--latency_target` and `latency_table` must be"),
        (
            ["--latency_target=0.3", "--latency_table=none.json"],
            "`--latency_table`: The latency table cannot be read",
        ),
    ],
)
def test_what_cannot_work_is_found_before_training(arguments, message, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(CommandError) as error:
        pipeline.run([*arguments, f"--output={folder}", "--dataset=digits"][::-1])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("measured", "arguments", "message"),
    [
        (
            small_model,
            ["--latency_target=0.3"],
            "`--latency_table` was measured for another model",
        ),
        (
            digits_network,
            ["--latency_target=0.999"],
            "`--latency_target`: At most",
        ),
        (
            digits_network,
            ["--latency_target=0.3", "--params_target=0.999"],
            "`--params_target`: At most",
        ),
    ],
    ids=["another model", "out of reach", "the other out of reach"],
)
def test_a_latency_that_cannot_be_is_found_before_training(
    measured, arguments, message, flags, tmp_path
):
    table = tmp_path / "latency.json"
    made_up_table(resrep_tf.ChannelGraph(measured()), overhead=1e-9).save(table)
    arguments = [*arguments, f"--latency_table={table}", f"--output={tmp_path / 'run'}"]
    with pytest.raises(CommandError) as error:
        pipeline.run([*flags, *arguments])
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_without_epochs_only_the_base_is_made(flags, tmp_path):
    printed = call(
        pipeline.run,
        *flags,
        "--epochs=0",
        "--base_epochs=1",
        "--steps_per_epoch=2",
        "--eval_steps=1",
        f"--output={tmp_path}",
    )
    assert "top-1 accuracy" in printed
    assert "(64 images)" in printed
    assert {path.name for path in tmp_path.iterdir()} == {
        "base.keras",
        "metrics.csv",
        "run.flags",
        "tensorboard",
    }
    # No optimizer, and the weights are the trained ones.
    saved = keras.models.load_model(tmp_path / "base.keras")
    assert getattr(saved, "optimizer", None) is None
    fresh = load(Path(flags[0].partition("=")[2])).get_weights()
    trained = saved.get_weights()
    assert not np.array_equal(fresh[0], trained[0])


@pytest.mark.parametrize(
    ("base_epochs", "wraps"),
    # Where the base is trained, its first wrap shows only whether flags fit.
    [(0, 1), pytest.param(1, 2, marks=pytest.mark.slow)],
)
def test_a_base_is_not_wrapped_more_often_than_needed(
    flags, tmp_path, monkeypatch, base_epochs, wraps
):
    found, wrap = [], resrep_tf.wrap
    monkeypatch.setattr(
        resrep_tf, "wrap", lambda *args: found.append(wrap(*args)) or found[-1]
    )
    short = ["--epochs=1", "--steps_per_epoch=2", "--eval_steps=1", "--noexport"]
    base = f"--base_epochs={base_epochs}"
    call(pipeline.run, *flags, *short, base, f"--output={tmp_path}")
    assert len(found) == wraps
    # What was wrapped last is what was trained and saved.
    saved = load(tmp_path / "pruner.keras")
    assert int(found[-1].optimizer.iterations) == 2
    for a, b in zip(found[-1].get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_parameters_are_a_target(flags, tmp_path):
    short = ["--base_epochs=0", "--epochs=4", "--params_target=0.3"]
    short += ["--noexport", "--noshrink", f"--output={tmp_path}"]
    printed = call(pipeline.run, *flags[:-1], *short)
    assert "30.0% fewer parameters, about" in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["flops_target"] is None
    assert report["plan"]["params_target"] == 0.3
    assert report["after"]["params"] <= 0.7 * report["before"]["params"]


def test_masked_channels_that_are_left_are_named():
    pruner = resrep_tf.wrap(digits_network())
    masks = [np.ones(c.width) for c in pruner.compactors]
    assert advice(pruner, 1e-5) == ""
    masks[0][:3] = 0
    pruner.set_masks(masks)
    kernel = np.array(pruner.compactors[0].kernel)
    kernel[:, 0] = 0
    pruner.compactors[0].kernel.assign(kernel)
    note = advice(pruner, 1e-5)
    assert note.startswith("NOTE: 2 of 3 masked channels are not forgotten yet")
    for way in ("--drop_masked", "--epochs", "--snap", "--schedule=auto"):
        assert way in note


def test_a_run_that_is_too_short_says_so(flags, tmp_path):
    short = [
        "--schedule=paper",
        "--base_epochs=0",
        "--epochs=1",
        "--steps_per_epoch=3",
        "--warmup_epochs=0",
        "--selection_interval=1",
        "--noexport",
    ]
    printed = call(pipeline.run, *flags, *short, f"--output={tmp_path / 'kept'}")
    assert "fits                no. " in printed
    assert "masked channels are not forgotten yet" in printed
    pruner = tmp_path / "kept" / "pruner.keras"
    dropped = tmp_path / "slim.keras"
    printed = call(
        convert.run, f"--pruner={pruner}", f"--output={dropped}", "--drop_masked"
    )
    assert "not forgotten yet" not in printed
    kept = load(tmp_path / "kept" / "pruned.keras")
    assert resrep_tf.count_flops(load(dropped)) < resrep_tf.count_flops(kept)


def test_a_loss_that_is_not_a_number_stops_the_run(flags, tmp_path):
    with pytest.raises(CommandError, match="no longer a number"):
        call(
            pipeline.run,
            *flags,
            "--base_learning_rate=1e30",
            "--steps_per_epoch=5",
            f"--output={tmp_path}",
        )


@pytest.mark.slow
def test_the_first_command_prunes_by_half_nearly_without_loss(tmp_path):
    done = process("resrep_tf.train", f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["arch"] == "resnet20"
    assert report["before"]["accuracy"] > 0.97
    assert report["after"]["accuracy"] > report["before"]["accuracy"] - 0.015
    assert 0.5 <= report["conversion"]["flops_removed"] < 0.53


@pytest.mark.slow
def test_resnet50_end_to_end_on_a_folder_of_jpegs(tmp_path):
    rng = np.random.default_rng(0)
    for split, images in (("train", 100), ("val", 10)):
        for label in ("ants", "bees"):
            folder = tmp_path / "jpegs" / split / label
            folder.mkdir(parents=True)
            for number in range(images):
                noise = rng.integers(0, 256, (48, 60, 3), np.uint8)
                jpeg = tf.io.encode_jpeg(noise).numpy()
                (folder / f"{number}.jpg").write_bytes(jpeg)
    done = process(
        "resrep_tf.train",
        "--arch=resnet50",
        "--flops_target=0.545",
        f"--dataset=folder:{tmp_path / 'jpegs'}",
        "--image_size=32",
        "--batch_size=8",
        "--base_epochs=1",
        "--epochs=1",
        "--steps_per_epoch=6",
        "--drop_masked",
        f"--output={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == runs.FILES
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["conversion"]["flops_removed"] >= 0.545


@pytest.mark.slow
def test_mixed_precision_exports_float32(tmp_path):
    call(
        pipeline.run,
        "--mixed_precision=bfloat16",
        "--base_epochs=1",
        "--epochs=1",
        "--steps_per_epoch=6",
        "--drop_masked",
        f"--output={tmp_path}",
    )
    assert {path.name for path in tmp_path.iterdir()} == runs.FILES
    for file in ("base.keras", "pruned.keras"):
        weighted = [layer for layer in load(tmp_path / file).layers if layer.weights]
        assert {layer.compute_dtype for layer in weighted} == {"float32"}
