"""`--import`: layers of the user's own, for models in files."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.flagset import flag


def imports_flag(**options: Any) -> Any:
    """Declares `--imports`, which can also be written `--import`."""
    return flag(
        [],
        "Modules to import before a model is loaded, by name or by the path of a .py "
        "file: they bring layers of your own along. --import means the same.",
        clean=_absolute,
        read=bring,
        **options,
    )


def bring(names: Sequence[str]) -> tuple[str, ...]:
    """Imports modules, and makes their classes and functions known to Keras."""
    for name in names:
        module = _imported(name)
        known = keras.saving.get_custom_objects()
        for key, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and callable(
                value
            ):
                known[key] = value
    return tuple(names)


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
        raise CommandError(
            "`--import` must be the name of a module that Python finds, or the path "
            f"of a .py file: {type(error).__name__}: {error}. Received: --import={name}"
        ) from error


def _from_file(path: str) -> ModuleType:
    stem = os.path.splitext(os.path.basename(path))[0]
    found = sys.modules.get(stem)
    # Once: a second import would make other classes of the same names.
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
