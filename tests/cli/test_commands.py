"""What evaluate, convert and explain say to wrong and right flags."""

import json
from pathlib import Path

import pytest

from resrep_tf.cli.errors import CommandError
from resrep_tf.convert import command as convert
from resrep_tf.evaluate import command as evaluate
from resrep_tf.explain import command as explain
from support import runs
from support.runs import one_convolution, process


@pytest.fixture
def saved(tmp_path) -> Path:
    return runs.save(tmp_path / "dense.keras", one_convolution)


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (evaluate.run, [], "`--model`, or `--arch` with `--init_weights`"),
        (evaluate.run, ["--model=x.keras"], "`--dataset` must be given"),
        (
            evaluate.run,
            ["--model=x.h5", "--dataset=digits"],
            "`--model`: `path` must be a",
        ),
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
    model = one_convolution(shape, classes)
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
