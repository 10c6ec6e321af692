"""The parts of the commands: flags, settings, models by name, files, tables."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from resrep_tf import data
from resrep_tf.cli import architectures, flagset, output
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.convert import command as convert
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.evaluate import command as evaluate
from resrep_tf.evaluate import latency
from resrep_tf.explain import command as explain
from resrep_tf.report.comparison import Measurements, table
from resrep_tf.study import command as study
from resrep_tf.train import pipeline, settings
from resrep_tf.train.loop import build_state

ROOT = Path(__file__).resolve().parents[2]
SHAPE, CLASSES = (8, 8, 1), 10


def parse(*arguments) -> settings.Settings:
    return settings.parse(arguments)[0]


def dense_model(shape=SHAPE, classes=CLASSES, activation=None, name="dense"):
    inputs = keras.Input(shape)
    x = layers.Conv2D(4, 3)(inputs)
    outputs = layers.Dense(classes, activation=activation)(layers.Flatten()(x))
    return keras.Model(inputs, outputs, name=name)


@pytest.fixture
def saved(tmp_path) -> Path:
    dense_model().save(tmp_path / "dense.keras")
    return tmp_path / "dense.keras"


# === Flags and settings ===


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--flops_target=1.5"],
            "`--flops_target` is the fraction of the FLOPs to remove",
        ),
        (["--flops_target=0"], "`--flops_target`"),
        (["--flops_target=half"], "--flops_target=half"),
        (["--flop_target=0.5"], "Did you mean: flops_target?"),
        (["resnet20"], "Every argument must be a flag"),
        (["--arch=resnet57"], "Did you mean 'resnet56'?"),
        (["--arch=keras:ResNet51", "--dataset=digits"], "'keras:ResNet"),
        (["--arch=keras:ResNet50"], "`--dataset` is needed"),
        (["--arch=none.keras", "--dataset=digits"], "an existing .keras file"),
        (["--arch_options=shortcut"], "`--arch_options` must be a list of name=value"),
        (["--init_weights=none.keras"], "`--init_weights` must be an existing file"),
        (["--base_epochs=0"], "`--init_weights` must be given"),
        (["--epochs=0", "--base_epochs=0"], "`--epochs` must be positive"),
        (["--epochs=-1"], "--epochs=-1"),
        (["--batch_size=0"], "--batch_size=0"),
        (["--learning_rate=0"], "`--learning_rate` must be positive"),
        (["--learning_rate=nan"], "`--learning_rate` must be positive"),
        (["--lasso_strength=0"], "`--lasso_strength` must be positive"),
        (["--epsilon=inf"], "`--epsilon` must be positive"),
        (["--remove=minimal"], "`--remove=minimal` goes with `--noreset`"),
        (["--momentum=1"], "`--momentum` must be at least 0 and less than 1"),
        (["--compactor_momentum=1.5"], "`--compactor_momentum`"),
        (["--warmup_epochs=inf"], "`--warmup_epochs` must be a finite number"),
        (["--weight_decay=nan"], "`--weight_decay` must be a finite number"),
        (["--seed=4294967296"], "[0, 4294967295]"),
        (["--lr_schedule=linear"], "--lr_schedule=linear"),
        (["--lr_schedule=step"], "`--lr_boundaries` must be given"),
        (["--lr_boundaries=3"], "and for nothing else"),
        (["--lr_schedule=step", "--lr_boundaries=9,3"], "rising numbers of epochs"),
        (["--base_lr_schedule=step", "--base_lr_boundaries=x"], "rising numbers"),
        (["--targets=("], "`--targets` must be paper, internal, all, or a regular"),
        (["--schedule=fast"], "--schedule=fast"),
        (["--compactor=tensor"], "--compactor=tensor"),
        (["--mixed_precision=int8"], "--mixed_precision=int8"),
    ],
)
def test_wrong_flags_are_one_line(arguments, message):
    with pytest.raises(CommandError) as error:
        parse(*arguments)
    text = str(error.value)
    assert message in text
    assert "\n" not in text
    assert "Received: " in text


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
        (["--arch_options=classes=3"], "`classes` follows from the data"),
        (["--targets=nothing"], "`targets` matches none"),
        (["--flops_target=0.999"], "`--flops_target`: At most"),
        (["--min_width=60"], "`--flops_target`: At most"),
    ],
)
def test_what_cannot_work_is_found_before_training(arguments, message, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(CommandError) as error:
        pipeline.run([*arguments, f"--output={folder}", "--dataset=digits"][::-1])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not folder.exists()


def test_defaults_follow_the_data_and_the_network(saved):
    chosen = parse()
    assert (chosen.arch, chosen.dataset) == ("resnet20", "digits")
    assert (chosen.schedule, chosen.snap, chosen.targets) == ("auto", True, "paper")
    chosen = parse("--arch=resnet56")
    assert (chosen.dataset, chosen.epochs, chosen.batch_size) == ("cifar10", 480, 64)
    assert chosen.base_lr_boundaries == (120, 180)
    chosen = parse("--arch=resnet50", "--flops_target=0.545")
    assert (chosen.dataset, chosen.epochs) == ("imagenet2012", 180)
    assert chosen.batch_size == 256
    chosen = parse(f"--arch={saved}", "--dataset=digits")
    assert (chosen.base_epochs, chosen.targets) == (0, "internal")
    assert chosen.weight_decay is None
    assert not parse("--schedule=paper").snap
    assert parse("--base_lr_schedule=constant", "--arch=resnet56").base_epochs == 240
    assert parse("--dataset=tfds:cifar10:3.0.2").epochs == 480


def test_the_flagfile_gives_the_same_settings(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(saved.parent)
    arguments = [
        "--arch=dense.keras",
        "--dataset=folder:images",
        "--data_dir=~",
        "--lr_schedule=step",
        "--lr_boundaries=3,7",
        "--nosnap",
        "--output=here",
        "--targets=conv.*",
        "--lasso_strength=0.00123",
    ]
    chosen, text = settings.parse(arguments)
    assert "--output" not in text
    assert f"--dataset=folder:{tmp_path / 'images'}\n" in text
    file = tmp_path / "again.flags"
    file.write_text(text)
    monkeypatch.chdir("/")
    again = parse(f"--flagfile={file}")
    assert again == dataclasses.replace(chosen, output=None)


def test_every_setting_is_a_documented_flag(capsys):
    names = {field.name for field in dataclasses.fields(settings.Settings)}
    flags = settings.flag_set()
    grouped = [name for group in flags.groups.values() for name in group]
    assert names | {"recipe"} == set(grouped)
    assert len(grouped) == len(set(grouped))
    with pytest.raises(SystemExit) as stop:
        flags.parse(["--helpshort"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"--{name} " in printed or f"]{name} " in printed for name in grouped)
    assert all(len(line) <= 88 for line in printed.splitlines())
    assert all(flag.text for flag in flagset.declared(settings.Settings).values())


def test_a_command_error_is_one_line_and_code_2(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", "--epochs=x"])
    with pytest.raises(SystemExit) as stop:
        flagset.run(pipeline.run)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


def test_blame_names_the_flag():
    with (
        pytest.raises(CommandError, match=r"^`--dataset`: no such file$"),
        blame("dataset"),
    ):
        raise FileNotFoundError("no such\n  file")
    with pytest.raises(ZeroDivisionError), blame("dataset"):
        1 / 0  # noqa: B018


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (evaluate.run, [], "`--model`, or `--arch` with `--init_weights`"),
        (evaluate.run, ["--model=x.keras"], "`--dataset` must be given"),
        (evaluate.run, ["--model=x.h5", "--dataset=digits"], "`--model` must be a"),
        (evaluate.run, ["--arch=resnet20", "--dataset=digits"], "fresh weights"),
        (convert.run, [], "`--pruner` must be given"),
        (convert.run, ["--pruner=x.keras"], "`--output` must be given"),
        (convert.run, ["--pruner=x.h5", "--output=y"], "`--pruner` must be an exist"),
        (explain.run, [], "`--model` or `--arch` must be given"),
        (explain.run, ["--model=x.h5"], "`--model` must be an existing .keras"),
        (explain.run, ["--arch=resnet21"], "`--arch` must be one of"),
        (
            explain.run,
            ["--arch=resnet20", "--input_shape=3"],
            "three positive integers",
        ),
    ],
)
def test_other_commands_say_what_is_wrong(command, arguments, message):
    with pytest.raises(CommandError) as error:
        command(arguments)
    assert message in str(error.value)
    assert "Received: " in str(error.value)


def test_convert_refuses_a_model_that_is_not_wrapped(saved, tmp_path):
    with pytest.raises(CommandError, match=r"made by `resrep_tf.wrap`.*Functional"):
        convert.run([f"--pruner={saved}", f"--output={tmp_path / 'slim.keras'}"])


@pytest.mark.parametrize("shape, classes", [((8, 8, 3), 10), ((8, 8, 1), 3)])
def test_evaluate_refuses_exported_models_of_other_shapes(shape, classes, tmp_path):
    model = dense_model(shape, classes)
    model.export(str(tmp_path / "saved"), verbose=False)
    model.export(str(tmp_path / "model.tflite"), format="litert", verbose=False)
    for file in ("saved", "model.tflite"):
        with pytest.raises(CommandError) as error:
            evaluate.run([f"--model={tmp_path / file}", "--dataset=digits"])
        assert str(error.value).endswith(f"a model from {shape} to ({classes},)")


def test_files_in_the_home_folder_are_found(saved, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    explain.run(["--arch=~/dense.keras", "--json"])
    assert json.loads(capsys.readouterr().out)["model"] == "dense"
    arch = [f"--arch={saved}", "--init_weights=~/dense.keras", "--dataset=digits"]
    evaluate.run([*arch, "--eval_steps=1", "--nolatency"])
    assert "top-1 accuracy" in capsys.readouterr().out
    saved.write_bytes(b"nothing")
    with pytest.raises(CommandError, match=r"^`--arch`: "):
        explain.run(["--arch=~/dense.keras"])


def test_explain_takes_files_names_and_shapes(saved, capsys):
    explain.run([f"--model={saved}", "--json"])
    explained = json.loads(capsys.readouterr().out)
    assert explained["model"] == "dense"
    explain.run(["--arch=keras:MobileNet", "--input_shape=32,32,3"])
    assert "for input (32, 32, 3)" in capsys.readouterr().out
    explain.run(["--arch=resnet56", "--arch_options=shortcut=projection"])
    assert "125,747,840" in capsys.readouterr().out


# === Models ===


def build(arch, **kwargs) -> keras.Model:
    return architectures.build(arch, SHAPE, CLASSES, **{"options": {}, **kwargs})


def test_networks_of_the_package_take_options():
    model = build("resnet20", options={"shortcut": "projection"}, weight_decay=3e-4)
    assert model.input_shape == (None, *SHAPE)
    assert "stage2_block0_shortcut_conv" in [layer.name for layer in model.layers]
    penalty = model.get_layer("stem_conv").kernel_regularizer
    assert float(penalty.l2) == pytest.approx(1.5e-4)
    assert architectures.gives_logits(model)


def test_networks_of_keras_give_logits_and_are_decayed():
    model = architectures.build(
        "keras:MobileNet", (32, 32, 3), 7, options={"alpha": 0.25}, weight_decay=1e-4
    )
    assert model.output_shape == (None, 7)
    assert architectures.gives_logits(model)
    decayed = [
        layer.name
        for layer in model.layers
        if getattr(layer, "kernel_regularizer", None) is not None
    ]
    assert "conv1" in decayed
    assert not any(
        getattr(layer, "depthwise_regularizer", None) for layer in model.layers
    )
    with pytest.raises(CommandError, match="`weights` is not an option"):
        architectures.build(
            "keras:MobileNet", (32, 32, 3), 7, options={"weights": "imagenet"}
        )


def test_a_file_keeps_its_weights_and_its_regularizers(saved):
    original = keras.models.load_model(saved)
    plain, decayed = build(str(saved)), build(str(saved), weight_decay=0.5)
    for model, penalties in ((plain, 0), (decayed, 2)):
        for a, b in zip(original.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(model.losses) == penalties


def test_a_file_must_fit_the_data(tmp_path):
    dense_model(classes=3).save(tmp_path / "three.keras")
    with pytest.raises(CommandError, match=r"`--arch` must fit the data.*\(3,\)$"):
        build(str(tmp_path / "three.keras"))
    dense_model(shape=(9, 9, 1)).save(tmp_path / "nine.keras")
    with pytest.raises(CommandError, match="must fit the data"):
        build(str(tmp_path / "nine.keras"))
    keras.Sequential([keras.Input(SHAPE), dense_model()]).save(tmp_path / "fits.keras")
    assert build(str(tmp_path / "fits.keras")).output_shape == (None, CLASSES)
    (tmp_path / "broken.keras").write_bytes(b"nothing")
    with pytest.raises(CommandError, match="`--arch`: "):
        build(str(tmp_path / "broken.keras"))


def test_init_weights_must_be_those_of_the_network(saved):
    with pytest.raises(CommandError, match="`--init_weights`: The weights in `path`"):
        build("resnet20", init_weights=str(saved))


def test_probabilities_are_told_from_logits():
    assert not architectures.gives_logits(dense_model(activation="softmax"))
    ends = keras.Sequential([dense_model(), layers.Softmax()])
    ends.build((None, *SHAPE))
    assert not architectures.gives_logits(ends)
    nested = keras.Sequential([dense_model(activation="softmax", name="inner")])
    nested.build((None, *SHAPE))
    assert not architectures.gives_logits(nested)
    loss = evaluation.compile_arguments(dense_model(activation="softmax"), 10)["loss"]
    assert loss.get_config()["from_logits"] is False


def test_arch_options_are_literals_or_strings():
    options = architectures.parse_options(["alpha=0.5", "shortcut=projection", "n=3"])
    assert options == {"alpha": 0.5, "shortcut": "projection", "n": 3}
    assert architectures.parse_options([]) == {}


def test_arch_options_with_commas_survive_the_flagfile(tmp_path):
    arguments = ["--arch=vgg16", "--arch_options=hidden=(16, 8),weight_decay=0.1"]
    chosen, text = settings.parse([*arguments, "--dataset=npz:none.npz"])
    assert chosen.arch_options == {"hidden": (16, 8), "weight_decay": 0.1}
    (tmp_path / "again.flags").write_text(text)
    assert parse(f"--flagfile={tmp_path / 'again.flags'}") == chosen


def test_in_float32_only_the_precision_changes():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build("resnet20")
    assert model.get_layer("stem_conv").compute_dtype == "bfloat16"
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype("float32")
    outputs = model(images)
    assert outputs.dtype == "float32"
    copy = architectures.in_float32(model)
    kinds = {layer.compute_dtype for layer in copy.layers if layer.weights}
    assert kinds == {"float32"}
    np.testing.assert_allclose(outputs, copy(images), atol=0.2)


# === Evaluation and latency ===


def test_accuracy_counts_every_image_once():
    digits = data.load("digits", batch_size=100)
    labels = np.concatenate([y.numpy() for _, y in digits.evaluation()])

    def always_three(images):
        return tf.one_hot(tf.fill([len(images)], 3), 10)

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        scores = evaluation.evaluate(always_three, digits, "a constant")
        few = evaluation.evaluate(always_three, digits, "a constant", steps=2)
    assert scores.examples == 360
    assert scores.accuracy == np.mean(labels == 3)
    assert few.examples == 200
    assert "Evaluating a constant on digits" in printed.getvalue()
    assert str(scores).startswith(f"top-1 accuracy {scores.accuracy:.2%}")


def test_many_models_are_evaluated_without_warnings(caplog):
    """TensorFlow warns of functions that are traced often, as a study's would be."""
    images = np.ones((2, *SHAPE), "float32")
    for number in range(7):
        model = dense_model(name=f"model{number}")
        model.compile("sgd", "mse")
        build_state(model, tf.distribute.get_strategy())
        predict, expected = evaluation.predictor(model), model(images)
        del model
        for count in (2, 1):  # Batches of any size.
            np.testing.assert_allclose(
                predict(images[:count]), expected[:count], rtol=1e-5
            )
    assert "retracing" not in caplog.text


