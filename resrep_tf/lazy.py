"""Packages that import what they offer when it is first asked for.

A command is started within its package, and checks its flags before TensorFlow is
there, whose import takes seconds.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attributes(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package.

    Args:
        package: Its name.
        where: For each name that it offers, the module that has it.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(where[name]), name)

    return get
