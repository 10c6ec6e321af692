"""Finds flagfiles by name, in a checkout and in an installed package."""

import difflib
import importlib.resources
import os
from collections.abc import Sequence

from resrep_tf.cli.errors import CommandError

SUFFIX = ".flags"
# `import` cannot be the name of a field in Python.
_ALIASES = {"--import": "--imports", "-import": "--imports"}
_FLAGS = ("--recipe", "-recipe", "--flagfile", "-flagfile")


def names() -> list[str]:
    """Returns the names of the recipes that come with the package."""
    files = importlib.resources.files("resrep_tf.flags").iterdir()
    return sorted(
        item.name.removesuffix(SUFFIX) for item in files if item.name.endswith(SUFFIX)
    )


def read(name: str) -> str:
    """Returns the text of a recipe, given the path of a file or its name."""
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(
                f"`--recipe` must be a text file with a flag on each line: {error}. "
                f"Received: --recipe={name}"
            ) from error
    known = names()
    short = name.removesuffix(SUFFIX)
    if short not in known:
        near = difflib.get_close_matches(short, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise CommandError(
            "`--recipe` must be a file or one of the recipes of this package: "
            f"{', '.join(known)}.{hint} Received: --recipe={name}"
        )
    folder = importlib.resources.files("resrep_tf.flags")
    return folder.joinpath(short + SUFFIX).read_text(encoding="utf-8")


def expand(arguments: Sequence[str], within: Sequence[str] = ()) -> list[str]:
    """Returns a command line in which flagfiles are replaced by their flags.

    These come first, so that flags on the command line win, wherever the flagfile
    stands in it.

    Args:
        arguments: A command line, or the lines of a flagfile.
        within: The flagfiles that these arguments were read from, outer ones first.
    """
    from_files, others = [], []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, separator, value = argument.partition("=")
        if flag not in _FLAGS:
            others.append(_ALIASES.get(flag, flag) + separator + value)
            continue
        if not separator:
            if not rest:
                raise CommandError(f"`{flag}` needs a value. Received: {argument}")
            value = rest.pop(0)
        if value in within:
            raise CommandError(
                f"`{flag}` must not lead back to itself: a flagfile includes itself. "
                f"Received: {' -> '.join([*within, value])}"
            )
        from_files += expand(_lines(read(value)), [*within, value])
    return from_files + others


def _lines(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "//"))]
