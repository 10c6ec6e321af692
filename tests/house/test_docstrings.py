"""The examples in docstrings run, and really prune; no docstring is a clause."""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import resrep_tf
from support.web import documentation

BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def documented():
    """Yields the public objects, and what public modules and classes define."""
    for name in resrep_tf.__all__:
        found = getattr(resrep_tf, name)
        yield name, found
        inside = []
        if isinstance(found, ModuleType):
            inside = [
                (key, value)
                for key, value in vars(found).items()
                if getattr(value, "__module__", None) == found.__name__
            ]
        elif inspect.isclass(found):
            inside = [(k, v) for k, v in vars(found).items() if callable(v)]
        for key, value in inside:
            if not key.startswith("_"):
                yield f"{name}.{key}", value


def examples():
    for name, found in documented():
        for _, code in BLOCK.findall(inspect.getdoc(found) or ""):
            yield pytest.param(textwrap.dedent(code), id=name)


def test_there_are_examples():
    assert {"wrap", "convert", "plan", "ChannelSelection"} <= {
        example.id for example in examples()
    }


@pytest.mark.parametrize("code", list(examples()))
def test_an_example_does_what_it_says(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = documentation.names()
    if "report.json" in code:
        pytest.skip("needs the report of a run")
    exec(compile(code, "docstring", "exec"), names)
    if "slim" in names:
        before, after = (resrep_tf.count_flops(names[n]) for n in ("model", "slim"))
        assert after < before
    if "flops_target=0.5" in code and "slim" in names:
        assert after <= 0.5 * before


ROOT = Path(__file__).resolve().parents[2]
CLAUSE = re.compile(r"(What|Whether|How|Which|Where|When|Who)\b")


def first_lines(path: Path):
    """Yields the first line of each docstring of a file, with its line number."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node) or ""
            yield getattr(node, "lineno", 1), text.partition("\n")[0]


@pytest.mark.parametrize("folder", ["resrep_tf", "models", "benchmarks", "docs"])
def test_docstrings_do_not_begin_with_a_clause(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in first_lines(path)
        if CLAUSE.match(text)
    ]
    assert found == []


def test_a_clause_is_found(tmp_path):
    path = tmp_path / "x.py"
    path.write_text('def f():\n    """What it does."""\n', encoding="utf-8")
    assert [bool(CLAUSE.match(text)) for _, text in first_lines(path)] == [False, True]
