"""Commands on the pages and in flagfiles have flags that exist, and name real files."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from resrep_tf.cli.flagset import FlagSet, declared
from resrep_tf.study import command as study
from resrep_tf.train import settings
from support.web.pages import ROOT, blocks, mentioned, pages

FLAGFILES = sorted(path.name for path in (ROOT / "flags").glob("*.flags"))
PYTHON = re.compile(r"\bpython ((?:-\w |-m |\w+/)[^\n#`']*)")


def read_study(arguments: list[str]) -> None:
    settings.parse(study.Study.parse(arguments).flags)


READERS = {"resrep_tf.train": settings.parse, "resrep_tf.study": read_study}
FLAGS = {
    "recipe",
    "import",
    "helpshort",
    *declared(settings.Settings),
    *declared(study.Flags),
}
for name in ("resrep_tf.evaluate", "resrep_tf.convert", "resrep_tf.explain"):
    command = importlib.import_module(f"{name}.command")
    READERS[name] = FlagSet(command.USAGE, command.Settings).parse
    FLAGS |= {*declared(command.Settings)}


def commands(text: str) -> list[str]:
    """Returns what follows `python` in a text, one line for each command."""
    joined = re.sub(r"\s*\\\n[#\s]*", " ", text)
    return [found.split("&&")[0].strip() for found in PYTHON.findall(joined)]


def documented() -> list[tuple[str, str]]:
    """Returns all commands, each with the file that it stands in."""
    files = [*pages(), *(f"flags/{name}" for name in FLAGFILES)]
    texts = [(name, (ROOT / name).read_text(encoding="utf-8")) for name in files]
    return [(name, found) for name, text in texts for found in commands(text)]


@pytest.mark.parametrize(("place", "command"), documented())
def test_a_command_can_be_read(place, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    for name in re.findall(r"=(\S+\.(?:keras|safetensors|json|py))", command):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    if words[0] != "-m":
        script = (ROOT / words[0]).read_text(encoding="utf-8")
        flags = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
        assert all(f'"{flag}"' in script for flag in flags)
    elif words[1] in READERS:
        READERS[words[1]](words[2:])
    else:
        assert words[1] == "pytest"
        for word in words[2:]:
            assert not word.startswith("tests/") or (ROOT / word).exists()


def test_commands_are_found():
    assert len(documented()) > 30
    found = {word for _, command in documented() for word in command.split()}
    assert {*READERS, "pytest", "benchmarks/zoo.py"} <= found
    # What comes after a backslash is part of the command, in flagfiles too.
    assert any("--recipe" in c and "--init_weights" in c for _, c in documented())


@pytest.mark.parametrize("page", pages())
def test_files_that_shell_blocks_name_exist(page):
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    text = (ROOT / page).read_text(encoding="utf-8")
    for names in re.findall(r"pip install [^\n]*\[([\w,]+)\]", text):
        assert all(f'"{name}": ' in setup for name in names.split(","))
    for name in re.findall(r"(?<![\w./])\.ci/\w+", text):
        assert (ROOT / name).is_file()
    # Commands stand in blocks for the shell.
    for block in blocks(page, ""):
        assert not commands(block.code)


def test_flags_that_pages_mention_exist():
    found = mentioned(r"(?<!\S)--(\w+)")
    assert len(found) > 20
    unknown = [
        (name, places)
        for name, places in found.items()
        if name not in FLAGS and name.removeprefix("no") not in FLAGS
    ]
    assert unknown == []
