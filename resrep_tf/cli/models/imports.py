"""`--import`: layers of the user's own, for models in files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.flagset import flag
from resrep_tf.cli.tensorflow_log import start_tensorflow
from resrep_tf.lazy import keras


def imports_flag(**options: Any) -> Any:
    """Declares `--imports`, which can also be written `--import`."""
    return flag(
        [],
        "Modules to import before a model is loaded, by name or by the path of a .py "
        "file. They define layers of your own. --import means the same.",
        clean=_absolute,
        read=_existing,
        **options,
    )


def bring(names: Sequence[str]) -> None:
    """Imports modules, so that Keras knows their classes and functions.

    This package's own classes are imported too. All of them import Keras, which takes
    seconds, so call this after all checks of flags.
    """
    start_tensorflow()
    importlib.import_module("resrep_tf.classes")
    for name in names:
        module = _imported(name)
        known = keras.saving.get_custom_objects()
        for key, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and callable(
                value
            ):
                known[key] = value


def _existing(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names; raises if one is not found. Nothing is imported."""
    for name in names:
        if _is_path(name) and not os.path.isfile(name):
            raise _refused(name, "there is no such file")
        if not _is_path(name) and not _is_found(name.partition(".")[0]):
            raise _refused(name, "there is no such module")
    return tuple(names)


def _is_found(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ValueError:  # An empty name.
        return False


def _refused(name: str, cause: str) -> CommandError:
    return CommandError(
        "`--import` must be the name of a module that Python finds, or the path "
        f"of a .py file: {cause}. Received: --import={name}"
    )


def _absolute(names: Sequence[str]) -> list[str]:
    """Returns the names with absolute paths, where they are paths."""
    return [
        os.path.abspath(os.path.expanduser(name)) if _is_path(name) else name
        for name in names
    ]


def _is_path(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def _imported(name: str) -> ModuleType:
    try:
        return _from_file(name) if _is_path(name) else importlib.import_module(name)
    except Exception as error:  # A module of the user's can raise anything.
        raise _refused(name, f"{type(error).__name__}: {error}") from error


def _from_file(path: str) -> ModuleType:
    stem = os.path.splitext(os.path.basename(path))[0]
    found = sys.modules.get(stem)
    # Import it once: a second import would make other classes of the same names.
    if found is not None and getattr(found, "__file__", None) == path:
        return found
    spec = importlib.util.spec_from_file_location(stem, path)
    if spec is None or not os.path.isfile(path):
        raise FileNotFoundError("there is no such file")
    module = importlib.util.module_from_spec(spec)
    # Saved models name the module that a layer is from.
    sys.modules[stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[stem]
        raise
    return module
