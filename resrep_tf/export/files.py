"""Writes files and folders that appear under their names complete or not at all."""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The beginning of temporary names, by which leftovers of a killed process are known.
TEMPORARY = ".partial-"


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, then renames it to `path`.

    The temporary file is beside `path` and is flushed to disk before it is renamed. It
    is removed if anything goes wrong, including an interruption.
    """
    # The suffix stays the end of the name, since Keras reads the format from it.
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    replaced = path.with_name(f"{TEMPORARY}{os.getpid()}-old-{path.name}")
    with Signals() as signals:
        try:
            signals.wait = False
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _flush(temporary)
            signals.wait = True
            if path.is_dir():
                # Renaming cannot replace a folder that is not empty.
                os.replace(path, replaced)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            signals.wait = True
            with contextlib.suppress(OSError):  # The folder may be read-only by now.
                if replaced.exists() and not path.exists():
                    os.replace(replaced, path)
                for left in (temporary, replaced):
                    _remove(left)


class Signals:
    """Makes Ctrl-C and SIGTERM wait while files are renamed and removed.

    Attributes:
        wait: Whether a signal waits for the end of the block; otherwise it has its
            usual effect. It is true at the start of the block and must be true at
            its end. Setting it is one instruction, which no signal can interrupt.
    """

    def __init__(self):
        self.wait = True
        self._usual: dict[int, Any] = {}
        self._waiting: list[int] = []

    def __enter__(self) -> "Signals":
        # Python hands signals to the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                usual = signal.getsignal(number)
                if callable(usual):  # A handler of Python, not of the system.
                    self._usual[number] = usual
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, usual in self._usual.items():
            if signal.getsignal(number) == self._note:  # Others may have changed it.
                signal.signal(number, usual)
        for number in self._waiting:
            signal.raise_signal(number)

    def _note(self, number: int, frame: Any) -> None:
        if self.wait:
            self._waiting.append(number)
        else:
            self._usual[number](number, frame)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


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
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
