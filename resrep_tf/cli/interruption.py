"""SIGTERM and Ctrl-C: they end a run at a moment when it can be continued."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from resrep_tf.cli.errors import CommandError

# EX_TEMPFAIL of sysexits.h: no error; the same command continues the run later.
EXIT_CODE = 75


class Interrupted(BaseException):
    """Raised to end a run after a signal, when all results so far are saved.

    Like `KeyboardInterrupt`, it is not an `Exception`: it may be raised within an
    exporter, and exporters catch every `Exception`.
    """


class Interruption:
    """Turns the first signal into `Interrupted`, at once or at a safe moment.

    Attributes:
        requested: Whether a signal has come.
    """

    def __init__(self):
        self.requested = False
        self._at_once = True

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Handles signals within the block; a second signal has its usual effect."""
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
            # A library may turn `Interrupted` into an exception of its own. And when
            # one of several workers ends, the others fail with errors.
            raise Interrupted from error
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def handled(self, at_once: bool) -> Iterator[None]:
        """Sets whether a signal raises at once within the block, or at its end."""
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
