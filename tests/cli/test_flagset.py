"""Flags as fields: kinds, defaults that depend on others, bounds, flagfiles."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.flagset import FlagSet, declared, flag, marked


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every kind of flag."""

    # Depends on a flag that comes later, which depends on another one.
    total: int = flag(
        None, "A sum.", group="Numbers", fill=lambda values: 1 + values["twice"]
    )
    twice: int = flag(None, "A product.", fill=lambda values: 2 * values["count"])
    count: int = flag(3, "A number.", lower=1, upper=9, mark="basic")
    rate: float = flag(0.5, "A rate.", lower=0, positive=True)
    share: float = flag(0.5, "A share.", lower=0, below=1)
    place: str | None = flag(
        None, "A place.", group="Others", clean=lambda name: f"/{name}", mark="basic"
    )
    kind: str = flag("a", "A kind.", choices=("a", "b"))
    fast: bool = flag(
        None, "A switch.", fill=lambda values: values.given["place"] is None
    )
    sizes: tuple[int, ...] = flag([], "Sizes.", read=lambda v: tuple(map(int, v)))
    options: Mapping[str, Any] = flag([], "Names.", read=dict.fromkeys)
    secret: str = flag("x", "Not written.", written=False)


def parse(*arguments: str) -> Settings:
    return FlagSet("Usage.", Settings).parse(arguments)


def test_defaults_may_depend_on_flags_that_come_later():
    found = parse()
    assert (found.count, found.twice, found.total) == (3, 6, 7)
    assert parse("--count=4").total == 9
    assert parse("--twice=10").total == 11
    assert parse("--total=0", "--count=9") == dataclasses.replace(
        parse("--count=9"), total=0
    )


def test_values_are_cleaned_and_read():
    found = parse("--place=here", "--sizes=3,4", "--options=a,b", "--kind=b")
    assert (found.place, found.sizes, found.kind) == ("/here", (3, 4), "b")
    assert found.options == {"a": None, "b": None}
    assert not found.fast and parse("--fast", "--place=x").fast
    assert parse().place is None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--count=10", "--count=10"),
        ("--kind=c", "--kind=c"),
        ("--rate=0", "`--rate` must be positive. Received: --rate=0.0"),
        ("--rate=inf", "`--rate` must be positive"),
        ("--share=nan", "`--share` must be a finite number. Received: --share=nan"),
        ("--share=1", "`--share` must be at least 0 and less than 1"),
        ("--option=1", "Did you mean: options?"),
    ],
)
def test_wrong_values_are_told_with_the_flag(argument, message):
    with pytest.raises(CommandError) as error:
        parse(argument)
    assert message in str(error.value)
    assert "Received: " in str(error.value)


def test_a_flagfile_has_all_resolved_flags_in_their_groups():
    flags = FlagSet("Usage.", Settings, recipes=True)
    _, text = flags.resolve(["--place=here", "--sizes=3,4"])
    assert text.splitlines() == [
        *("# Numbers", "--total=7", "--twice=6", "--count=3", "--rate=0.5"),
        *("--share=0.5", "", "# Others", "--place=/here", "--kind=a", "--nofast"),
        *("--sizes=3,4", "--options="),
    ]
    assert list(flags.groups) == ["Recipe", "Numbers", "Others"]


def test_the_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("--helpshort")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage.")
    assert "--[no]fast" in shown and "(default: 0.5)" in shown
    assert all(flag.text in shown for flag in declared(Settings).values())


def test_flags_of_another_command_are_handed_on():
    found, rest = FlagSet("Usage.", Settings).parse_known(["--count=2", "--other=1"])
    assert (found.total, rest) == (5, ["--other=1"])


def test_marks():
    assert marked(Settings, "basic") == ("count", "place")
    assert marked(Settings, "other") == ()
