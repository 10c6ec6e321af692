"""The training command, from the command line to the files it leaves behind."""

import contextlib
import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import resrep_tf
from resrep_tf import data
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.unforgotten import unforgotten
from resrep_tf.convert import command as convert
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.evaluate import command as evaluate
from resrep_tf.train import pipeline, training

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "base.keras",
    "metrics.csv",
    "pruned.keras",
    "pruned.tflite",
    "pruner.keras",
    "report.html",
    "report.json",
    "run.flags",
    "saved_model",
    "tensorboard",
}
BASE_EPOCHS, EPOCHS, STEPS, TARGET = 2, 4, 22, 0.4
ACCURACY = "top-1 accuracy"


def small_model(classes=10):
    inputs = keras.Input((8, 8, 1), name="image")
    x = inputs
    for index, width in enumerate((8, 12)):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(name=f"bn{index}")(x)
        x = layers.MaxPooling2D()(layers.ReLU()(x))
    outputs = layers.Dense(classes, name="logits")(layers.Flatten()(x))
    return keras.Model(inputs, outputs, name="small")


def command(function, *arguments) -> str:
    """Runs a command in this process and returns what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        function([str(argument) for argument in arguments])
    return printed.getvalue()


def process(module, *arguments, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        **kwargs,
    )


def load(path: Path) -> keras.Model:
    return keras.models.load_model(path, compile=False)


def digits() -> np.ndarray:
    images, _ = next(iter(data.load("digits", batch_size=50).evaluation()))
    return images.numpy()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("model") / "small.keras"
    small_model().save(path)
    return path


@pytest.fixture(scope="module")
def flags(model_file) -> list[str]:
    return [
        f"--arch={model_file}",
        "--dataset=digits",
        f"--base_epochs={BASE_EPOCHS}",
        f"--epochs={EPOCHS}",
        "--batch_size=64",
        f"--flops_target={TARGET}",
    ]


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory) -> tuple[Path, str]:
    """A finished run's folder and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, command(pipeline.run, *flags, f"--output={folder}")


@pytest.fixture(scope="module")
def report(finished) -> dict:
    return json.loads((finished[0] / "report.json").read_text())


# === A finished run ===


def test_the_folder_holds_everything_and_nothing_else(finished):
    assert {path.name for path in finished[0].iterdir()} == FILES


def test_what_is_printed_to_a_file_is_short_and_says_what_goes_on(finished):
    lines = finished[1].splitlines()
    for name in ("pruned.keras", "saved_model", "pruned.tflite"):
        assert f"Exporting {name}" in lines
    # A line for each epoch, none for its batches or those of its evaluation.
    assert sum(line.startswith("22/22 - ") for line in lines) == BASE_EPOCHS + EPOCHS
    assert sum(line.startswith("6/6 - ") for line in lines) == 2  # Before and after.
    assert not any(line.startswith(("1/", "2/")) for line in lines)


