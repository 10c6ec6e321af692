"""A shell in which the commands of pages run quickly: small data, few steps."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .pages import ROOT

# Flags for quick runs that come after those of a command: each set for the commands
# which all of its words stand in. The last of several flags of a name counts.
_TRAIN = "--epochs=2 --steps_per_epoch=3 --eval_steps=1 --batch_size=4 --export=keras"
QUICK = {
    "resrep_tf.train": f"{_TRAIN} --base_epochs=1",
    "resrep_tf.train --init_weights": "--base_epochs=0",
    "resrep_tf.train .keras": "--base_epochs=0",
    "resrep_tf.train resnet50": "--image_size=32",
    "resrep_tf.train multiworker": "--output=shared",
    "resrep_tf.train --schedule=informed": "--output=runs/NAME",
    "resrep_tf.study": f"{_TRAIN} --seeds=0",
    "resrep_tf.study --preset=digits": "--base_epochs=1",
    "resrep_tf.study --study=variants": "--only=resrep,shrink",
    "resrep_tf.study --study=criteria": "--only=resrep,taylor",
    "resrep_tf.study --study=ablation": "--only=lasso-0.3",
    "resrep_tf.study cifar10 variants": "--only=resrep,vector",
    "benchmarks/latency.py": (
        "--rounds 2 --networks resnet56 --runtimes litert --batches 1"
    ),
    "benchmarks/run_cost.py": "--core 0 --epochs 2 --steps 3",
    "benchmarks/step.py": "--steps 1 --rounds 1 --batch_size 2",
    "benchmarks/zoo.py": "--networks ^MobileNetV2$ --fresh",
}

# Programs that are found first. `taskset` needs the core that it names, and
# schedulers their machines.
_PROGRAMS = {
    "python": f'#!/bin/sh\nexec "{sys.executable}" "$(dirname "$0")/quick.py" "$@"\n',
    "quick.py": (
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "given = sys.argv[1:]\n"
        "rules = json.loads(Path(__file__).with_name('quick.json').read_text())\n"
        "for words, flags in rules.items():\n"
        "    if all(word in ' '.join(given) for word in words.split()):\n"
        "        sys.argv += flags.split()\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    ),
    "ruff": f'#!/bin/sh\nexec "{sys.executable}" -m ruff "$@"\n',
    "taskset": '#!/bin/sh\nshift 2\nexec "$@"\n',
    "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
    "srun": '#!/bin/sh\nSLURM_PROCID=0 exec "$@"\n',
}


def added(arguments: Sequence[str]) -> list[str]:
    """Returns the flags that make a command quick."""
    text = " ".join(arguments)
    found = [f for words, f in QUICK.items() if all(w in text for w in words.split())]
    return " ".join(found).split()


def write_programs(folder: Path) -> None:
    """Writes the programs that a quick shell finds before all others."""
    folder.mkdir()
    for name, text in {**_PROGRAMS, "quick.json": json.dumps(QUICK)}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(stat.S_IRWXU)


def start(code: str, folder: Path, programs: Path) -> subprocess.Popen:
    """Starts a shell that stops at the first error.

    Args:
        code: What it executes.
        folder: Where it starts, which is the home of its user too.
        programs: The folder that `write_programs` filled.
    """
    environment = {
        **os.environ,
        "HOME": str(folder),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_NODELIST": "all",
    }
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
