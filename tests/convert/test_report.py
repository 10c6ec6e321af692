"""Reports of conversions: complete, printed, stored and read again."""

import dataclasses
import json

import numpy as np
import pytest

import resrep_tf
from resrep_tf.convert.report import ConversionReport, LayerChange, read_structure
from support.checks import perturb
from support.models.small import small_model


def converted(**arguments):
    pruner = resrep_tf.wrap(small_model(), "all")
    perturb(pruner, np.random.default_rng(0))
    return resrep_tf.convert(pruner, return_report=True, **arguments)


def example(**changes):
    layers = (
        LayerChange("one", "Conv2D", 8, 2, 4_000_000, 1_000_000, 0),
        LayerChange("another", "Dense", 10, 10, 80, 20, 6),
    )
    report = ConversionReport(
        layers=layers,
        flops=4_000_080,
        new_flops=1_000_020,
        params=1234,
        new_params=321,
        rows_dropped=6,
        largest_norm_dropped=3e-6,
        kept={},
    )
    return dataclasses.replace(report, **changes)


def test_the_text():
    assert str(example()).splitlines() == [
        "layer            width                MMACs  folded",
        "one          8 -> 2          4.00 -> 1.00",
        "another     10 -> 10         0.00 -> 0.00      6",
        "FLOPs 4,000,080 -> 1,000,020 (75.00% removed), parameters 1,234 -> 321",
        "6 compactor rows dropped, the largest of norm 3e-06",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"kept": {"`x` pads": 2}}, "2 channels had to stay: `x` pads"),
        ({"difference": 1e-7}, "verified: outputs differ by 1e-07 at most"),
        ({"damage": 0.25}, "dropping these rows changed the outputs by 0.25"),
    ],
)
def test_lines_that_are_not_always_there(changes, line):
    assert line not in str(example())
    assert str(example(**changes)).splitlines()[-1] == line


def test_dictionaries():
    report = example(structure={"one": (True, False)})
    stored = json.loads(json.dumps(report.to_dict()))
    assert stored["flops_removed"] == report.flops_removed
    assert stored["structure"] == {"one": "10"}
    assert stored["layers"][0]["new_width"] == 2
    assert read_structure(stored) == report.structure


def test_the_report_has_the_structure():
    pruner = resrep_tf.wrap(small_model(), "all")
    keep = np.array([True, False, True, True, False, True])
    slim, report = resrep_tf.convert(pruner, keep={"conv1": keep}, return_report=True)
    assert report.structure["conv1"] == (True, False, True, True, False, True)
    stored = json.loads(json.dumps(report.to_dict()))
    assert stored["structure"]["conv1"] == "101101"
    assert read_structure(stored) == report.structure
    again = resrep_tf.convert(pruner, keep=report.structure)
    for a, b in zip(slim.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_report():
    keep = {"conv1": np.arange(6) < 2, "hidden": np.arange(4) < 3}
    slim, report = converted(keep=keep)
    assert json.loads(json.dumps(report.to_dict()))["new_flops"] == report.new_flops
    assert report.new_params == slim.count_params()
    assert report.params == small_model().count_params()
    text = str(report)
    assert "conv1       6 -> 2" in text
    assert f"{report.flops:,} -> {report.new_flops:,}" in text
    assert "verified: outputs differ by" in text
