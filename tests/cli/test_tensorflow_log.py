"""What TensorFlow logs when it starts is not shown."""

import os
import subprocess
import sys

import pytest

from resrep_tf.cli import tensorflow_log

COMMANDS = ("convert", "evaluate", "explain", "study", "train")
START = """
import os, sys
# As Python has it while it looks for the module of a command.
sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "resrep_tf.train"]
from resrep_tf.cli import running, tensorflow_log
for command in {commands}:
    __import__(f"resrep_tf.{{command}}")
assert "tensorflow" not in sys.modules, "it logs before a command can hold it back"
"""


def test_packages_of_commands_do_without_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", START.format(commands=COMMANDS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_held_back_is_shown_after_an_error(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr("tensorflow.config.list_physical_devices", _say)
    tensorflow_log.start_tensorflow()
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr("tensorflow.config.list_physical_devices", _fail)
    with pytest.raises(RuntimeError, match="no such library"):
        tensorflow_log.start_tensorflow()
    assert capfd.readouterr().err == "no GPU\n"


def _say() -> None:
    os.write(2, b"no GPU\n")


def _fail() -> None:
    _say()
    raise RuntimeError("no such library")
