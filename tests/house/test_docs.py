"""What is generated for the documentation is up to date."""

import importlib
import json
import re
import runpy
from types import ModuleType

import keras
import pytest

import resrep_tf
from resrep_tf.report.comparison import table
from support.web.pages import DOCS, ROOT, mentioned


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


def test_the_results_are_those_of_the_runs():
    results = runpy.run_path(str(DOCS / "results.py"))
    page = results["PAGE"].read_text(encoding="utf-8")
    runs = results["load"]()
    assert runs and page == results["page_with"](results["render"](runs), page)
    for name, run in runs.items():
        # Anybody can check the accuracy; here are no images of CIFAR-10.
        model = keras.models.load_model(results["FOLDER"] / f"{name}.keras")
        assert resrep_tf.count_flops(model) == run["after"]["flops"]
        assert model.count_params() == run["after"]["params"]
        widths = {layer: width for layer, _, width in run["widths"]}
        found = {layer: model.get_layer(layer).filters for layer in widths}
        assert found == widths
        halves = run["halves"]["after"]
        assert run["after"]["accuracy"] == pytest.approx(sum(halves) / 2)


def documented() -> list[tuple[str, str]]:
    """Returns the names on the API page, each with the place of its definition."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    entry = r"^::: (\S+)\n    options:\n        heading: resrep_tf\.(\S+)$"
    found = re.findall(entry, page, re.MULTILINE)
    assert len(found) == page.count("::: ") > 30
    return found


@pytest.mark.parametrize(("path", "name"), documented())
def test_the_api_page_finds_what_it_shows(path, name):
    module, _, attribute = path.replace("models.", "resrep_tf.models.").rpartition(".")
    there = importlib.import_module(module)
    found = getattr(there, attribute, None) or importlib.import_module(path)
    if not isinstance(found, ModuleType):
        assert found.__module__ == module
    shown = resrep_tf
    for part in name.split("."):
        shown = getattr(shown, part)
    assert shown is found


def test_the_api_page_has_every_public_name():
    shown = {name for _, name in documented()}
    shown |= {name.split(".")[0] for name in shown}
    assert {*resrep_tf.__all__} - {"__version__"} <= shown


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
