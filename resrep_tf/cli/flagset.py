"""Flags in groups: defined without global state, explained in a readable order."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from resrep_tf.cli import recipes
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import EXIT_CODE, Interrupted

_HELP = ("--help", "-help", "-h", "--helpshort", "-helpshort", "--helpfull")


class FlagSet:
    """The flags of one command.

    They are absl's, but in a set of their own instead of the global one: the modules
    that define them can be imported twice, and tests can parse any number of command
    lines.

    Args:
        usage: How the command is called, and what it does.
    """

    def __init__(self, usage: str):
        self.usage = usage
        self.values = flags.FlagValues()
        self.groups: dict[str, list[str]] = {}

    # === Defining ===

    def group(self, title: str) -> None:
        """Starts a group; the flags that follow belong to it."""
        self.groups[title] = []

    def string(self, name: str, default: str | None, text: str) -> None:
        self._define(flags.DEFINE_string, name, default, text)

    def integer(
        self,
        name: str,
        default: int | None,
        text: str,
        lower: int | None = None,
        upper: int | None = None,
    ) -> None:
        bounds = {"lower_bound": lower, "upper_bound": upper}
        self._define(flags.DEFINE_integer, name, default, text, **bounds)

    def number(
        self, name: str, default: float | None, text: str, lower: float | None = None
    ) -> None:
        self._define(flags.DEFINE_float, name, default, text, lower_bound=lower)

    def choice(
        self, name: str, default: str | None, choices: Sequence[str], text: str
    ) -> None:
        self._define(flags.DEFINE_enum, name, default, list(choices), text)

    def switch(self, name: str, default: bool, text: str) -> None:
        self._define(flags.DEFINE_boolean, name, default, text)

    def items(self, name: str, default: Sequence[str] | None, text: str) -> None:
        self._define(flags.DEFINE_list, name, default, text)

    def _define(self, define: Callable, name: str, *args: Any, **kwargs: Any) -> None:
        define(name, *args, flag_values=self.values, **kwargs)
        list(self.groups.values())[-1].append(name)

    # === Parsing ===

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Reads a command line without the program's name.

        Returns:
            The flags' values by name.

        Raises:
            CommandError: If the command line is wrong.
            SystemExit: With code 0, after printing the help that was asked for.
        """
        values, rest = self._parse(recipes.expand(arguments), known_only=False)
        if rest:
            raise CommandError(
                "Every argument must be a flag, `--name=value`. "
                f"Received: {' '.join(rest)}"
            )
        return values

    def parse_known(self, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """As `parse`, for commands that hand flags on to another one.

        Returns:
            The flags' values by name, and the arguments that are not among them.
        """
        return self._parse(arguments, known_only=True)

    def _parse(
        self, arguments: Sequence[str], known_only: bool
    ) -> tuple[dict[str, Any], list[str]]:
        if any(argument in _HELP for argument in arguments):
            print(self.help())
            raise SystemExit(0)
        try:
            rest = self.values(["", *arguments], known_only=known_only)[1:]
        except flags.Error as error:
            message = " ".join(str(error).split()).replace(" ?", "?")
            raise CommandError(
                f"{message} (All flags: --helpshort.) Received: {' '.join(arguments)}"
            ) from error
        return self.values.flag_values_dict(), rest

    def help(self) -> str:
        width = min(88, max(60, shutil.get_terminal_size().columns))
        lines = [self.usage.strip(), ""]
        for title, names in self.groups.items():
            lines.append(f"{title}:")
            for name in names:
                lines += self._describe(name, width)
            lines.append("")
        return "\n".join(lines)

    def _describe(self, name: str, width: int) -> list[str]:
        flag = self.values[name]
        head = f"  --[no]{name}" if flag.boolean else f"  --{name}"
        indent = " " * 26
        text = flag.help
        choices = text.partition(" ")[0]
        if len(choices) > width - len(indent):
            text = text.replace(choices, choices.replace("|", "| "), 1)
        if flag.default not in (None, [], ""):
            text += f" (default: {flag.default_as_str.strip(chr(39))})"
        if len(head) > 24:
            return [head, *_wrap(text, width, indent, indent)]
        return _wrap(text, width, head.ljust(26), indent)

    # === Writing ===

    def flagfile(self, values: dict[str, Any], leave_out: Sequence[str] = ()) -> str:
        """The text of a flagfile that sets the given values, in groups."""
        lines = []
        for title, names in self.groups.items():
            chosen = [
                _serialise(name, values[name])
                for name in names
                if name not in leave_out and values[name] is not None
            ]
            if chosen:
                lines += [f"# {title}", *chosen, ""]
        return "\n".join(lines)


def _serialise(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in value)
    return f"--{name}={value}"


def _wrap(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def run(command: Callable[[Sequence[str]], None]) -> None:
    """Runs a command on the process's arguments.

    Exits with code 2 and one line on stderr if the user can put something right, and
    with a code of its own if a signal came and the run can go on later.
    """
    try:
        command(sys.argv[1:])
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Interrupted:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        raise SystemExit(EXIT_CODE) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
