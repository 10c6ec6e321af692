"""Files, functions and folders stay small enough to be read at one go."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = [
    path
    for folder in ("resrep_tf", "models", "flags", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60  # With its docstring.
MODULES_OF_A_FOLDER = 12  # Without `__init__.py` and `__main__.py`.


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(source: str) -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, functions)
    }
    return {name: n for name, n in lengths.items() if n > LINES_OF_A_FUNCTION}


def test_no_file_is_too_long():
    lengths = {name(p): p.read_text(encoding="utf-8").count("\n") for p in CODE}
    assert not {path: n for path, n in lengths.items() if n > LINES_OF_A_FILE}


@pytest.mark.parametrize("lines, long", [(60, {}), (61, {"f": 61})])
def test_a_long_function_is_found(lines, long):
    assert long_functions("def f():\n" + "    pass\n" * (lines - 1)) == long


def test_no_function_is_too_long():
    found = {name(p): long_functions(p.read_text(encoding="utf-8")) for p in CODE}
    assert not {path: functions for path, functions in found.items() if functions}


def test_no_folder_has_too_many_modules():
    counts: dict[str, int] = {}
    for path in CODE:
        if path.stem not in ("__init__", "__main__"):
            counts[name(path.parent)] = counts.get(name(path.parent), 0) + 1
    assert not {folder: n for folder, n in counts.items() if n > MODULES_OF_A_FOLDER}
