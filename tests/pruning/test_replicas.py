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
# Those that a user would notice last.
DEFAULT = (
    "test_moving_statistics_are_averaged_before_they_are_read",
    "test_a_step_that_overflows_on_one_replica_is_skipped_on_both",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in DEFAULT else [pytest.mark.slow]) for n in NAMES],
)
def test_on_two_replicas(name):
    run = subprocess.run(
        [sys.executable, SCRIPT, name],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
