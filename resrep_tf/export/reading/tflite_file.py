"""Checks that a TensorFlow Lite file can be loaded without ending the process.

TensorFlow Lite trusts its files: an offset that points outside of the file, or an
impossible number, crashes the process that loads or runs it.
"""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from resrep_tf.export.reading import tflite_trial

_IDENTIFIER = b"TFL3"
# The schema's numbers of the fields that matter, in the model and in a buffer.
_SUBGRAPHS, _BUFFERS, _DATA = 2, 4, 0
_SECONDS = 300


def check(content: bytes, path: Path) -> None:
    """Raises if a file is of another kind, or ends before its contents do."""
    if content[4:8] != _IDENTIFIER:
        raise ValueError(
            f"`path` is not a TensorFlow Lite file. Received: path={str(path)!r}"
        )
    try:
        _walk(content)
    except (struct.error, IndexError) as error:
        raise _damaged(path, "it is cut short, or an offset in it is wrong") from error


def try_out(content: bytes, path: Path) -> None:
    """Raises if the model cannot be run on small random batches.

    It runs in a separate process, which takes a fraction of a second.
    """
    if not sys.executable:  # Python is embedded in another program.
        return
    library = _library()
    code, said = _trial(content, path, library)
    if code == tflite_trial.NEEDS_TENSORFLOW and library:
        code, said = _trial(content, path, "")
    if code == tflite_trial.REFUSED:
        raise _damaged(path, f"TensorFlow Lite says {said!r}")
    if code not in (0, tflite_trial.NEEDS_TENSORFLOW):
        raise _damaged(path, f"running it ended a process with {code}")


def _trial(content: bytes, path: Path, library: str) -> tuple[int, str]:
    """Returns the exit code of a trial and what it printed, in one line."""
    command = [sys.executable, "-P", tflite_trial.__file__, library]
    try:
        done = subprocess.run(
            command,
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _damaged(path, f"running it took more than {_SECONDS} s") from error
    said = " ".join(done.stdout.decode(errors="replace").split())
    return done.returncode, said[:300]


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"`path` is damaged: {reason}. Received: path={str(path)!r}")


def _library() -> str:
    """Returns the path of TensorFlow Lite's interpreter, or "" if not found.

    A process that loads only this library starts at once; TensorFlow takes seconds.
    """
    name = "_pywrap_tensorflow_interpreter_wrapper"
    for module in list(sys.modules):
        if module.rpartition(".")[2] == name:
            file = getattr(sys.modules[module], "__file__", None) or ""
            if not file.endswith(".py"):
                return file
    return ""


# === Flatbuffers ===


def _walk(content: bytes) -> None:
    """Reads the tables of the model's subgraphs and the data of every buffer."""
    model = _reference(content, 0)
    for table in _tables(content, _field(content, model, _SUBGRAPHS)):
        _vtable(content, table)
    for table in _tables(content, _field(content, model, _BUFFERS)):
        data = _field(content, table, _DATA)
        if data is not None:
            _vector(content, data, 1)


def _reference(content: bytes, place: int) -> int:
    """Returns the place that an unsigned offset at `place` points to."""
    return place + _number(content, "<I", place)


def _number(content: bytes, kind: str, place: int) -> int:
    if place < 0:
        # Python would count a negative index from the end.
        raise IndexError(place)
    return struct.unpack_from(kind, content, place)[0]


def _vtable(content: bytes, table: int) -> tuple[int, int]:
    """Returns where a table's list of fields is, and how many bytes it has."""
    place = table - _number(content, "<i", table)
    size = _number(content, "<H", place)
    if size < 4 or place + size > len(content):
        raise IndexError(place)
    if table + _number(content, "<H", place + 2) > len(content):
        raise IndexError(table)
    return place, size


def _field(content: bytes, table: int, number: int) -> int | None:
    """Returns what a field of a table refers to, or None if it is not there."""
    place, size = _vtable(content, table)
    entry = 4 + 2 * number
    offset = _number(content, "<H", place + entry) if entry < size else 0
    return _reference(content, table + offset) if offset else None


def _vector(content: bytes, place: int, item: int) -> int:
    """Returns the length of a vector; raises if it ends behind the file."""
    length = _number(content, "<I", place)
    if place + 4 + length * item > len(content):
        raise IndexError(place)
    return length


def _tables(content: bytes, vector: int | None) -> Iterator[int]:
    if vector is None:
        raise IndexError("missing")
    for number in range(_vector(content, vector, 4)):
        yield _reference(content, vector + 4 + 4 * number)
