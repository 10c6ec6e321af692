"""Tables in notebooks."""

import xml.etree.ElementTree

import keras
import pytest
from keras import layers

import resrep_tf
from resrep_tf.convert.report import ConversionReport, LayerChange
from resrep_tf.markup import notebook_table, prose
from resrep_tf.prune import PruneReport
from resrep_tf.shrinking.shrinking import ShrinkReport


def parsed(markup: str) -> xml.etree.ElementTree.Element:
    """Returns what a notebook shows; fails unless every element ends."""
    return xml.etree.ElementTree.fromstring(f"<div>{markup}</div>")


def test_prose():
    assert prose("of `x<y`") == "of <code>x&lt;y</code>"


def test_cells_and_notes_are_escaped_and_backticks_are_code():
    table = notebook_table(["a", "b"], [["<i>", 1]], ["of `x` & y"], numbers=("b",))
    root = parsed(table)
    assert [cell.text for cell in root.iter("td")] == ["<i>", "1"]
    sides = [cell.get("style").partition(";")[0] for cell in root.iter("th")]
    assert sides == ["text-align: left", "text-align: right"]
    assert next(root.iter("code")).text == "x"
    assert next(root.iter("p"))[0].tail == " & y"
    assert not list(parsed(notebook_table(["", ""], [["a", "b"]])).iter("thead"))


def explanation():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, name="first<b>")(inputs)
    x = layers.GlobalAveragePooling2D()(x)
    return resrep_tf.explain(keras.Model(inputs, layers.Dense(3, name="head")(x)))


CONVERSION = ConversionReport(
    (LayerChange("first<b>", "Conv2D", 16, 5, 200, 90, 0),), 200, 90, 20, 9, 0, 0.0, {}
)
PLAN = resrep_tf.Plan(
    *(100, 5, 10, 4, 1e-4, 0.99, True, 0.5, 40, 1.0, 10, 50, None, False, "Train <b>.")
)
SHRUNK = ShrinkReport({"first<b>": (16, 5)}, ("bn",), 200, 90, 9, 11, 0.0, {}, 4)
PRUNED = PruneReport(PLAN, {}, SHRUNK, CONVERSION, {"loss": 1.0}, {"loss": 0.5})


@pytest.mark.parametrize(
    ("make", "rows", "said"),
    [
        (explanation, 2, "of the FLOPs are in layers that can lose channels"),
        (lambda: CONVERSION, 1, "FLOPs 200 -> 90 (55.00% removed)"),
        (lambda: PLAN, 7, "no. Train <b>."),
        (lambda: SHRUNK, 1, "1 BatchNorms restored on 4 batches"),
        (lambda: PRUNED, 1, "loss 1.0000 -> 0.5000"),
    ],
)
def test_reports_are_tables_and_say_what_they_print(make, rows, said):
    report = make()
    root = parsed(report._repr_html_())
    assert len(list(root.iter("tr"))) - len(list(root.iter("thead"))) == rows
    assert said in "".join(root.itertext())
    assert said in str(report)
