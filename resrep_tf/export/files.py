"""Files and folders that appear under their names whole, or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# The beginning of temporary names; what is left of a killed process has it too.
TEMPORARY = ".partial-"


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, then renames it to `path`.

    The temporary one is beside `path`, is flushed to disk before it is renamed, and
    is removed when anything goes wrong, an interruption included.
    """
    # The suffix stays the last part of the name: Keras decides by it.
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    replaced = path.with_name(f"{TEMPORARY}{os.getpid()}-old-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush(temporary)
        if path.is_dir():
            # A folder that is not empty cannot be renamed over.
            os.replace(path, replaced)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # In a folder that has become read-only.
            if replaced.exists() and not path.exists():
                os.replace(replaced, path)
            for left in (temporary, replaced):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def size(path: Path) -> int:
    """Returns the bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def _flush(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _flush(inner)
    _sync(path)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
