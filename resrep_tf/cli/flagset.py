"""Flags of a command, declared as the fields of a dataclass.

A field has everything about its flag: default, help, bounds, and which other flags the
default depends on. So a new flag needs one new field and nothing else.
"""

import dataclasses
import math
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from absl import flags

from resrep_tf.cli import recipes
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.running import DEBUG

Settings = TypeVar("Settings")

_HELP = ("--help", "-help", "-h", "--helpshort", "-helpshort", "--helpfull")
_FLAG = "flag"  # The key of a field's metadata.


@dataclasses.dataclass(frozen=True)
class Flag:
    """The flag of a field, with the type of the field.

    Attributes:
        default: The value if the flag is not given.
        text: The help.
        group: Starts a group of flags with this title, in the help and in flagfiles.
        choices: The values that are possible, if only some are.
        lower: The smallest possible value.
        upper: The largest possible value.
        positive: Whether the value must be larger than zero.
        below: A number that the value must be less than.
        fill: Returns the default where it depends on other flags; see `Values`.
        clean: Returns the value in a form that means the same in every folder.
        read: Returns the field's value, given the flag's value.
        written: Whether the flag is written to flagfiles.
        mark: A word that groups flags for the command; see `marked`.
    """

    default: Any
    text: str
    group: str | None = None
    choices: Sequence[str] | None = None
    lower: float | None = None
    upper: float | None = None
    positive: bool = False
    below: float | None = None
    fill: Callable[["Values"], Any] | None = None
    clean: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    written: bool = True
    mark: str | None = None


def flag(default: Any, text: str, **options: Any) -> Any:
    """Declares a field of a settings class as a flag; see `Flag`."""
    return dataclasses.field(metadata={_FLAG: Flag(default, text, **options)})


def declared(settings: type) -> dict[str, Flag]:
    """Returns the flags of a settings class by name, in their order."""
    return {field.name: field.metadata[_FLAG] for field in dataclasses.fields(settings)}


def marked(settings: type, mark: str) -> tuple[str, ...]:
    """Returns the names of the flags that have this mark."""
    found = declared(settings)
    return tuple(name for name, flag in found.items() if flag.mark == mark)


class Values(Mapping[str, Any]):
    """The values of all flags, with every default filled in.

    A default that depends on other flags is computed when it is first asked for, so
    that the order of the flags does not matter.

    Attributes:
        given: The values before filling in: None where a flag was not given.
    """

    def __init__(self, declared: Mapping[str, Flag], given: Mapping[str, Any]):
        self.given = given
        self._declared = declared
        self._filled: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._filled:
            value, flag = self.given[name], self._declared[name]
            if value is None and flag.fill is not None:
                value = flag.fill(self)
            if value is not None and flag.clean is not None:
                value = flag.clean(value)
            self._filled[name] = value
        return self._filled[name]

    def __iter__(self):
        return iter(self._declared)

    def __len__(self):
        return len(self._declared)


