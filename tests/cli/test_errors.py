"""Errors of the user: one line that names the flag."""

import subprocess
import sys

import pytest

from resrep_tf.cli import running
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.train import pipeline
from support.runs import ROOT


def test_a_command_error_is_one_line_and_code_2(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", "--epochs=x"])
    with pytest.raises(SystemExit) as stop:
        running.run(pipeline.run)
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


def test_a_reader_that_has_seen_enough_is_no_error():
    """As in `... | head`."""
    command = [sys.executable, "-m", "resrep_tf.explain"]
    for arguments, stream in ((["--helpshort"], "stdout"), (["--x"], "stderr")):
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        getattr(process, stream).close()
        other = process.stderr if stream == "stdout" else process.stdout
        assert other.read() == b""
        assert process.wait() == (141 if stream == "stdout" else 2)
        other.close()