def test_someone_who_watches_sees_bars(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "verbosity", lambda: 1)
    printed = command(
        pipeline.run,
        *flags,
        *("--base_epochs=1", "--epochs=0", "--steps_per_epoch=2", "--eval_steps=2"),
        f"--output={tmp_path}",
    )
    training, scores = printed.split("Evaluating the base")
    # The bar of the epoch, that of its evaluation, and the first one again.
    marks = ("Training the base", "/step", "\x1b[K", "/batch", "val_loss")
    places = [training.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "2/2" in scores


def test_the_table_compares_before_and_after(finished, report):
    table = finished[1].partition("before")[2]
    for label in (
        "FLOPs (multiply-adds)",
        "parameters",
        "size on disk",
        "latency, batch 1 ",
        "latency, batch 32 ",
        ACCURACY,
    ):
        assert label in table
    assert f"{report['before']['flops']:,}" in table
    assert f"{report['after']['accuracy']:.2%}" in table


def test_the_report_says_what_the_files_are(finished, report):
    folder = finished[0]
    for name, file in (("before", "base.keras"), ("after", "pruned.keras")):
        model = load(folder / file)
        assert report[name]["flops"] == resrep_tf.count_flops(model)
        assert report[name]["params"] == model.count_params()
        assert report[name]["bytes"] == (folder / file).stat().st_size
        assert set(report[name]["latency"]) == {"1", "32"}
    removed = 1 - report["after"]["flops"] / report["before"]["flops"]
    assert removed == pytest.approx(report["conversion"]["flops_removed"])
    assert removed >= TARGET
    assert report["after"]["bytes"] < report["before"]["bytes"]


def test_metrics_have_one_row_for_each_epoch(finished):
    with open(finished[0] / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [("base", epoch) for epoch in range(1, BASE_EPOCHS + 1)]
    expected += [("prune", epoch) for epoch in range(1, EPOCHS + 1)]
    assert [(row["phase"], int(row["epoch"])) for row in rows] == expected
    assert all(int(row["step"]) == STEPS * int(row["epoch"]) for row in rows)
    assert float(rows[-1]["flops_removed"]) >= TARGET
    assert float(rows[-1]["forgotten"]) == 1
    assert float(rows[-1]["learning_rate"]) == pytest.approx(0, abs=1e-8)
    assert 0 < float(rows[0]["val_accuracy"]) < 1


def test_tensorboard_gets_scalars_norms_and_widths(finished, report):
    values = {}
    for path in (finished[0] / "tensorboard" / "prune").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                values[value.tag] = tf.make_ndarray(value.tensor), value.metadata
    targets = [
        c.name for c in resrep_tf.wrap(load(finished[0] / "base.keras")).compactors
    ]
    for compactor in targets:
        histogram, metadata = values[f"norms/{compactor}"]
        layer = load(finished[0] / "pruner.keras").get_layer(compactor)
        assert histogram[:, 2].sum() == layer.width
        assert metadata.plugin_data.plugin_name == "histograms"
    widths = {
        layer["name"]: layer["new_width"] for layer in report["conversion"]["layers"]
    }
    found = {tag[6:]: int(v) for tag, (v, _) in values.items() if tag[:6] == "width/"}
    assert found == {name: widths[name] for name in found}
    assert len(found) == len(targets)
    scalars = {
        tag for tag, (_, m) in values.items() if m.plugin_data.plugin_name == "scalars"
    }
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} <= scalars
    assert {"flops_removed", "forgotten"} <= scalars
    assert float(values["flops_removed"][0]) >= TARGET


def test_pruning_is_lossless(finished):
    folder = finished[0]
    images = digits()
    wrapped = load(folder / "pruner.keras")(images, training=False)
    slim = load(folder / "pruned.keras")(images, training=False)
    np.testing.assert_allclose(wrapped, slim, atol=1e-4)


def test_the_saved_model_needs_no_resrep_tf(finished, tmp_path):
    images = digits()
    np.save(tmp_path / "images.npy", images)
    script = (
        "import sys; sys.modules['resrep_tf'] = sys.modules['keras'] = None\n"
        "import numpy as np, tensorflow as tf\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "serve = model.signatures['serving_default']\n"
        "images = tf.constant(np.load(sys.argv[2]))\n"
        "parts = [images[:7], images[7:]]\n"
        "outputs = [list(serve(image=part).values())[0] for part in parts]\n"
        "np.save(sys.argv[3], np.concatenate(outputs))\n"
    )
    arguments = [
        finished[0] / "saved_model",
        tmp_path / "images.npy",
        tmp_path / "out.npy",
    ]
    subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    expected = load(finished[0] / "pruned.keras")(images, training=False)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


@pytest.mark.parametrize("form", ["pruned.keras", "saved_model", "pruned.tflite"])
def test_evaluate_finds_the_accuracy_of_every_form(form, finished, report):
    printed = command(evaluate.run, f"--model={finished[0] / form}", "--dataset=digits")
    assert f"{ACCURACY} {report['after']['accuracy']:.2%}" in printed
    assert "(360 images)" in printed
    assert "latency, batch 32: " in printed


def test_tflite_agrees_with_keras(finished, tmp_path):
    from resrep_tf.evaluate.accuracy import load_predictor

    images = digits()
    dataset = data.load("digits", batch_size=50)
    lite = load_predictor(str(finished[0] / "pruned.tflite"), dataset)(images)
    expected = load(finished[0] / "pruned.keras")(images, training=False)
    np.testing.assert_allclose(lite, expected, atol=1e-4)


def test_the_flagfile_repeats_the_run_from_another_folder(
    finished, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = finished[0]
    command(pipeline.run, f"--flagfile={folder / 'run.flags'}", "--output=again")
    metrics = (folder / "metrics.csv").read_text()
    assert (tmp_path / "again" / "metrics.csv").read_text() == metrics
    first, again = load(folder / "pruned.keras"), load(tmp_path / "again/pruned.keras")
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_convert_repeats_the_conversion(finished, tmp_path):
    target = tmp_path / "new" / "slim.keras"
    pruner = finished[0] / "pruner.keras"
    printed = command(convert.run, f"--pruner={pruner}", f"--output={target}")
    assert "removed" in printed
    first, again = load(finished[0] / "pruned.keras"), load(target)
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(CommandError, match="`--output` must be a new file"):
        convert.run([f"--pruner={pruner}", f"--output={target}"])
    command(convert.run, f"--pruner={pruner}", f"--output={tmp_path / 'folder'}")
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {
        "pruned.keras",
        "pruned.tflite",
        "report.json",
        "saved_model",
    }


def test_another_run_is_not_overwritten(finished, flags):
    before = (finished[0] / "run.flags").read_text()
    expected = r"holds another run: --seed=0, now 7\. .*Received: --output="
    with pytest.raises(CommandError, match=expected):
        pipeline.run([*flags, "--seed=7", f"--output={finished[0]}"])
    assert (finished[0] / "run.flags").read_text() == before


def test_a_run_that_is_complete_only_shows_its_table_again(finished, flags):
    times = {path: path.stat().st_mtime_ns for path in finished[0].iterdir()}
    printed = command(pipeline.run, *flags, f"--output={finished[0]}")
    assert "This run is complete" in printed
    assert printed.partition("\n\n")[2] == finished[1].partition("\n\n")[2]
    assert times == {path: path.stat().st_mtime_ns for path in finished[0].iterdir()}


# === Other runs ===


def test_without_epochs_only_the_base_is_made(flags, tmp_path):
    printed = command(
        pipeline.run,
        *flags,
        "--epochs=0",
        "--base_epochs=1",
        "--steps_per_epoch=2",
        "--eval_steps=1",
        f"--output={tmp_path}",
    )
    assert ACCURACY in printed
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


def test_masked_channels_that_are_left_are_named():
    pruner = resrep_tf.wrap(small_model())
    masks = [np.ones(c.width) for c in pruner.compactors]
    assert unforgotten(pruner, 1e-5) == ""
    masks[0][:3] = 0
    pruner.set_masks(masks)
    kernel = np.array(pruner.compactors[0].kernel)
    kernel[:, 0] = 0
    pruner.compactors[0].kernel.assign(kernel)
    note = unforgotten(pruner, 1e-5)
    assert note.startswith("NOTE: 2 of 3 masked channels are not forgotten yet")
    for advice in ("--drop_masked", "--epochs", "--snap", "--schedule=auto"):
        assert advice in note


def test_a_run_that_is_too_short_says_so(flags, tmp_path):
    short = [
        "--schedule=paper",
        "--base_epochs=0",
        "--epochs=1",
        "--steps_per_epoch=3",
        "--warmup_epochs=0",
        "--selection_interval=1",
    ]
    printed = command(pipeline.run, *flags, *short, f"--output={tmp_path / 'kept'}")
    assert "fits                no. " in printed
    assert "masked channels are not forgotten yet" in printed
    pruner = tmp_path / "kept" / "pruner.keras"
    dropped = tmp_path / "slim.keras"
    printed = command(
        convert.run, f"--pruner={pruner}", f"--output={dropped}", "--drop_masked"
    )
    assert "not forgotten yet" not in printed
    kept = load(tmp_path / "kept" / "pruned.keras")
    assert resrep_tf.count_flops(load(dropped)) < resrep_tf.count_flops(kept)


def test_a_loss_that_is_not_a_number_stops_the_run(flags, tmp_path):
    with pytest.raises(CommandError, match="no longer a number"):
        command(
            pipeline.run,
            *flags,
            "--base_learning_rate=1e30",
            "--steps_per_epoch=5",
            f"--output={tmp_path}",
        )


def test_step_schedule_divides_by_ten():
    rate = training.learning_rate(0.1, "step", [2, 3], steps_per_epoch=10, epochs=4)
    values = [float(rate(step)) for step in (0, 20, 21, 30, 31, 40)]
    np.testing.assert_allclose(values, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert training.learning_rate(0.1, "constant", [], 10, 4) == 0.1


# === As processes ===


def test_absent_imagenet_is_one_clear_line(tmp_path):
    done = process(
        "resrep_tf.train",
        "--arch=resnet50",
        "--flops_target=0.545",
        f"--data_dir={tmp_path}",
        f"--output={tmp_path / 'run'}",
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("error: `--dataset`: 'imagenet2012' is not prepared")
    assert str(tmp_path) in message
    assert not (tmp_path / "run").exists()


def test_explain_is_a_command():
    done = process("resrep_tf.explain", "--arch=resnet20")
    assert done.returncode == 0, done.stderr
    assert "`resnet20` has 40,551,040 FLOPs" in done.stdout
    assert "RuntimeWarning" not in done.stderr


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
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["conversion"]["flops_removed"] >= 0.545


@pytest.mark.slow
def test_mixed_precision_exports_float32(tmp_path):
    command(
        pipeline.run,
        "--mixed_precision=bfloat16",
        "--base_epochs=1",
        "--epochs=1",
        "--steps_per_epoch=6",
        "--drop_masked",
        f"--output={tmp_path}",
    )
    assert {path.name for path in tmp_path.iterdir()} == FILES
    for file in ("base.keras", "pruned.keras"):
        weighted = [layer for layer in load(tmp_path / file).layers if layer.weights]
        assert {layer.compute_dtype for layer in weighted} == {"float32"}
