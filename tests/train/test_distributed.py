"""Many devices and many workers, which must come to what one device comes to."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from resrep_tf.cli import output
from resrep_tf.cli.interruption import EXIT_CODE
from support import runs
from support.latency import flags_of
from support.runs import ROOT, digits_network

# 50 steps of pruning, with selections from the second on.
FLAGS = (
    *("--dataset=digits", "--batch_size=32", "--epochs=2"),
    *("--steps_per_epoch=25", "--base_epochs=1", "--eval_steps=3"),
    *("--learning_rate=0.02", "--base_learning_rate=0.02", "--checkpoint_interval=10"),
)


def start(command: list, environment: dict[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, code: int = 0) -> str:
    try:
        printed, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, printed
    return printed


def on_devices(number: int, flags: list) -> None:
    finish(start([ROOT / "tests" / "support" / "on_devices.py", number, *flags]))


def assert_equal_runs(folder: Path, other: Path) -> None:
    """Weights, compactors, masks, statistics and metrics, to 1e-5 of their scale."""
    rows = [(f / output.METRICS).read_text().splitlines()[1:] for f in (folder, other)]
    for one, two in zip(*rows, strict=True):
        for a, b in zip(one.split(","), two.split(","), strict=True):
            assert a == b or float(a) == pytest.approx(float(b), rel=1e-4)
    for name in (output.BASE, output.PRUNER, output.PRUNED):
        one, two = (keras.models.load_model(f / name) for f in (folder, other))
        for a, b in zip(one.variables, two.variables, strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max(), name
        if name == output.PRUNER:
            assert min(np.min(compactor.mask) for compactor in two.compactors) == 0


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(
    ("batchnorm", "more"),
    [(True, []), (False, []), (True, ["--teacher=base", "--shrink"])],
)
def test_replicas_come_to_what_one_device_comes_to(tmp_path, replicas, batchnorm, more):
    options = {"batchnorm": batchnorm, "averaged": True}
    model = runs.save(tmp_path / "small.keras", digits_network, **options)
    flags = [f"--arch={model}", *FLAGS, "--flops_target=0.4", *more]
    assert_equal_on_one_and_many(replicas, flags, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["params", "latency", "all"])
def test_every_budget_comes_to_what_it_does_on_one_device(tmp_path, budget):
    model = runs.save(tmp_path / "small.keras", digits_network, averaged=True)
    targets = flags_of(runs.load(model), budget, tmp_path / "latency.json")
    assert_equal_on_one_and_many(2, [f"--arch={model}", *FLAGS, *targets], tmp_path)


def assert_equal_on_one_and_many(replicas: int, flags: list, folder: Path) -> None:
    flags = [*flags, "--sync_batchnorm", "--strategy=mirrored"]
    on_devices(1, [*flags, f"--output={folder / 'one'}"])
    on_devices(replicas, [*flags, f"--output={folder / 'many'}"])
    assert_equal_runs(folder / "one", folder / "many")


# === Several workers ===


def start_workers(flags: list) -> list[subprocess.Popen]:
    addresses = [f"127.0.0.1:{port}" for port in runs.free_ports(2)]
    return [
        start(
            ["-m", "resrep_tf.train", *flags, "--strategy=multiworker"],
            {
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": addresses},
                        "task": {"type": "worker", "index": index},
                    }
                )
            },
        )
        for index in range(2)
    ]


@pytest.mark.slow
def test_workers_come_to_what_one_device_comes_to_even_if_one_is_killed(tmp_path):
    model = runs.save(tmp_path / "small.keras", digits_network, averaged=True)
    flags = [f"--arch={model}", *FLAGS, "--flops_target=0.4", "--sync_batchnorm"]
    on_devices(1, [*flags, f"--output={tmp_path / 'one'}"])
    many = tmp_path / "many"
    processes = start_workers([*flags, f"--output={many}"])
    while not list(many.glob("checkpoints/prune-00000001*")):
        assert processes[0].poll() is None, processes[0].communicate()[0]
        time.sleep(0.01)
    processes[1].kill()
    processes[1].communicate()
    killed = time.monotonic()
    printed = finish(processes[0], code=2)
    assert time.monotonic() - killed < 60
    assert "one of them has ended or cannot be reached" in printed
    assert not (many / output.REPORT).exists()

    known = set(many.glob("checkpoints/prune-*"))
    processes = start_workers([*flags, f"--output={many}"])
    while not set(many.glob("checkpoints/prune-*")) - known:
        assert processes[0].poll() is None, processes[0].communicate()[0]
        time.sleep(0.01)
    processes[1].terminate()
    printed = [finish(process, code=EXIT_CODE) for process in processes]
    assert "Continuing after epoch 0, step" in printed[0]

    processes = start_workers([*flags, f"--output={many}"])
    printed = [finish(process) for process in processes]
    assert "Continuing after epoch" in printed[0]
    # The chief alone speaks and writes.
    assert "Everything is in" in printed[0]
    assert "epoch" not in printed[1] and "Everything is in" not in printed[1]
    assert_equal_runs(tmp_path / "one", many)
    for name in (output.SAVED_MODEL, output.TFLITE, output.REPORT):
        assert (many / name).exists()
