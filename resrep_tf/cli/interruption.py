"""Stopping in time: SIGTERM and Ctrl-C end a run at a moment when it is whole."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from resrep_tf.cli.errors import CommandError

# EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command goes on later.
EXIT_CODE = 75


class Interrupted(BaseException):
    """A signal has asked the run to end, and all that it has done so far is saved.

    Like `KeyboardInterrupt` no `Exception`: it is raised anywhere, also within
    exporters that take every exception for a failure of their own.
    """


class Interruption:
    """Turns the first signal into `Interrupted`, at once or when it is convenient.

    Attributes:
        requested: Whether a signal has come.
    """

    def __init__(self):
        self.requested = False
        self._at_once = True

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
        except CommandError:
            raise
        except Exception as error:
            if not self.requested:
                raise
            # A library's code can make another exception of one that is raised in
            # its midst; and of several workers, the first to end fails the others.
            raise Interrupted from error
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def handled(self, at_once: bool) -> Iterator[None]:
        """Says whether a signal raises at once within, or is only noted."""
        before, self._at_once = self._at_once, at_once
        try:
            self._raise_if_due()
            yield
        finally:
            self._at_once = before
        self._raise_if_due()

    def _note(self, number: int, frame) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.requested = True
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self.requested and self._at_once:
            raise Interrupted
