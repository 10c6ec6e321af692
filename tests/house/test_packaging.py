"""The version is in one place, and the wheel holds what the checkout holds."""

import importlib
import importlib.resources
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import resrep_tf

ROOT = Path(__file__).resolve().parents[2]
# Where each source folder is to be found in an installation.
INSTALLED = {
    "resrep_tf": Path("resrep_tf"),
    "models": Path("resrep_tf", "models"),
    "flags": Path("resrep_tf", "flags"),
}
VERSION = runpy.run_path(str(ROOT / "resrep_tf" / "version.py"))["__version__"]


def source_files(folder: str) -> list[Path]:
    """Paths relative to `folder` of everything in it that is not compiled."""
    return [
        path.relative_to(ROOT / folder)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


def run_setup(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "setup.py", "--quiet", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A copy of what is packaged, so that building writes nothing to the checkout."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    for folder in INSTALLED:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    return copy


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory) -> Path:
    """The packages as they go into a wheel."""
    folder = tmp_path_factory.mktemp("built")
    run_setup("build_py", "--build-lib", str(folder), cwd=sources)
    return folder


def test_version_is_the_one_in_version_py(sources):
    assert resrep_tf.__version__ == VERSION
    assert run_setup("--version", cwd=sources) == VERSION


@pytest.mark.parametrize("name", ["setup.py", "pyproject.toml", "README.md"])
def test_version_is_written_nowhere_else(name):
    pattern = rf"version\W{{1,6}}{re.escape(VERSION)}"
    assert not re.search(pattern, (ROOT / name).read_text(encoding="utf-8"))


def test_changelog_has_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{VERSION}]" in changelog


@pytest.mark.parametrize("folder", INSTALLED)
def test_every_file_is_packaged(folder, built):
    missing = [
        str(path)
        for path in source_files(folder)
        if not (built / INSTALLED[folder] / path).is_file()
    ]
    assert not missing, f"not covered by `package_data` in setup.py: {missing}"


def test_nothing_else_lands_in_site_packages(built):
    assert [path.name for path in built.iterdir()] == ["resrep_tf"]


@pytest.mark.parametrize("folder", ["models", "flags"])
def test_checkout_finds_its_folders_inside_the_package(folder):
    module = importlib.import_module(f"resrep_tf.{folder}")
    assert Path(module.__file__).parent == ROOT / folder


def test_flagfiles_are_found_as_resources():
    resources = importlib.resources.files("resrep_tf.flags").iterdir()
    found = {item.name for item in resources if item.name.endswith(".flags")}
    assert found == {path.name for path in (ROOT / "flags").glob("*.flags")}
    assert found


def test_readme_has_one_test_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = r"^<!-- test-command -->\n+```\w*\n(.+?)\n```$"
    marked = re.findall(block, readme, re.MULTILINE | re.DOTALL)
    assert len(marked) == 1
    assert "pytest" in marked[0]
