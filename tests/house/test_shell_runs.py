"""Every shell block of every page runs, with small data and few steps."""

import importlib
import re
import shlex
import shutil

import keras
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf import models
from support import runs
from support.models.torch_files import RESNET50, torch_state, write_safetensors
from support.web import documentation, shell
from support.web.pages import ROOT, blocks, pages

# What is not executed, and why.
EXCEPTED = {
    "git clone": "gets the package, and installs it as .ci/run does",
    "pip install": "installs from the network; .ci/run executes the README's line",
    "python -m pytest": "these tests; .ci/run and .ci/nightly execute them",
}
# What every command of a kind prints when it has done its work, and nothing else.
DONE = {
    "resrep_tf.train": "report.html shows it in a browser",
    "resrep_tf.evaluate": "top-1 accuracy ",
    "resrep_tf.study": r"\nEverything is in studies/\w+/\w+\n",
    "benchmarks/latency.py": "resnet56 on litert",
    "benchmarks/run_cost.py": r"\ninformed +\d",
    "benchmarks/step.py": "run, informed",
    "benchmarks/zoo.py": r"MobileNetV2 \.\.\.",
    # Nothing to change.
    "ruff format .": "left unchanged",
    "ruff check --fix .": "All checks passed!",
}
# What a block for the shell could be called.
LANGUAGES = ("bash", "sh", "shell", "console", "zsh")
# Blocks whose commands are also run in the process of the default tests.
QUICK = ("--arch=trained.keras", "--import=my_layers.py", "--model=slim.tflite")

LAYERS = """
import keras


@keras.saving.register_keras_serializable("mine")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2.0 * x
"""
# === What the reader has ===


def prepare(folder, code):
    """Writes what a block takes for granted, in a small form."""
    if "folder:PATH" in code:
        documentation.write_images(folder / "PATH", {"train": 16, "val": 4})
        documentation.write_trained(folder / "trained.keras")
        (folder / "my_layers.py").write_text(LAYERS)
        write_own(folder / "my.keras", own_layer="my_layers" in code)
    if "slim.tflite" in code:
        model = keras.models.load_model(folder / "trained.keras")
        resrep_tf.export(model, folder / "slim.tflite", "tflite")
    if "imagenet" in code or "resnet50" in code:
        write_imagenet(folder)
    if "cifar10" in code:
        write_cifar(folder)
    if "ruff" in code:
        copy_sources(folder)
    if "docs/" in code or "benchmarks/" in code:  # They write beside themselves.
        for name in ("docs", "benchmarks"):
            shutil.copytree(ROOT / name, folder / name)
        (folder / "tests").symlink_to(ROOT / "tests")


def copy_sources(folder):
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("benchmarks", "docs", "flags", "models", "resrep_tf", "tests"):
        skipped = shutil.ignore_patterns("__pycache__", "files", "studies")
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)


def write_own(path, own_layer):
    inputs = keras.Input((16, 16, 3))
    x = L.Rescaling(1 / 255)(inputs)
    for _ in range(2):
        x = L.ReLU()(L.Conv2D(8, 3)(x))
    if own_layer:
        names = {}
        exec(LAYERS, names)
        x = names["Twice"]()(x)
        del keras.saving.get_custom_objects()["mine>Twice"]  # As for the command.
    x = L.GlobalAveragePooling2D()(x)
    keras.Model(inputs, L.Dense(2, activation="softmax")(x)).save(path)


def write_weights(path, model, *convention):
    write_safetensors(path, torch_state(model, *convention))


def write_imagenet(folder):
    tfds = pytest.importorskip("support.tfds")
    photos = tfds.labelled(tfds.pictures(12, 40, 40), file_name="x.jpg")
    features = tfds.tfds.builder("imagenet2012").info.features
    splits = {"train": (photos, 2), "validation": (photos, 1), "test": (photos, 1)}
    for root in (folder / "...", folder / "tensorflow_datasets"):
        tfds.write_tfds(root, "imagenet2012", "5.1.0", features, splits)
    model = models.build("resnet50", (32, 32, 3), 1000)
    write_weights(folder / "resnet50.safetensors", model, *RESNET50)


def write_cifar(folder):
    tfds = pytest.importorskip("support.tfds")
    images = tfds.labelled(tfds.pictures(128, 32, 32), 10, id="x")
    features = tfds.tfds.builder("cifar10").info.features
    splits = {"train": (images, 1), "test": (images, 1)}
    root = folder / "tensorflow_datasets"
    tfds.write_tfds(root, "cifar10", "3.0.2", features, splits)
    model = models.build("resnet20", (32, 32, 3), 10)
    path = folder / "resnet20_cifar10.safetensors"
    write_weights(path, model, (3, 3, 3), 2, "linear", "shortcut")


# === The blocks ===


def shell_blocks():
    found = [block for page in pages() for block in blocks(page, "bash")]
    return [
        block for block in found if not any(part in block.code for part in EXCEPTED)
    ]


def named(found):
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


def finish(process):
    printed, _ = process.communicate(timeout=3000)
    assert process.returncode == 0, printed[-5000:]
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("block", named(shell_blocks()))
def test_a_block_runs(block, tmp_path):
    folder, programs = tmp_path / "reader", tmp_path / "programs"
    folder.mkdir()
    prepare(folder, block.code)
    shell.write_programs(programs)
    ports = runs.free_ports(2)
    code = block.code.replace("2222", str(ports[0]))
    if "host1" in code:
        code = code.replace("host0", "127.0.0.1")
        code = code.replace(f"host1:{ports[0]}", f"127.0.0.1:{ports[1]}")
        other = code.replace('"index": 0', '"index": 1')
        assert other != code
        second = shell.start(other, folder, programs)
        try:
            printed = finish(shell.start(code, folder, programs))
            finish(second)
        finally:
            second.kill()
    else:
        printed = finish(shell.start(code, folder, programs))
    for words, done in DONE.items():
        if words in block.code:
            found = re.findall(done, printed)
            assert len(found) == block.code.count(words), printed[-5000:]


@pytest.mark.parametrize(
    "block", named(b for b in shell_blocks() if any(part in b.code for part in QUICK))
)
def test_a_command_runs_here(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, block.code)
    python, _, name, *arguments = shlex.split(block.code)
    module = "pipeline" if name == "resrep_tf.train" else "command"
    run = importlib.import_module(f"{name}.{module}").run
    printed = runs.call(run, *arguments, *shell.added([name, *arguments]))
    assert python == "python" and DONE[name] in printed


def test_no_block_is_missed():
    everything = [block for page in pages() for block in blocks(page, "bash")]
    for part in (*EXCEPTED, *QUICK, *DONE):
        assert any(part in block.code for block in everything), part
    assert len(shell_blocks()) > 15
    languages = {b.language for p in pages() for b in blocks(p, *LANGUAGES)}
    assert languages == {"bash"}
