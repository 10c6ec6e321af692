"""A finished run of the training command: all that it leaves behind."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import resrep_tf
from resrep_tf import data
from resrep_tf.cli.errors import CommandError
from resrep_tf.convert import command as convert
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.evaluate import command as evaluate
from resrep_tf.train import pipeline
from support import runs
from support.runs import call, events, load

# The training steps of an epoch.
STEPS = 22


ACCURACY = "top-1 accuracy"


def digits() -> np.ndarray:
    images, _ = next(iter(data.load("digits", batch_size=50).evaluation()))
    return images.numpy()


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    return runs.quick_flags(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory) -> tuple[Path, str]:
    """A finished run's folder and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, call(pipeline.run, *flags, f"--output={folder}")


@pytest.fixture(scope="module")
def report(finished) -> dict:
    return json.loads((finished[0] / "report.json").read_text())


def test_the_folder_holds_everything_and_nothing_else(finished):
    assert {path.name for path in finished[0].iterdir()} == runs.FILES


def test_what_is_printed_to_a_file_is_short_and_says_what_goes_on(finished):
    printed = finished[1]
    lines = printed.splitlines()
    for name in ("pruned.keras", "saved_model", "pruned.tflite"):
        assert f"Exporting {name}" in lines
    # A line for each epoch, none for its batches or those of its evaluation.
    assert (
        sum(line.startswith("epoch ") for line in lines)
        == runs.BASE_EPOCHS + runs.EPOCHS
    )
    assert sum(line.startswith("6/6 - ") for line in lines) == 2  # Before and after.
    assert not any(line.startswith(("1/", "2/")) for line in lines)
    assert re.search(r"epoch 1/2, \d+:\d\d left: .*\bloss \d", printed)


def test_someone_who_watches_sees_bars(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "verbosity", lambda: 1)
    printed = call(
        pipeline.run,
        *flags,
        *("--base_epochs=1", "--epochs=0", "--steps_per_epoch=2", "--eval_steps=2"),
        f"--output={tmp_path}",
    )
    training, scores = printed.split("Evaluating the base")
    marks = ("Training the base", "\x1b[Kepoch 1/1  [", "100%", "val ")
    places = [training.index(mark) for mark in marks]
    assert places == sorted(places)
    # One line for the whole phase.
    assert training.partition("Training the base, 1 epochs\n")[2].count("\n") == 1
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
    for file in report["exports"]:
        assert re.search(rf"{file['file']} +{1e-3 * file['bytes']:,.1f}\b", table)


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
    assert removed >= runs.TARGET
    assert report["after"]["bytes"] < report["before"]["bytes"]


