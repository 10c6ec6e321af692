"""The output folder of a run. A file that exists is complete.

Each file or folder is first written under a temporary name beside its own, flushed to
disk and then renamed. So a run that is killed leaves no half-written file under the
name of a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resrep_tf.cli.errors import CommandError, brief
from resrep_tf.export import files
from resrep_tf.lazy import tf

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked.
    fcntl = None

FLAGS = "run.flags"
METRICS = "metrics.csv"
TENSORBOARD = "tensorboard"
BASE = "base.keras"
PRUNER = "pruner.keras"
SHRUNK = "shrunk.keras"
PRUNED = "pruned.keras"
SAVED_MODEL = "saved_model"
TFLITE = "pruned.tflite"
REPORT = "report.json"
REPORT_PAGE = "report.html"
CHECKPOINTS = "checkpoints"
SNAPSHOTS = "snapshots"


def choose(name: str | None, arch: str, dataset: str, flagfile: str) -> Path:
    """Returns the folder of a run; nothing is created yet.

    The same command gets the same folder, so it continues a run that was stopped.
    """
    if name is None:
        digest = hashlib.sha256(flagfile.encode()).hexdigest()[:8]
        return Path("runs", "_".join([_short(arch), _short(dataset), digest]))
    return _folder(name)


def choose_new(name: str) -> Path:
    """Returns a folder; raises unless it is new or empty. Nothing is created yet."""
    folder = _folder(name)
    if folder.is_dir() and any(folder.iterdir()):
        raise CommandError(
            "`--output` must be a new or empty folder; this one is not. "
            f"Received: --output={name}"
        )
    return folder


def _folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"`--output` must be a folder. Received: --output={name}")
    return folder


def holds_run(folder: Path) -> bool:
    """Returns whether a folder holds a run, finished or not; False if it is empty.

    Raises:
        CommandError: If it holds other files.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    names = {name for name in names if not name.startswith(files.TEMPORARY)}
    if names and FLAGS not in names:
        raise CommandError(
            "`--output` must be a new or empty folder, or that of a run to "
            f"continue; this one holds other files. Received: --output={folder}"
        )
    return FLAGS in names


def _short(name: str) -> str:
    last = re.split(r"[/\\:]", name.rstrip("/\\"))[-1]
    return re.sub(r"\W", "-", last.removesuffix(".keras").removesuffix(".npz"))


def create(folder: Path) -> None:
    """Creates a folder; raises if it cannot be written to."""
    with _blamed(folder):
        folder.mkdir(parents=True, exist_ok=True)
    check(folder)


def check(folder: Path) -> None:
    """Raises if a folder cannot be created or written to; leaves nothing behind."""
    with _blamed(folder):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass


@contextlib.contextmanager
def _blamed(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(
            f"`--output` must be a folder that can be written to: {error}. "
            f"Received: --output={folder}"
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a run's folder against other processes."""
    if fcntl is None:
        yield
        return
    with (folder / FLAGS).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(
                "`--output` is in use: another process is working in it. (Several "
                "workers of one run need `--strategy=multiworker`.) "
                f"Received: --output={folder}"
            ) from error
        for left in folder.glob(f"**/{files.TEMPORARY}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error about writing into one that names the file or folder."""
    try:
        yield
    except Exception as error:
        if not _is_unwritable(error):
            raise
        raise CommandError(
            f"Cannot write {path}. All files written before are intact; the same "
            f"command continues from there. Received: {brief(error)}"
        ) from error


def _is_unwritable(error: Exception) -> bool:
    """Returns whether an error says that a disk is full or cannot be written to."""
    kinds = (
        OSError,
        tf.errors.ResourceExhaustedError,
        tf.errors.PermissionDeniedError,
        tf.errors.FailedPreconditionError,
        tf.errors.NotFoundError,
    )
    return isinstance(error, kinds)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, then renames it to `path`."""
    with writing(path), files.atomic(path) as temporary:
        yield temporary


def write_text(path: Path, text: str) -> None:
    """Writes a text file; an interruption leaves no half of it."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_report(folder: Path) -> dict[str, Any]:
    """Returns the contents of a finished run's `report.json`."""
    path = folder / REPORT
    try:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__} instead of an object")
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, folder, error) from error
    return found


def damaged(path: Path, folder: Path, error: Exception) -> CommandError:
    """Returns the error about a file of a run that can no longer be read."""
    return CommandError(
        f"`--output`: {path.name} of this run is damaged or missing "
        f"({type(error).__name__}: {brief(error)[:200]}). Delete it, and the same "
        f"command creates it again. Received: --output={folder}"
    )


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON file; an interruption leaves no half of it."""
    write_text(path, json.dumps(values, indent=2) + "\n")
