"""Compares the cost of a whole pruning run with finetuning the base for as long.

From the project's root:

    python benchmarks/run_cost.py --core 0
    python benchmarks/run_cost.py --core 0 --network resnet56 --schedules auto

The training command is run for each schedule and for `--method=finetune`, all at the
same time on one core, with one thread each, so that other work slows all of them alike.
The images are random, in the size of CIFAR-10, since the cost does not depend on their
content. It prints the CPU seconds of all epochs, from the reports, and their ratios.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# A checkout works without being installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from resrep_tf import models

ROOT = Path(__file__).resolve().parents[1]
BATCH, SHAPE, CLASSES = 64, (32, 32, 3), 10
FINETUNE = "finetune"


def write_images(path: Path, steps_per_epoch: int) -> None:
    """Writes a set of random images that fills so many steps of an epoch."""
    rng = np.random.default_rng(0)
    arrays = {}
    # As in CIFAR-10, a fifth as many to evaluate on.
    for split, count in [("train", steps_per_epoch), ("test", steps_per_epoch // 5)]:
        shape = (BATCH * max(1, count), *SHAPE)
        arrays[f"x_{split}"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"y_{split}"] = rng.integers(0, CLASSES, shape[0])
    np.savez(path, **arrays)


def flags_of(run: str) -> list[str]:
    """Returns the flags of a run, given `finetune` or the name of a schedule."""
    if run == FINETUNE:
        return ["--method=finetune"]
    return [f"--schedule={run}", "--flops_target=0.5"]


def start(run: str, folder: Path, args: argparse.Namespace) -> subprocess.Popen:
    """Starts a run on the core."""
    command = [
        *(sys.executable, "-m", "resrep_tf.train"),
        f"--arch={args.network}",
        f"--dataset=npz:{folder / 'images.npz'}",
        *(f"--init_weights={folder / 'base.keras'}", "--learning_rate=0.01"),
        "--noexport",
        f"--epochs={args.epochs}",
        f"--batch_size={BATCH}",
        f"--teacher={args.teacher}",
        f"--output={folder / run}",
        *flags_of(run),
    ]
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, "1"), "PYTHONPATH": str(ROOT)}
    log = (folder / f"{run}.log").open("w", encoding="utf-8")
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
    )
    if args.core is not None:
        os.sched_setaffinity(process.pid, {args.core})
    return process


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="resnet20", help="a network for CIFAR-10")
    parser.add_argument("--schedules", default="auto,informed", help="a list")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200, help="steps of an epoch")
    parser.add_argument("--teacher", default="none", help="as for the command")
    parser.add_argument("--core", type=int, help="the core to run on")
    args = parser.parse_args()

    runs = [FINETUNE, *args.schedules.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder / "images.npz", args.steps)
        models.build(args.network, SHAPE, CLASSES).save(folder / "base.keras")
        for run, process in [(run, start(run, folder, args)) for run in runs]:
            if process.wait():
                sys.exit((folder / f"{run}.log").read_text(encoding="utf-8"))
        seconds = {
            run: json.loads((folder / run / "report.json").read_text(encoding="utf-8"))[
                "cpu_seconds"
            ]
            for run in runs
        }
    for run, spent in seconds.items():
        print(f"{run:<12}{spent:10.1f} s{spent / seconds[FINETUNE]:8.3f}")


if __name__ == "__main__":
    main()
