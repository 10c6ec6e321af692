"""Loads .keras files that may be damaged, of another kind or hostile.

Keras says "File not found" about a file that is cut short, builds whatever a damaged
configuration asks for, and names the cause of a failure at the end of a long text. So
the archive and its configuration are checked first.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resrep_tf.lazy import keras

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_HDF5 = b"\x89HDF\r\n\x1a\n"
# Config entries that count things, each with at least one weight of one byte or more.
_COUNTS = ("filters", "units", "output_dim", "input_dim", "depth_multiplier")
_UNKNOWN = re.compile(r"Could not (?:locate|find) (?:class|function) '([^']+)'")


def load_keras(path: str | Path, compile: bool = False) -> keras.Model:
    """Loads a .keras file, in Keras's safe mode: no code in it is run.

    Args:
        path: The file.
        compile: Whether to load the optimizer, the loss and metrics too.

    Raises:
        ValueError: If the file is missing, damaged, of another kind, or needs unknown
            code; in one line that begins with the cause and names the file.
    """
    check_keras(path)
    where = Path(path).expanduser()
    try:
        return keras.models.load_model(where, compile=compile)
    except RecursionError as error:
        raise _refused(path, "its configuration is nested too deep") from error
    except MemoryError as error:
        raise _refused(path, "there is not enough memory for its layers") from error
    except Exception as error:
        # Keras raises all kinds of exceptions on a damaged configuration.
        raise _refused(path, _cause(error)) from error


def check_keras(path: str | Path) -> None:
    """Raises if a file is not a complete archive with all that Keras needs.

    No model is built, and TensorFlow is not imported.
    """
    where = Path(path).expanduser()
    try:
        if not where.is_file():
            raise _refused(path, "there is no such file")
        with where.open("rb") as file:
            start = file.read(64)
        with zipfile.ZipFile(where) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                raise _refused(path, f"the checksum of {damaged} is wrong")
            missing = {_CONFIG, _WEIGHTS} - set(archive.namelist())
            if missing:
                raise _refused(path, f"{', '.join(sorted(missing))} is missing in it")
            config = json.loads(archive.read(_CONFIG))
            size = archive.getinfo(_WEIGHTS).file_size
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except zipfile.BadZipFile as error:
        raise _refused(path, _kind(start)) from error
    except RecursionError as error:
        raise _refused(path, "its configuration is nested too deep") from error
    except (NotImplementedError, RuntimeError, zlib.error, EOFError) as error:
        raise _refused(path, f"the archive is damaged ({error})") from error
    except ValueError as error:
        if isinstance(error, UnreadableModel):
            raise
        raise _refused(path, f"its {_CONFIG} is damaged ({error})") from error
    _check_config(config, size, path)


def _kind(start: bytes) -> str:
    """Describes a file that is no archive."""
    if not start:
        return "it is empty"
    if start.startswith(_HDF5):
        return (
            "it is an HDF5 file; load it with Keras and save it again under a name "
            "that ends with .keras"
        )
    if start.startswith(b"PK"):
        return "it is cut short or damaged"
    if all(32 <= byte < 127 or byte in b"\t\n\r" for byte in start):
        return "it is a text file"
    return "it is no archive of Keras, or damaged"


def _check_config(config: Any, size: int, path: str | Path) -> None:
    for entry in _dictionaries(config):
        inner = entry.get("config")
        if not isinstance(inner, dict):
            continue
        name = inner.get("name", "")
        if entry.get("class_name") == "Lambda":
            raise _refused(
                path,
                f"its layer {name!r} is a Lambda, whose Python code would have to be "
                "run; replace it by a layer or by keras.ops, and save it again",
            )
        for key in _COUNTS:
            count = inner.get(key)
            if isinstance(count, int) and count > max(size, 1):
                raise _refused(
                    path,
                    f"its layer {name!r} asks for {key}={count}, and there are only "
                    f"{size} bytes of weights",
                )


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """Yields all dictionaries of a configuration, whatever it is nested in."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            yield current
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        return (
            f"it needs {unknown[1]!r}, which is not known here; import the module that "
            "defines it and register it with `keras.saving.register_keras_serializable`"
        )
    # Keras puts the cause behind the whole configuration.
    _, found, last = text.rpartition("Exception encountered: ")
    return f"{type(error).__name__}: {(last if found else text)[:300]}"


class UnreadableModel(ValueError):
    """Raised for a file that is no model, or a damaged or hostile one."""


def _refused(path: str | Path, cause: str) -> UnreadableModel:
    return UnreadableModel(
        f"`path` cannot be loaded: {cause}. Received: path={str(path)!r}"
    )
