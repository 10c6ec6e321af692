"""Runs a command, and ends it with one line if anything goes wrong."""

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

from resrep_tf.cli.errors import CommandError, brief
from resrep_tf.cli.interruption import EXIT_CODE, Interrupted

DEBUG = "--debug"
# The exit code that shells give to a program that SIGPIPE ended.
_PIPE = 141


def run(command: Callable[[Sequence[str]], None] | str) -> None:
    """Runs a command on the process's arguments.

    Exits with code 2 and one line on stderr after a mistake that the user can correct,
    and with a code of its own after a signal, when the run can be continued later. With
    `--debug`, the stack trace comes before the line.

    Args:
        command: A function of the arguments, or the name of a module with such a
            function `run`. A module is imported here, so that Ctrl-C prints no stack
            trace during its import either.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    try:
        if isinstance(command, str):
            # While the package was imported, Ctrl-C ended the process.
            if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            command = importlib.import_module(command).run
        try:
            command(arguments)
        finally:
            if sys.stdout is not None:  # It is None in a program without a console.
                sys.stdout.flush()  # An error here means that nobody reads any more.
    except Interrupted:
        _end("interrupted; the same command continues from here", EXIT_CODE)
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except CommandError as error:
        _end(f"error: {error}", 2)
    except BrokenPipeError:
        # The reader of the output has closed it, as in `... | head`.
        _discard(sys.stdout)
        raise SystemExit(_PIPE) from None
    except OSError as error:
        if error.filename is None:
            _end(_unforeseen(error), 1)
        _end(f"error: {error.strerror}. Received: {error.filename!r}", 2)
    except Exception as error:
        _end(_unforeseen(error), 1)


def _end(line: str, code: int) -> NoReturn:
    try:
        if DEBUG in sys.argv[1:]:
            traceback.print_exc()
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _discard(sys.stderr)
    raise SystemExit(code) from None


def _discard(stream: IO[str]) -> None:
    """Discards what a stream still holds, so that Python does not fail at its end."""
    with contextlib.suppress(OSError, ValueError):  # Not a stream of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unforeseen(error: Exception) -> str:
    return (
        f"error: {type(error).__name__}: {brief(error)} (Unexpected; "
        f"{DEBUG} shows where it happened.)"
    )
