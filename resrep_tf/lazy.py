"""Imports modules at their first use.

Commands check their flags and paths before they import TensorFlow, which takes
seconds. So the modules that flags need take `keras`, `layers` and `tf` from here, and
packages import their public names at the first use.
"""

import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any


class _Module(types.ModuleType):
    """Stands for a module, which is imported at its first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


keras: Any = _Module("keras")
layers: Any = _Module("keras.layers")
tf: Any = _Module("tensorflow")


def attributes(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package.

    Args:
        package: Its name.
        where: For each public name, the module that has it.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(where[name]), name)

    return get
