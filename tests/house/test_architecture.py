"""Imports point in one direction: from a folder only to those above it."""

import ast
import re
import sys
from pathlib import Path

import pytest

from resrep_tf import classes

ROOT = Path(__file__).resolve().parents[2]
# From the ground up; a folder may import itself and those before it.
FOLDERS = (
    *("rules", "graph", "budget", "surgery", "selection", "teacher", "pruning"),
    *("shrinking", "explain", "convert", "prune", "export", "baselines", "report"),
    *("models", "data", "flags", "cli", "evaluate", "train", "study"),
)
# Beside the folders, for all of them.
MODULES = ("lazy", "markup", "quiet", "version", "__version__")
# A command is its folder's `command.py` and `__main__.py`; only those see `cli`.
COMMANDS = ("command.py", "__main__.py")


def imported(path: Path) -> set[str]:
    """The folders of this package that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {p[1] for p in parts if p[0] == "resrep_tf" and len(p) > 1}
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder):
    home = ROOT / ("" if folder in ("models", "flags") else "resrep_tf") / folder
    allowed = {*FOLDERS[: FOLDERS.index(folder) + 1], *MODULES}
    for path in sorted(home.rglob("*.py")):
        extra = {*FOLDERS} if path.name in COMMANDS else set()
        wrong = imported(path) - allowed - extra
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_keras_knows_all_classes_of_this_package():
    """A file of this package is loaded by Keras alone once the package is imported."""
    registering = {
        path.stem
        for path in (ROOT / "resrep_tf").rglob("*.py")
        if re.search(r"^@keras.saving.register_", path.read_text("utf-8"), re.M)
    }
    assert registering == set(classes.__all__)
    assert "resrep_tf.classes" in sys.modules


def test_every_folder_has_its_place():
    folders = {p.parent.name for p in (ROOT / "resrep_tf").glob("*/__init__.py")}
    assert folders | {"models", "flags"} == set(FOLDERS)
