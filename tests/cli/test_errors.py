"""Errors of the user: one line that names the flag."""

import sys

import pytest

from resrep_tf.cli import running
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.train import pipeline


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
