"""Starts a command, and ends it with one line whatever goes wrong."""

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
# As a shell has it of a program that SIGPIPE ended.
_PIPE = 141


def run(command: Callable[[Sequence[str]], None] | str) -> None:
    """Runs a command on the process's arguments.

    Exits with code 2 and one line on stderr if the user can put something right, and
    with a code of its own if a signal came and the run can go on later. With
    `--debug`, the stack trace comes before the line.

    Args:
        command: A function of the arguments; or the name of the module whose `run`
            that is, which is imported here so that Ctrl-C leaves no trace then either.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    try:
        if isinstance(command, str):
            # The package has let Ctrl-C end the process while it was imported.
            if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            command = importlib.import_module(command).run
        try:
            command(arguments)
        finally:
            if sys.stdout is not None:  # As in a program without a console.
                sys.stdout.flush()  # Here, where it is known what an error means.
    except Interrupted:
        _end("interrupted; the same command goes on from here", EXIT_CODE)
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except CommandError as error:
        _end(f"error: {error}", 2)
    except BrokenPipeError:
        # Whoever reads has seen enough, as in `... | head`.
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
    """Lets what a stream still holds be written to nowhere, when Python ends."""
    with contextlib.suppress(OSError, ValueError):  # Not a stream of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unforeseen(error: Exception) -> str:
    return (
        f"error: {type(error).__name__}: {brief(error)} (Not foreseen; "
        f"{DEBUG} shows where it happened.)"
    )
