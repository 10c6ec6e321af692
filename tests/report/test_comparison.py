"""Two models compared: figures for people, signs that are right."""

import pytest

from resrep_tf.report.comparison import (
    Measurements,
    changes,
    files_table,
    signed,
    table,
)

BEFORE = {
    "flops": 2_000_000,
    "params": 500,
    "bytes": 2000,
    "latency": {"1": 0.002, "32": 0.01},
    "accuracy": 0.95,
    "top5_accuracy": 1.0,
}
AFTER = {
    "flops": 1_000_000,
    "params": 500,
    "bytes": 1000,
    "latency": {"1": 0.0015, "32": 0.011},
    "accuracy": 0.9425,
    "top5_accuracy": 1.0,
}


def test_every_quantity_has_a_row():
    rows = {row.label: row for row in changes(BEFORE, AFTER)}
    flops = rows["FLOPs (multiply-adds)"]
    assert (flops.before, flops.after) == ("2,000,000", "1,000,000")
    assert (flops.change, flops.better) == ("−50.0%", True)
    assert rows["latency, batch 1 (ms)"].before == "2.00"
    slower = rows["latency, batch 32 (ms)"]
    assert (slower.change, slower.better) == ("+10.0%", False)
    accuracy = rows["top-1 accuracy"]
    assert (accuracy.change, accuracy.better) == ("−0.75 points", False)
    assert rows["parameters"].better is None
    assert len(rows) == 7


def test_what_was_not_measured_is_left_out():
    few = {"top5_accuracy": None}  # Classes.
    rows = changes(
        {"flops": 4, "accuracy": 0.5, **few}, {"flops": 2, "accuracy": 0.75, **few}
    )
    assert [row.label for row in rows] == ["FLOPs (multiply-adds)", "top-1 accuracy"]
    assert rows[1].change == "+25.00 points"


@pytest.mark.parametrize(
    ("value", "text"), [(1.25, "+1.2%"), (-3.0, "−3.0%"), (0.04, "±0%"), (0, "±0%")]
)
def test_signs(value, text):
    assert signed(value, 1, "%") == text


def test_table_is_aligned():
    before = Measurements(2_000_000, 1000, 40_000, {1: 0.002, 32: 0.02}, 0.9, 1.0)
    after = Measurements(1_000_000, 400, 20_000, {1: 0.001, 32: 0.015}, 0.895, 1.0)
    lines = table(before.to_dict(), after.to_dict()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[-3:] == ["2,000,000", "1,000,000", "−50.0%"]
    assert lines[4].split()[-3:] == ["2.00", "1.00", "−50.0%"]
    assert lines[6].split()[-4:] == ["90.00%", "89.50%", "−0.50", "points"]


def test_files_have_the_columns_that_were_measured():
    files = [
        {"file": "pruned.keras", "bytes": 1_234_500},
        {"file": "a.tflite", "bytes": 900, "latency": {"1": 0.001, "32": 0.02}},
    ]
    assert files_table(files).splitlines() == [
        "file               kB  batch 1 (ms)  batch 32 (ms)",
        "pruned.keras  1,234.5                             ",
        "a.tflite          0.9          1.00          20.00",
    ]
    files[1]["accuracy"] = 0.875
    assert files_table(files).splitlines()[2].endswith("20.00          87.50%")
    assert files_table(files[:1]).split() == ["file", "kB", "pruned.keras", "1,234.5"]
