"""Errors of the user, as opposed to errors of the program."""

import contextlib
import re
from collections.abc import Iterator


class CommandError(Exception):
    """A mistake that the user can correct: one line, without a stack trace."""


@contextlib.contextmanager
def blame(flag: str) -> Iterator[None]:
    """Turns the library's error about a wrong value into an error of that flag.

    The text is that of the library. If it begins with an argument of the same name,
    the flag replaces the argument; otherwise the flag is put in front of the text.

    Use it only around code that does nothing but check or read what the flag names,
    where these exceptions mean that the value is wrong.
    """
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.strerror}. Received: {error.filename!r}"
        if message.startswith(f"`{flag}`"):
            message = message.replace(f"`{flag}`", f"`--{flag}`", 1)
            message = message.replace(f"Received: {flag}=", f"Received: --{flag}=")
        else:
            message = f"`--{flag}`: {message}"
        raise CommandError(message) from error


def brief(error: Exception) -> str:
    """Returns an error's first line, without TensorFlow's notes on its graph."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]", "", str(error)).strip()
    return text.splitlines()[0].strip() if text else type(error).__name__
