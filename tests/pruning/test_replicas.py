"""Replicas of a model do together what one device does alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = TESTS / "support" / "on_two_replicas.py"
NAMES = re.findall(r"^def (test_\w+)", SCRIPT.read_text("utf-8"), re.MULTILINE)
# Those that a user would notice last. They share a process, which takes time to start.
DEFAULT = (
    "test_moving_statistics_are_averaged_before_they_are_read",
    "test_a_step_that_overflows_on_one_replica_is_skipped_on_both",
)


def test_what_a_user_would_notice_last():
    on_two_replicas(*DEFAULT)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DEFAULT])
def test_on_two_replicas(name):
    on_two_replicas(name)


def on_two_replicas(*names):
    run = subprocess.run(
        [sys.executable, SCRIPT, *names],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
