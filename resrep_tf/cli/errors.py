"""Telling a user's mistake from a mistake of the program."""

import contextlib
import re
from collections.abc import Iterator


class CommandError(Exception):
    """What the user can put right: shown as one line, without a stack trace."""


@contextlib.contextmanager
def blame(flag: str) -> Iterator[None]:
    """Turns what the library says about a wrong value into an error of that flag.

    Only around code that does nothing but look at what the flag names, where these
    exceptions mean that the value is wrong.
    """
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        message = " ".join(str(error).split())
        raise CommandError(f"`--{flag}`: {message}") from error


def brief(error: Exception) -> str:
    """What an error says, without TensorFlow's notes on where in its graph it was."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]", "", str(error)).strip()
    return text.splitlines()[0].strip() if text else type(error).__name__