def test_a_corrupt_image_is_named(tmp_path):
    for split in ("train", "val"):
        folder = tmp_path / split / "one"
        folder.mkdir(parents=True)
        for number in range(4):
            (folder / f"{number}.jpg").write_bytes(b"not a JPEG")
    photos = data.load(f"folder:{tmp_path}", batch_size=2, image_size=8)
    with (
        pytest.raises(CommandError, match=r"^`--dataset`: Cannot read.*0\.jpg"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        evaluation.evaluate(lambda images: images, photos, "nothing")


def test_a_corrupt_image_in_a_record_is_named(monkeypatch, capsys):
    digits = data.load("digits", batch_size=100)
    asked = []

    def find(dataset, after_image):
        asked.append(dataset.name)
        for _ in range(dataset.train_examples + dataset.eval_examples):
            after_image()
        return "Cannot read an image. Received: path=a, record 3"

    monkeypatch.setattr(data.Dataset, "find_unreadable", find)

    def failing(message):
        def fail(images):
            raise tf.errors.InvalidArgumentError(None, None, message)

        return fail

    with pytest.raises(CommandError, match=r"^`--dataset`: .* path=a, record 3$"):
        evaluation.score(failing("Invalid JPEG data [Op:IteratorGetNext]"), digits)
    # Other failures have nothing to do with images.
    with pytest.raises(tf.errors.InvalidArgumentError):
        evaluation.score(failing("Matrix size-incompatible"), digits)
    assert asked == ["digits"]
    printed = capsys.readouterr().out.split("Looking for an image that cannot be read")
    # Progress; in a file, one line when all images have been read.
    assert "1797/1797" in printed[1] and len(printed[1].splitlines()) <= 3


def test_a_passing_bar_leaves_its_line_to_the_next(monkeypatch, capsys):
    show = evaluation.passing_bar(3)
    show()
    assert capsys.readouterr().out == ""  # No one watches a file.
    monkeypatch.setattr(evaluation, "verbosity", lambda: 1)
    show = evaluation.passing_bar(3)
    for _ in range(3):
        show()
    printed = capsys.readouterr().out
    assert printed.startswith("\r\x1b[K") and "1/3" in printed
    assert "\n" not in printed


def test_latency_takes_turns(monkeypatch):
    monkeypatch.setattr(latency, "MOST", 6)
    calls = []
    models = {
        name: lambda images, name=name: calls.append((name, len(images))) or images
        for name in ("before", "after")
    }
    seconds = latency.measure(models, (2, 2, 1))
    assert list(seconds) == ["before", "after"]
    assert all(set(times) == {1, 32} for times in seconds.values())
    assert all(time > 0 for times in seconds.values() for time in times.values())
    timed = calls[6:18]
    assert timed == [("before", 1), ("after", 1)] * 6


# === Files and tables ===


def test_atomic_leaves_all_or_nothing(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), output.atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]
    output.write_text(path, "new")
    assert path.read_text() == "new"


def test_atomic_replaces_folders(tmp_path):
    for content in ("old", "new"):
        with output.atomic(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).write_text(content)
            assert temporary.suffix == ""
    assert os.listdir(tmp_path / "folder") == ["new"]
    assert os.listdir(tmp_path) == ["folder"]
    assert output.size(tmp_path / "folder") == 3


def test_the_default_folder_is_named_after_the_run():
    run = "/home/me/my net.keras", "folder:/data/ants"
    folder = output.choose(None, *run, "--seed=1")
    assert folder.parent == Path("runs")
    assert folder.name.startswith("my-net_ants_")
    assert output.choose(None, *run, "--seed=1") == folder
    assert output.choose(None, *run, "--seed=2") != folder


def test_output_must_be_a_new_folder_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="`--output` must be a folder"):
        output.choose(str(tmp_path / "file"), "resnet20", "digits", "")
    with pytest.raises(CommandError, match="must be a new or empty folder"):
        output.choose_new(str(tmp_path))
    with pytest.raises(CommandError, match="this one holds other files"):
        output.holds_run(tmp_path)
    with pytest.raises(CommandError, match="can be written to"):
        output.create(tmp_path / "file" / "inner")
    assert output.choose(str(tmp_path / "new"), "a", "b", "") == tmp_path / "new"
    assert output.choose_new(str(tmp_path / "new")) == tmp_path / "new"
    assert not output.holds_run(tmp_path / "new")
    output.check(tmp_path / "new" / "inner")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("run", "flags"),
    [
        (pipeline.run, ["--dataset=digits"]),
        (study.run, ["--study=criteria"]),
        (convert.run, ["--pruner=x.keras"]),
    ],
)
@pytest.mark.parametrize("name", ["folder", "folder/slim.keras"])
def test_an_output_that_cannot_be_written_is_noticed_first(
    tmp_path, monkeypatch, run, flags, name
):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / name

    def load(*arguments, **options):
        raise AssertionError("loaded")

    for owner, function in ((data, "load"), (keras.models, "load_model")):
        monkeypatch.setattr(owner, function, load)
    with pytest.raises(
        CommandError, match=r"`--output` must be .*Not a directory.*Received: --output="
    ):
        run([*flags, f"--output={folder}"])
    assert os.listdir(tmp_path) == ["file"]


def test_table_is_aligned():
    before = Measurements(2_000_000, 1000, 40_000, {1: 0.002, 32: 0.02}, 0.9, 1.0)
    after = Measurements(1_000_000, 400, 20_000, {1: 0.001, 32: 0.015}, 0.895, 1.0)
    lines = table(before.to_dict(), after.to_dict()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[-3:] == ["2,000,000", "1,000,000", "−50.0%"]
    assert lines[4].split()[-3:] == ["2.00", "1.00", "−50.0%"]
    assert lines[6].split()[-4:] == ["90.00%", "89.50%", "−0.50", "points"]


def test_the_installed_package_finds_recipes_from_anywhere(tmp_path):
    script = (
        "from resrep_tf.cli import recipes; "
        "print(len(recipes.names()), recipes.read('cifar10_resnet20_cpu')[:9])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(len(list((ROOT / "flags").glob("*.flags"))))
    assert "# ResNet" in done.stdout
