"""The examples in the documentation run, and do what they say."""

import re
import runpy
from pathlib import Path

import keras
from keras import layers as L

from resrep_tf.rules.base import _RULES
from support.checks import assert_prunes_exactly

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_zoo_shows_the_figures_that_were_measured():
    zoo = runpy.run_path(str(ROOT / "benchmarks" / "zoo.py"))
    page = (DOCS / "zoo.md").read_text(encoding="utf-8")
    assert page == zoo["render"](zoo["load"]())


def test_a_custom_layer_becomes_prunable(monkeypatch):
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL)
    rule = code[code.index("@register") :]
    assert len(rule.strip().splitlines()) <= 15
    names = {"__name__": "example"}
    exec(compile(code, "rules.md", "exec"), names)
    try:
        inputs = keras.Input((8, 8, 3))
        x = L.Conv2D(6, 3, name="target")(inputs)
        x = L.Conv2D(4, 3)(L.ReLU()(names["Affine"]()(x)))
        model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
        _, slim, report = assert_prunes_exactly(model)
        assert slim.get_layer("target").filters < 6
        assert any(layer.folded for layer in report.layers)
    finally:
        _RULES.pop(names["Affine"])