def test_metrics_have_one_row_for_each_epoch(finished):
    with open(finished[0] / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [("base", epoch) for epoch in range(1, runs.BASE_EPOCHS + 1)]
    shrunk = 1 + sum(row["phase"] == "prune" for row in rows)
    assert 1 < shrunk < runs.EPOCHS
    expected += [("prune", epoch) for epoch in range(1, shrunk)]
    expected += [("recover", epoch) for epoch in range(shrunk, runs.EPOCHS + 1)]
    assert [(row["phase"], int(row["epoch"])) for row in rows] == expected
    assert all(int(row["step"]) == STEPS * int(row["epoch"]) for row in rows)
    assert float(rows[-1]["flops_removed"]) >= runs.TARGET
    assert float(rows[-1]["forgotten"]) == 1
    assert float(rows[-1]["learning_rate"]) == pytest.approx(0, abs=1e-8)
    assert 0 < float(rows[0]["val_accuracy"]) < 1


def test_the_report_follows_the_channels_to_their_end(report):
    widths = {
        layer["name"]: layer["new_width"] for layer in report["conversion"]["layers"]
    }
    ends = {
        name: int(layer["kept"].split()[-1])
        for name, layer in report["channels"]["layers"].items()
    }
    assert ends == {name: widths[name] for name in ends}
    assert min(ends.values()) < 16


def test_tensorboard_gets_scalars_norms_and_widths(finished, report):
    values = {
        value.tag: (tf.make_ndarray(value.tensor), value.metadata)
        for phase, _, value in events(finished[0])
        if phase == "prune"
    }
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
    assert float(values["flops_removed"][0]) >= runs.TARGET


def test_pruning_is_lossless(finished):
    folder = finished[0]
    images = digits()
    trained = load(folder / "shrunk.keras")(images, training=False)
    slim = load(folder / "pruned.keras")(images, training=False)
    np.testing.assert_allclose(trained, slim, atol=1e-4)


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
    printed = call(evaluate.run, f"--model={finished[0] / form}", "--dataset=digits")
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
    call(
        pipeline.run,
        f"--flagfile={folder / 'run.flags'}",
        "--output=again",
        "--noexport",
    )
    metrics = (folder / "metrics.csv").read_text()
    assert (tmp_path / "again" / "metrics.csv").read_text() == metrics
    first, again = load(folder / "pruned.keras"), load(tmp_path / "again/pruned.keras")
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_report_that_is_gone_is_made_again(flags, finished, report, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    for name in ("report.json", "report.html"):
        (folder / name).unlink()
    call(pipeline.run, *flags, f"--output={folder}")
    again = json.loads((folder / "report.json").read_text())
    for key in ("channels", "plan", "conversion"):
        assert again[key] == report[key] is not None
    pages = [(each / "report.html").read_text() for each in (finished[0], folder)]
    assert pages[0].count("<figure") == pages[1].count("<figure") > 3
    metrics = [(each / "metrics.csv").read_text() for each in (finished[0], folder)]
    assert metrics[0] == metrics[1]


def test_convert_repeats_the_conversion(finished, tmp_path):
    target = tmp_path / "new" / "slim.keras"
    pruner = finished[0] / "pruner.keras"
    printed = call(convert.run, f"--pruner={pruner}", f"--output={target}")
    assert "removed" in printed
    first, again = resrep_tf.convert(load(pruner)), load(target)
    widths = [weight.shape for weight in load(finished[0] / "pruned.keras").weights]
    assert [weight.shape for weight in again.weights] == widths
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(CommandError, match="`--output` must be a new file"):
        convert.run([f"--pruner={pruner}", f"--output={target}"])
    call(convert.run, f"--pruner={pruner}", f"--output={tmp_path / 'folder'}")
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {
        "pruned.keras",
        "pruned.tflite",
        "report.json",
        "saved_model",
    }


def test_convert_writes_the_formats_that_are_asked_for(finished, tmp_path):
    pruner = f"--pruner={finished[0] / 'pruner.keras'}"
    more = ["--export=int8,tflite_float16", f"--output={tmp_path / 'folder'}"]
    with pytest.raises(CommandError, match="`--dataset` must be given with"):
        convert.run([pruner, *more])
    printed = call(convert.run, pruner, *more, "--dataset=digits")
    report = json.loads((tmp_path / "folder" / "report.json").read_text())
    forms = {each["format"]: each for each in report["exports"]}
    assert list(forms) == ["keras", "tflite_float16", "int8"]
    for each in forms.values():
        file = tmp_path / "folder" / each["file"]
        assert each["bytes"] == file.stat().st_size
        assert f"Exporting {file.name}\n  {each['format']}, " in printed
        assert each["verified_on"] == "64 calibration inputs"
        assert each["class_agreement"] > 0.9
        assert str(tmp_path) not in str(each)
    assert forms["keras"]["difference"] < 1e-5 < forms["int8"]["difference"]


def test_the_report_has_the_exported_files(finished, report):
    forms = [each["format"] for each in report["exports"]]
    assert forms == ["keras", "saved_model", "tflite"]
    page = (finished[0] / "report.html").read_text(encoding="utf-8")
    page = page.replace("<wbr>", "")
    assert "Files to deploy" in page and "pruned.tflite" in page
    assert "latency" not in report["exports"][0]  # pruned.keras is the model.
    for each in report["exports"][1:]:
        assert set(each["latency"]) == {"1", "32"}
        assert f"{1e3 * each['latency']['32']:.2f}</td>" in page


def test_the_accuracy_of_an_int8_file_is_in_the_report(flags, tmp_path):
    quick = ["--epochs=1", "--base_epochs=0", "--steps_per_epoch=2", "--drop_masked"]
    quick += ["--noshrink", "--export=int8", f"--output={tmp_path / 'run'}"]
    call(pipeline.run, *flags, *quick)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    _, int8 = report["exports"]
    model = f"--model={tmp_path / 'run' / 'pruned_int8.tflite'}"
    printed = call(evaluate.run, model, "--dataset=digits", "--nolatency")
    assert f"{ACCURACY} {int8['accuracy']:.2%}" in printed
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == (runs.FILES - {"saved_model", "pruned.tflite", "shrunk.keras"}) | {
        int8["file"]
    }


def test_another_run_is_not_overwritten(finished, flags):
    before = (finished[0] / "run.flags").read_text()
    expected = r"holds another run: --seed=0, now 7\. .*Received: --output="
    with pytest.raises(CommandError, match=expected):
        pipeline.run([*flags, "--seed=7", f"--output={finished[0]}"])
    assert (finished[0] / "run.flags").read_text() == before


def test_a_run_that_is_complete_only_shows_its_table_again(finished, flags):
    times = {path: path.stat().st_mtime_ns for path in finished[0].iterdir()}
    printed = call(pipeline.run, *flags, f"--output={finished[0]}")
    assert "This run is complete" in printed
    assert printed.partition("\n\n")[2] == finished[1].partition("\n\n")[2]
    assert times == {path: path.stat().st_mtime_ns for path in finished[0].iterdir()}
