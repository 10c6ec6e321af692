"""The examples in docstrings run, and really prune."""

import inspect
import re
import textwrap
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
