"""Stopping in time: SIGTERM and Ctrl-C end a run at a moment when it is whole."""

import contextlib
import signal
import threading
from collections.abc import Iterator

# EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command goes on later.
EXIT_CODE = 75


class Interrupted(Exception):
    """A signal has asked the run to end, and its state is saved."""


class Interruption:
    """Notes that a signal came, for the training loop to act upon."""

    def __init__(self):
        self.requested = False
        self._immediately = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Handles signals within; a second one of a kind has its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python hands signals to the main thread only.
            return
        usual = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def immediate(self) -> Iterator[None]:
        """Within, a signal raises `Interrupted` at once instead of being noted."""
        self._immediately = True
        try:
            if self.requested:
                raise Interrupted
            yield
        finally:
            self._immediately = False

    def _note(self, number: int, frame) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.requested = True
        if self._immediately:
            raise Interrupted