class FlagSet(Generic[Settings]):
    """The flags of one command.

    They are flags of absl, in a set of their own instead of the global one. So the
    modules that define them can be imported twice, and tests can parse any number of
    command lines.

    Args:
        usage: The purpose of the command, with examples.
        settings: A dataclass whose fields are declared with `flag`.
        recipes: Whether `--recipe` is a flag of the command too.
        rewrite: Replaces the arguments of a command line, for flags that can be
            written in a second way.
    """

    def __init__(
        self,
        usage: str,
        settings: type[Settings],
        recipes: bool = False,
        rewrite: Callable[[Sequence[str]], list[str]] = list,
    ):
        self.usage = usage
        self.groups: dict[str, list[str]] = {}
        self._settings = settings
        self._rewrite = rewrite
        self._declared = declared(settings)
        self._absl = flags.FlagValues()
        if recipes:
            self._define("recipe", str, _RECIPE)
        for name, kind in typing.get_type_hints(settings).items():
            self._define(name, kind, self._declared[name])

    def _define(self, name: str, annotation: Any, flag: Flag) -> None:
        if flag.group is not None:
            self.groups[flag.group] = []
        list(self.groups.values())[-1].append(name)
        arguments = [name, flag.default]
        options: dict[str, Any] = {"flag_values": self._absl}
        kind = _kind(annotation)
        if flag.choices is not None:
            kind = flags.DEFINE_enum
            arguments.append(list(flag.choices))
        elif kind in (flags.DEFINE_integer, flags.DEFINE_float):
            options |= {"lower_bound": flag.lower, "upper_bound": flag.upper}
        kind(*arguments, flag.text, **options)

    # === Parsing ===

    def parse(self, arguments: Sequence[str]) -> Settings:
        """Reads a command line without the program's name.

        Raises:
            CommandError: If the command line is wrong.
            SystemExit: With code 0, after printing the help that was asked for.
        """
        return self.resolve(arguments)[0]

    def resolve(self, arguments: Sequence[str]) -> tuple[Settings, str]:
        """Reads a command line, as `parse` does.

        Returns:
            The settings, and the text of a flagfile that gives the same ones anywhere.
        """
        given, rest = self._parse_expanded(arguments)
        if rest:
            raise CommandError(
                "Every argument must be a flag, `--name=value`. "
                f"Received: {' '.join(rest)}"
            )
        values = Values(self._declared, given)
        return self._read(values), self._flagfile(values)

    def parse_known(self, arguments: Sequence[str]) -> tuple[Settings, list[str]]:
        """Reads a command line that also has arguments of another command.

        Returns:
            The settings, and the arguments that are not among the flags.
        """
        given, rest = self._parse(arguments, known_only=True)
        return self._read(Values(self._declared, given)), rest

    def _parse_expanded(
        self, arguments: Sequence[str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Reads a command line with recipes; no error repeats a recipe's text.

        A user may name any file as a recipe, even one with passwords.
        """
        expanded = self._rewrite(recipes.expand(arguments))
        own = expanded[len(expanded) - _count_own(arguments) :]
        if len(own) == len(expanded):
            return self._parse(own, known_only=False)
        try:
            given, rest = self._parse(expanded, known_only=False)
            if len(rest) == 0:
                return given, rest
        except CommandError as error:
            # Raises if the mistake is in the command line and not in a recipe.
            self._parse(own, known_only=False)
            unknown = re.search(r"flag '(\w{1,40})'", str(error))
            hint = f" It has no flag --{unknown[1]}." if unknown else ""
            raise self._no_recipe(arguments, hint) from None
        if any(not argument.startswith("-") for argument in own):
            return given, rest
        raise self._no_recipe(arguments, "")

    def _no_recipe(self, arguments: Sequence[str], hint: str) -> CommandError:
        return CommandError(
            "`--recipe` must be a text file with a flag of this command on each line, "
            f"`--name=value`; one of its lines is not.{hint} (All flags: --helpshort.) "
            f"Received: {' '.join(arguments)}"
        )

    def _parse(
        self, arguments: Sequence[str], known_only: bool
    ) -> tuple[dict[str, Any], list[str]]:
        if any(argument in _HELP for argument in arguments):
            print(self.help())
            raise SystemExit(0)
        for argument in arguments:
            if any("\ud800" <= letter <= "\udfff" for letter in argument):
                raise CommandError(
                    "Every argument must be UTF-8; rename the file or folder. "
                    f"Received: {argument!a}"
                )
        try:
            rest = self._absl(["", *arguments], known_only=known_only)[1:]
        except flags.Error as error:
            message = " ".join(str(error).split()).replace(" ?", "?")
            raise CommandError(
                f"{message} (All flags: --helpshort.) Received: {' '.join(arguments)}"
            ) from error
        return self._absl.flag_values_dict(), rest

    def _read(self, values: Values) -> Settings:
        found = {}
        for name, flag in self._declared.items():
            value = values[name]
            if isinstance(value, float):
                _check(name, value, flag)
            found[name] = value if flag.read is None else flag.read(value)
        return self._settings(**found)

    # === Help and flagfiles ===

    def help(self) -> str:
        """Returns the help: all flags in their groups."""
        width = min(88, max(60, shutil.get_terminal_size().columns))
        lines = [self.usage.strip(), ""]
        for title, names in self.groups.items():
            lines.append(f"{title}:")
            for name in names:
                lines += self._describe(name, width)
            lines.append("")
        lines.append(f"With {DEBUG}, errors come with their stack trace.")
        return "\n".join(lines)

    def _describe(self, name: str, width: int) -> list[str]:
        flag = self._absl[name]
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

    def _flagfile(self, values: Values) -> str:
        lines = []
        for title, names in self.groups.items():
            chosen = [
                _serialise(name, values[name])
                for name in names
                if name in self._declared
                and self._declared[name].written
                and values[name] is not None
            ]
            if chosen:
                lines += [f"# {title}", *chosen, ""]
        return "\n".join(lines)


# `--recipe` is replaced by the recipe's flags before a command line is read.
_RECIPE = Flag(
    None,
    "A flagfile, or the name of one that comes with the package, such as "
    "imagenet_resnet50_flops545. Flags on the command line win over it. "
    "--flagfile means the same.",
    group="Recipe",
)


def _count_own(arguments: Sequence[str]) -> int:
    """Returns the number of arguments of a command line without its recipes."""
    count, value_follows = 0, False
    for argument in arguments:
        if value_follows:
            value_follows = False
            continue
        name, separator, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in ("recipe", "flagfile"):
            value_follows = not separator
        else:
            count += 1
    return count


def _kind(annotation: Any) -> Callable[..., Any]:
    """Returns the function of absl that defines a flag for a field of this type."""
    if isinstance(annotation, types.UnionType):
        (annotation,) = set(typing.get_args(annotation)) - {type(None)}
    kinds = {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    return kinds.get(annotation, flags.DEFINE_list)


def _check(name: str, value: float, flag: Flag) -> None:
    """Raises if a number is out of its bounds; absl has checked `lower` and `upper`."""
    what = None
    if flag.positive and not 0 < value < math.inf:
        what = "positive"
    elif not math.isfinite(value):
        what = "a finite number"
    elif flag.below is not None and not value < flag.below:
        what = f"at least {flag.lower} and less than {flag.below}"
    if what is not None:
        raise CommandError(f"`--{name}` must be {what}. Received: --{name}={value}")


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
