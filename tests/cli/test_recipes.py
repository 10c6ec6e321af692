"""Flagfiles: they parse, and they say what the paper's tables say."""

import importlib.resources
import os
import re
import subprocess
import sys

import pytest

from resrep_tf import models
from resrep_tf.cli import recipes
from resrep_tf.cli.errors import CommandError
from resrep_tf.train import settings
from support.runs import ROOT

# The paper's tables: network, data, FLOPs removed, accuracy of the base and pruned.
PRUNINGS = {
    "imagenet_resnet50_flops545": ("resnet50", "imagenet2012", 54.54, 76.15, 76.15),
    "imagenet_resnet50_flops561": ("resnet50", "imagenet2012", 56.11, 76.15, 75.97),
    "imagenet_resnet50_flops621": ("resnet50", "imagenet2012", 62.10, 76.15, 75.30),
    "imagenet_resnet50_vector": ("resnet50", "imagenet2012", 54.5, 76.15, 75.57),
    "imagenet_resnet50_momentum09": ("resnet50", "imagenet2012", 54.5, 76.15, 75.05),
    "imagenet_mobilenet_flops739": ("mobilenet", "imagenet2012", 73.91, 70.78, 68.02),
    "cifar10_resnet56_flops529": ("resnet56", "cifar10", 52.91, 93.71, 93.71),
    "cifar10_resnet56_flops778": ("resnet56", "cifar10", 77.83, 93.71, 92.66),
    "cifar10_resnet110_flops582": ("resnet110", "cifar10", 58.21, 94.64, 94.62),
}


# Network, batch, epochs, boundaries, accuracy.
BASES = {
    "cifar10_resnet56_base": ("resnet56", 64, 240, (120, 180), 93.71),
    "cifar10_resnet110_base": ("resnet110", 64, 240, (120, 180), 94.64),
    "imagenet_mobilenet_base": ("mobilenet", 512, 70, (), 70.78),
}


STUDIES = {"digits_study"}


CPU = {"cifar10_resnet20_cpu": "resnet20", "cifar10_resnet56_cpu": "resnet56"}


def figure(text: str, pattern: str) -> float:
    (found,) = re.findall(rf"^# {pattern} (\d+\.?\d*) %", text, re.MULTILINE)
    return float(found)


@pytest.fixture
def weights(tmp_path) -> str:
    path = tmp_path / "base.keras"
    path.touch()
    return f"--init_weights={path}"


def test_every_flagfile_is_in_a_table_here():
    assert set(recipes.names()) == {*PRUNINGS, *BASES, *STUDIES, *CPU}


@pytest.mark.parametrize("name", [*PRUNINGS, *BASES, *CPU])
def test_header_has_the_command_and_lines_are_set_once(name):
    text = recipes.read(name)
    assert f"python -m resrep_tf.train --recipe={name} \\\n" in text
    for field in ("Paper", "Expected", "FLOPs removed", "Command"):
        assert len(re.findall(rf"^# {field}:", text, re.MULTILINE)) == 1
    lines = [line for line in text.splitlines() if line.startswith("--")]
    flags = [line.partition("=")[0] for line in lines]
    assert len(flags) == len(set(flags))
    assert all(len(line) <= 90 for line in text.splitlines())


@pytest.mark.parametrize("name", PRUNINGS)
def test_prunings_are_those_of_the_paper(name, weights):
    arch, dataset, removed, base, accuracy = PRUNINGS[name]
    chosen, _ = settings.parse([f"--recipe={name}", weights])
    assert (chosen.arch, chosen.dataset) == (arch, dataset)
    assert chosen.flops_target == pytest.approx(removed / 100)
    text = recipes.read(name)
    assert figure(text, "FLOPs removed:") == removed
    assert figure(text, "Expected: top-1") == accuracy
    assert figure(text, "Base: top-1") == base
    cifar = dataset == "cifar10"
    assert chosen.batch_size == (64 if cifar else 256)
    assert chosen.epochs == (480 if cifar else 180)
    assert (chosen.learning_rate, chosen.lr_schedule) == (0.01, "cosine")
    assert (chosen.momentum, chosen.weight_decay) == (0.9, 1e-4)
    assert (chosen.lasso_strength, chosen.epsilon) == (1e-4, 1e-5)
    assert (chosen.selection_step, chosen.selection_interval) == (4, 200)
    assert chosen.warmup_epochs == 5
    assert chosen.targets == "paper"
    assert (chosen.schedule, chosen.snap, chosen.base_epochs) == ("paper", False, 0)
    assert chosen.compactor == ("vector" if name.endswith("vector") else "matrix")
    momentum = 0.9 if name.endswith("momentum09") else 0.99
    assert chosen.compactor_momentum == momentum


