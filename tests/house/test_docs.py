"""What is generated for the documentation is up to date."""

import importlib
import json
import re
import runpy
from types import ModuleType

import resrep_tf
from resrep_tf.report.comparison import table
from support.pages import DOCS, ROOT, mentioned


def test_the_zoo_shows_the_figures_that_were_measured():
    zoo = runpy.run_path(str(ROOT / "benchmarks" / "zoo.py"))
    page = (DOCS / "zoo.md").read_text(encoding="utf-8")
    assert page == zoo["render"](zoo["load"]())


def test_the_picture_and_the_table_are_those_of_one_run():
    picture = runpy.run_path(str(DOCS / "picture.py"))
    run = json.loads(picture["NUMBERS"].read_text(encoding="utf-8"))
    assert picture["PICTURE"].read_text(encoding="utf-8") == picture["render"](run)
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert f"```\n{table(run['before'], run['after'])}\n```" in page
    report = {**run, "conversion": {"layers": []}}
    assert picture["numbers"](report) == {**run, "widths": []}


def test_the_api_page_has_every_public_name():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = {*re.findall(r"(?:^::: |heading: )resrep_tf\.([\w.]+)", page, re.MULTILINE)}
    for name in {*resrep_tf.__all__} - {"__version__"}:
        if isinstance(getattr(resrep_tf, name), ModuleType):
            assert any(item.startswith(name) for item in shown), name
        else:
            assert name in shown


def exists(name: str) -> bool:
    """Returns whether a dotted name is an attribute or a module of the package."""
    first, *rest = name.split(".")
    found = getattr(resrep_tf, first, None) or importlib.import_module(
        f"resrep_tf.{first}"
    )
    for part in rest:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_names_that_pages_mention_exist():
    found = mentioned(r"\bresrep_tf\.(\w+(?:\.\w+)*)")
    assert {"wrap", "export", "data.load"} <= found.keys()
    assert [item for item in found.items() if not exists(item[0])] == []
