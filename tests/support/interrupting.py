"""Ctrl-C at a chosen moment of a function."""

import signal
import sys
from collections.abc import Callable
from inspect import CO_GENERATOR


class Moments:
    """The calls within some modules, each a moment for Ctrl-C.

    Those of functions in C are two moments, before and after.

    Args:
        *modules: How the names of the modules begin.
    """

    def __init__(self, *modules: str):
        self._modules = modules
        self._number: int | None = None
        self._count = 0

    def count(self, function: Callable[[], object]) -> int:
        """Returns how many moments a call of the function has."""
        self._run(None, function)
        return self._count

    def interrupt(self, number: int, function: Callable[[], object]) -> bool:
        """Calls the function, with Ctrl-C at a moment; returns if it has fewer ones."""
        try:
            self._run(number, function)
        except KeyboardInterrupt:
            return False
        return True

    def _run(self, number: int | None, function: Callable[[], object]) -> None:
        self._number, self._count = number, 0
        sys.setprofile(self._profile)
        try:
            function()
        finally:
            sys.setprofile(None)

    def _profile(self, frame, event, argument) -> None:
        generator = frame.f_code.co_flags & CO_GENERATOR
        if event == "return" or (event == "call" and generator):
            # An exception would leave a generator here without its `finally`, which
            # that of a true signal does not.
            return
        if frame.f_globals.get("__name__", "").startswith(self._modules):
            self._count += 1
            if self._count == self._number:
                signal.raise_signal(signal.SIGINT)