@pytest.mark.parametrize("name", BASES)
def test_base_trainings_are_those_of_the_paper(name):
    arch, batch, epochs, boundaries, accuracy = BASES[name]
    chosen, _ = settings.parse([f"--recipe={name}"])
    assert (chosen.arch, chosen.batch_size) == (arch, batch)
    assert (chosen.base_epochs, chosen.epochs) == (epochs, 0)
    assert chosen.base_learning_rate == 0.1
    assert chosen.base_lr_schedule == ("step" if boundaries else "cosine")
    assert chosen.base_lr_boundaries == boundaries
    assert (chosen.momentum, chosen.weight_decay) == (0.9, 1e-4)
    assert figure(recipes.read(name), "Expected: top-1") == accuracy


@pytest.mark.parametrize("name", CPU)
def test_short_recipes_fit_their_run(name, weights):
    chosen, _ = settings.parse([f"--recipe={name}", weights])
    assert (chosen.arch, chosen.dataset) == (CPU[name], "cifar10")
    assert (chosen.flops_target, chosen.schedule) == (0.5, "auto")
    assert figure(recipes.read(name), "FLOPs removed:") == 50


@pytest.mark.parametrize("name", [*PRUNINGS, *CPU])
def test_prunings_ask_for_weights(name):
    with pytest.raises(CommandError, match="`--init_weights` must be given"):
        settings.parse([f"--recipe={name}"])


@pytest.mark.parametrize("name", [*PRUNINGS, *BASES])
def test_networks_are_as_large_as_the_paper_says(name, weights):
    chosen, _ = settings.parse([f"--recipe={name}", weights])
    options = {"mobilenet": {}, "resnet50": {}}.get(
        chosen.arch, {"shortcut": "projection"}
    )
    assert chosen.arch_options == options
    assert chosen.arch in models.names()


def test_the_command_line_wins_wherever_the_recipe_stands(weights):
    recipe = "--recipe=cifar10_resnet56_flops529"
    for arguments in (
        ["--epochs=3", recipe],
        [recipe, "--epochs=3"],
        ["--epochs", "3", "--recipe", "cifar10_resnet56_flops529.flags"],
        ["--epochs=3", recipe.replace("recipe", "flagfile")],
    ):
        chosen, _ = settings.parse([weights, *arguments])
        assert (chosen.epochs, chosen.flops_target) == (3, 0.5291)


def test_flagfiles_can_name_recipes(tmp_path, weights):
    file = tmp_path / "mine.flags"
    file.write_text(f"# Mine\n--recipe=cifar10_resnet20_cpu\n\n--epochs=1\n{weights}\n")
    chosen, _ = settings.parse([f"--flagfile={file}"])
    assert (chosen.arch, chosen.epochs, chosen.flops_target) == ("resnet20", 1, 0.5)


def test_an_unknown_recipe_gets_the_nearest():
    with pytest.raises(CommandError) as error:
        settings.parse(["--recipe=cifar10_resnet56_flop529"])
    assert "Did you mean 'cifar10_resnet56_flops529'?" in str(error.value)
    assert str(error.value).endswith("Received: --recipe=cifar10_resnet56_flop529")
    with pytest.raises(CommandError, match="`--recipe` needs a value"):
        settings.parse(["--recipe"])


def test_files_that_are_no_flagfiles(tmp_path):
    file = tmp_path / "mine.flags"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match=r"must be a text file.*mine\.flags$"):
        settings.parse([f"--recipe={file}"])
    file.write_text(f"--flagfile={file}\n")
    with pytest.raises(CommandError, match="must not lead back to itself"):
        settings.parse([f"--recipe={file}"])


def test_recipes_are_resources_of_the_package():
    folder = importlib.resources.files("resrep_tf.flags")
    for name in recipes.names():
        assert folder.joinpath(f"{name}.flags").is_file()


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
