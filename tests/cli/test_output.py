"""The output folder: whole files or none, and clear words if it cannot be written."""

import errno
import os
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from resrep_tf import data
from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError
from resrep_tf.convert import command as convert
from resrep_tf.export.files import size
from resrep_tf.study import command as study
from resrep_tf.train import pipeline


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
    assert size(tmp_path / "folder") == 3


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
