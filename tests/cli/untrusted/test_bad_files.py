"""Files that are damaged, of another kind, or hostile: one clear line, exit code 2."""

import json
import sys
import zipfile

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.cli import output, running
from resrep_tf.cli.errors import CommandError
from resrep_tf.convert import command as convert
from resrep_tf.evaluate import command as evaluate
from resrep_tf.explain import command as explain
from resrep_tf.models import load_weights
from resrep_tf.study import command as study
from resrep_tf.train import pipeline
from resrep_tf.train import settings as settings_module
from resrep_tf.train.checkpoints import Checkpoint, Checkpoints, Position
from support import runs


class Unheard(L.Layer):
    """A layer that no file can be loaded with unless it is registered."""

    def call(self, x):
        return x


def _with_config(path, change):
    """Rewrites the configuration in a .keras file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["config.json"] = change(parts["config.json"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _saved(path, layer):
    inputs = keras.Input((8, 8, 1))
    x = L.Flatten()(layer(L.Conv2D(3, 3)(inputs)))
    keras.Model(inputs, L.Dense(10)(x)).save(path)


def _flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


FILES = {
    "empty": (lambda path: path.write_bytes(b""), "empty"),
    "text": (lambda path: path.write_text("not a model\n" * 9), "it is a text file"),
    "noise": (lambda path: path.write_bytes(bytes(range(256))), "no archive of Keras"),
    "HDF5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file"),
    "truncated": (
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        "cut short or damaged",
    ),
    "bit-flipped": (_flipped, "checksum of model.weights.h5 is wrong"),
    "no JSON": (lambda path: _with_config(path, lambda c: c[:-9]), "config.json"),
    "nested": (
        lambda path: _with_config(path, lambda c: b"[" * 200_000),
        "nested too deep",
    ),
    "filters": (
        lambda path: _with_config(
            path, lambda c: c.replace(b'"filters": 3', b'"filters": 1000000000')
        ),
        "asks for filters=1000000000",
    ),
    "Lambda": (lambda path: _saved(path, L.Lambda(lambda x: x)), "is a Lambda"),
    "unknown class": (lambda path: _saved(path, Unheard()), "it needs 'Unheard'"),
}
COMMANDS = {
    "convert": (convert.run, ["--pruner={file}", "--output={folder}/slim.keras"]),
    "explain": (explain.run, ["--model={file}"]),
    "explain of arch": (explain.run, ["--arch={file}"]),
    "evaluate": (evaluate.run, ["--model={file}", "--dataset=digits"]),
}


def said(command, arguments, capsys, monkeypatch, code=2):
    """Runs a command as from a shell; returns its line on stderr."""
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    with pytest.raises(SystemExit) as stop:
        running.run(command)
    assert stop.value.code == code
    printed = capsys.readouterr().err
    lines = [line for line in printed.splitlines() if "error: " in line]
    assert len(lines) == 1 and "Traceback" not in printed
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", FILES)
def test_a_bad_model_is_one_line(kind, command, tmp_path, capsys, monkeypatch):
    path = tmp_path / "model.keras"
    _saved(path, L.ReLU())
    damage, words = FILES[kind]
    damage(path)
    function, arguments = COMMANDS[command]
    arguments = [each.format(file=path, folder=tmp_path) for each in arguments]
    line = said(function, arguments, capsys, monkeypatch)
    assert words in line and str(path) in line and len(line) < 900
    assert [each.name for each in tmp_path.iterdir()] == ["model.keras"]


TEXT = b"neither a model nor data\n" * 9
# For each: the file, its content, the flag that names it, and what is said.
OTHERS = {
    "TFLite: empty": ("m.tflite", b"", "model", "is an empty file"),
    "TFLite: text": ("m.tflite", TEXT, "model", "is not a TensorFlow Lite file"),
    "TFLite: cut": ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(30), "model", "is cut short"),
    "ONNX: empty": ("m.onnx", b"", "model", "is an empty file"),
    "ONNX: text": ("m.onnx", TEXT, "model", "cannot be loaded: it is damaged"),
    "a folder": ("readme", TEXT, "folder", "or the folder of a SavedModel"),
    "SavedModel: text": ("saved_model.pb", TEXT, "folder", "cannot be loaded"),
    "npz: empty": ("d.npz", b"", "npz", "must give an .npz file"),
    "npz: text": ("d.npz", TEXT, "npz", "as `numpy.savez` writes it: it is none"),
    "npz: objects": ("d.npz", None, "npz", "`x_train` cannot be read: it holds Python"),
}
OTHER_FLAGS = {
    "model": ["--model={file}", "--dataset=digits"],
    "folder": ["--model={folder}", "--dataset=digits"],
    "npz": ["--model={folder}/good.keras", "--dataset=npz:{file}"],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_bad_file_is_one_line(kind, tmp_path, capsys, monkeypatch):
    name, content, flag, words = OTHERS[kind]
    if "ONNX" in kind:
        pytest.importorskip("onnx")
    path = tmp_path / name
    if flag == "npz":
        _saved(tmp_path / "good.keras", L.ReLU())
    if content is None:
        x, y = np.array([_Planted()] * 4, object), np.arange(4) % 2
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    else:
        path.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    flags = [f.format(file=path, folder=tmp_path) for f in OTHER_FLAGS[flag]]
    line = said(evaluate.run, flags, capsys, monkeypatch)
    assert words in line and str(tmp_path) in line and "pickle" not in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_recipe_is_not_echoed(tmp_path, capsys, monkeypatch):
    secret = tmp_path / "secret"
    for text in ("password: hunter2\n", "--token=hunter2\n", "hunter2"):
        secret.write_text(text)
        arguments = [f"--recipe={secret}"]
        line = said(evaluate.run, arguments, capsys, monkeypatch)
        assert "hunter2" not in line and str(secret) in line


def test_debug_shows_the_trace(capsys, monkeypatch):
    def fails(arguments):
        assert arguments == ["--x=1"]
        raise ZeroDivisionError("by zero")

    for debug in (False, True):
        monkeypatch.setattr(sys, "argv", ["c", "--x=1", *["--debug"] * debug])
        with pytest.raises(SystemExit) as stop:
            running.run(fails)
        assert stop.value.code == 1
        printed = capsys.readouterr().err
        assert ("Traceback" in printed) is debug
        assert "error: ZeroDivisionError: by zero" in printed


HEADERS = {
    "deep": lambda: _safetensors(b"[" * 200_000),
    "long": lambda: (2**60).to_bytes(8, "little") + b"{}",
    "empty": lambda: b"",
    "text": lambda: b"no tensors at all",
    "negative": lambda: _safetensors(_tensor(data_offsets=[-4, 4])),
    "beyond": lambda: _safetensors(_tensor(data_offsets=[0, 1 << 40])),
    "open shape": lambda: _safetensors(_tensor(shape=[-1])),
    "other type": lambda: _safetensors(_tensor(dtype="I8")),
}


def _tensor(**changes):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return json.dumps({"conv1.weight": entry}).encode()


def _safetensors(header):
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.mark.parametrize("kind", HEADERS)
def test_bad_safetensors(kind, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(HEADERS[kind]())
    with pytest.raises(ValueError, match="complete safetensors file") as error:
        load_weights(runs.digits_network(), path)
    assert str(path) in str(error.value)


TABLES = {
    "empty": b"",
    "binary": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "list": b"[]",
    "other format": b'{"format": 9}',
    "no operations": b'{"format": 1}',
    "infinite": b'{"format": 1, "operations": {"a": {"widths": [[Infinity]]}}}',
}


@pytest.mark.parametrize("kind", TABLES)
def test_bad_latency_tables(kind, tmp_path):
    path = tmp_path / "latency.json"
    path.write_bytes(TABLES[kind])
    with pytest.raises(ValueError, match="latency table") as error:
        resrep_tf.LatencyTable.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 200_000, None])
def test_a_damaged_report(content, tmp_path):
    if content is not None:
        (tmp_path / output.REPORT).write_text(content)
    with pytest.raises(CommandError, match=r"report.json of this run is damaged"):
        output.read_report(tmp_path)


class _Planted:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a pickle was run')",))


def _meta(**changes):
    position = {"epoch": 0, "step": 1}
    return np.array(
        json.dumps({"phase": "base", "position": position, "rows": []} | changes)
    )


CHECKPOINTS = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no checkpoint"),
    "pickle": lambda path: np.savez(path, meta=np.array([_Planted()], object)),
    "pickle inside": lambda path: np.savez(
        path, meta=_meta(), v00000=np.array([_Planted()], object)
    ),
    "no meta": lambda path: np.savez(path, v00000=np.zeros(2)),
    "other meta": lambda path: np.savez(path, meta=np.array("[]")),
    "no position": lambda path: np.savez(path, meta=_meta(position={"epoch": "a"})),
    "deep meta": lambda path: np.savez(path, meta=np.array("[" * 200_000)),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_damaged_checkpoint_is_passed_over(kind, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=5)
    good = Checkpoint("base", Position(0, 1), [], [np.arange(3.0)])
    checkpoints.save(good, 1)
    CHECKPOINTS[kind](tmp_path / "base-000000002.npz")
    with pytest.warns(UserWarning, match=r"base-000000002.npz cannot be read"):
        found = checkpoints.newest()
    np.testing.assert_array_equal(found.values[0], np.arange(3.0))


# === Interruptions ===


def test_ctrl_c_during_imports_leaves_no_trace(tmp_path, capsys, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(SystemExit) as stop:
        running.run("slow_to_import")
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("target", ["slim.keras", "folder"])
def test_convert_starts_anew_after_ctrl_c(target, tmp_path, monkeypatch):
    pruner = tmp_path / "pruner.keras"
    resrep_tf.wrap(runs.digits_network()).save(pruner)
    arguments = [f"--pruner={pruner}", f"--output={tmp_path / target}"]
    save = keras.Model.save

    def interrupted(self, path, *args, **kwargs):
        save(self, path, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keras.Model, "save", interrupted)
        convert.run([*arguments, "--export=keras"])
    assert [path.name for path in tmp_path.iterdir()] == ["pruner.keras"]
    convert.run([*arguments, "--export=keras"])
    assert {path.name for path in tmp_path.iterdir()} == {"pruner.keras", target}


def test_a_study_leaves_foreign_files_alone(tmp_path, capsys, monkeypatch):
    (tmp_path / "thesis.tex").write_text("years of work")
    arguments = ["--study=ablation", f"--output={tmp_path}"]
    line = said(study.run, arguments, capsys, monkeypatch)
    assert "this one holds thesis.tex" in line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# === Finished runs ===


def test_a_finished_run_without_its_model_is_made_again(tmp_path, capsys):
    flags = ["--arch=resnet20", "--dataset=digits", "--flops_target=0.5"]
    settings, flagfile = settings_module.parse([*flags, "--base_epochs=1"])
    (tmp_path / output.FLAGS).write_text(flagfile)
    (tmp_path / output.REPORT).write_text("{}")
    assert not pipeline.complete(settings, tmp_path)
    assert "pruned.keras is missing; it is made again" in capsys.readouterr().out
    (tmp_path / output.PRUNED).write_bytes(b"")
    assert pipeline.complete(settings, tmp_path)
    arguments = [*flags, "--base_epochs=1", f"--output={tmp_path}"]
    with pytest.raises(CommandError, match=r"report.json of this run is damaged"):
        pipeline.run(arguments)
