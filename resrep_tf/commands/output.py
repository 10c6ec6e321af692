"""The output folder. What is in it is complete: files appear under their names whole.

Each file or folder is written under a temporary name beside its own, flushed to disk
and renamed, so that a run that is killed leaves nothing half-written behind.
"""

import contextlib
import datetime
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resrep_tf.commands.errors import CommandError

FLAGS = "run.flags"
METRICS = "metrics.csv"
TENSORBOARD = "tensorboard"
BASE = "base.keras"
PRUNER = "pruner.keras"
PRUNED = "pruned.keras"
SAVED_MODEL = "saved_model"
TFLITE = "pruned.tflite"
REPORT = "report.json"
_TEMPORARY = ".partial-"


def choose(output: str | None, arch: str, dataset: str) -> Path:
    """The folder for a run; nothing is created yet.

    Raises:
        CommandError: If there is something in it already, such as another run.
    """
    if output is None:
        time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        name = "_".join([_short(arch), _short(dataset), time])
        return Path("runs", name)
    folder = Path(output).expanduser()
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"`--output` must be a folder. Received: --output={output}")
    if folder.is_dir() and any(folder.iterdir()):
        holds = "another run" if (folder / FLAGS).exists() else "other files"
        raise CommandError(
            f"`--output` must be a new or empty folder; this one holds {holds}. "
            f"Name another, or remove it. Received: --output={output}"
        )
    return folder


def _short(name: str) -> str:
    last = re.split(r"[/\\:]", name.rstrip("/\\"))[-1]
    return re.sub(r"\W", "-", last.removesuffix(".keras").removesuffix(".npz"))


def create(folder: Path) -> None:
    """Makes a folder, or says why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(folder / "probe") as path:
            path.touch()
        (folder / "probe").unlink()
    except OSError as error:
        raise CommandError(
            f"`--output` must be a folder that can be written to: {error}. "
            f"Received: --output={folder}"
        ) from error


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, then renames it to `path`."""
    # The suffix stays the last part of the name: Keras decides by it.
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")
    try:
        yield temporary
        _flush(temporary)
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: dict[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=2) + "\n")


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def _flush(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _flush(inner)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
