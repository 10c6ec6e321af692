"""Figures: what they say, in print and for everyone; the same bytes each time."""

import xml.etree.ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from resrep_tf.report import figures, progress_figures
from resrep_tf.report.figures import LayerHistory, LayerWidth, Pair, Point
from resrep_tf.report.plotting import COLOURS, svg

EPOCHS = [1, 2, 3, 4]


def layers(count, prefix="stage{}_block{}_conv1"):
    return [
        LayerWidth(prefix.format(1 + 3 * i // count, i), 16, 1 + i % 16)
        for i in range(count)
    ]


def histories(count):
    return [
        LayerHistory(layer.name, 16, [16, 9, 5, 5], [16, 16, 9, 5])
        for layer in layers(count)
    ]


def rows(*values):
    return [
        {"epoch": str(i + 1), "loss": str(2 - v), "val_accuracy": v, "forgotten": ""}
        for i, v in enumerate(values)
    ]


def examples():
    steps = [{"epoch": i, "flops_removed": 0.1 * i, "forgotten": i / 4} for i in EPOCHS]
    return {
        "widths_2": lambda: figures.widths(layers(2)),
        "widths_108": lambda: figures.widths(layers(108)),
        "tradeoff": lambda: figures.tradeoff(
            [Point(m, f, 0.9 - f / 9) for m in ("A", "B") for f in (0.6, 0.3)], 0.92
        ),
        "accuracies": lambda: figures.accuracies(
            [Point(m, 0.5, a) for m in ("A", "B") for a in (0.8, 0.9)], 0.92
        ),
        "recovery": lambda: figures.recovery(
            [Pair(n, EPOCHS, [0.9] * 4, [0.1, 0.3, 0.6, 0.9]) for n in ("A", "B")]
        ),
        "magnitudes": lambda: figures.magnitudes(
            [Pair("A", EPOCHS, [9, 8, 7, 6], [9, 1e-2, 0, 0])]
        ),
        "curves": lambda: figures.curves(
            {"A": rows(0.1, 0.5), "B": rows(0.2, 0.3, 0.4)}
        ),
        "progress": lambda: figures.progress(steps, 0.4),
        "channels_2": lambda: figures.channels(EPOCHS, histories(2)),
        "channels_108": lambda: figures.channels(EPOCHS, histories(108)),
        "norms": lambda: figures.norms(
            EPOCHS, np.linspace(1, 0, 12).reshape(4, 3), [True, False, False], 1e-5
        ),
    }


def texts(figure):
    """What is written in a figure, as a reader of the SVG finds it."""
    root = xml.etree.ElementTree.fromstring(svg(figure))
    return [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", ["widths_2", "curves", "magnitudes"])
def test_files_are_complete_and_the_same_each_time(name, tmp_path):
    draw = examples()[name]
    first = figures.save(draw(), tmp_path / "first")
    again = figures.save(draw(), tmp_path / "again")
    assert [path.name for path in first] == ["first.png", "first.svg"]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    pixels = imread(first[0])[..., :3]
    assert pixels.shape[1] in (700, 1420)  # One or two columns at 200 dpi.
    assert (pixels.min(axis=2) < 0.5).mean() > 0.005  # Not blank.
    assert "dc:date" not in first[1].read_text()


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("widths_2", ["width (channels)", "original", "pruned", "1 of 16"]),
        ("widths_108", ["target layer, from input to output", "108", "stage2"]),
        ("tradeoff", ["FLOPs removed (%)", "top-1 accuracy (%)", "A", "30"]),
        ("accuracies", ["top-1 accuracy (%)", "A", "B", "base"]),
        ("recovery", ["epoch", "A, original", "B, pruned"]),
        ("magnitudes", ["sum of squared parameters", "survive", "to be pruned", "0"]),
        ("curves", ["training loss", "held-out accuracy (%)", "epoch"]),
        ("progress", ["share (%)", "target", "FLOPs masked"]),
        ("channels_2", ["epoch", "stage1_block0_conv1", "forgotten", "kept"]),
        ("channels_108", ["epoch", "target layer, from input to output", "108"]),
        ("norms", ["norm of a compactor row", "forgotten (2)", "epsilon = 1e-05"]),
    ],
)
def test_axes_have_names_and_units(name, labels):
    written = texts(examples()[name]())
    for label in labels:
        assert label in written


def test_few_layers_have_names_and_many_have_stages():
    few, many = texts(figures.widths(layers(30))), texts(figures.widths(layers(31)))
    assert "stage1_block0_conv1" in few
    assert "stage1_block0_conv1" not in many
    assert {"stage1", "stage2", "stage3"} <= set(many)


def test_long_names_lose_their_middle_and_stay_different():
    named = layers(12, "a_very_long_name_of_a_model_{}/and_of_a_layer_in_it_{}")
    labels = [text for text in texts(figures.widths(named)) if "…" in text]
    assert len(set(labels)) == 12
    assert all(len(label) <= 32 for label in labels)


def test_dollars_are_not_mathematics():
    named = [LayerWidth("costs_$5_$", 8, 4), LayerWidth("conv$^$", 8, 4)]
    assert {"costs_$5_$", "conv$^$"} <= set(texts(figures.widths(named)))


def test_stages_can_be_given():
    given = [LayerWidth(f"conv{i}", 8, 4, stage=f"part {i // 20}") for i in range(40)]
    assert {"part 0", "part 1"} <= set(texts(figures.widths(given)))


def test_points_of_a_method_are_joined_in_order():
    figure = examples()["tradeoff"]()
    lines = figure.axes[0].get_lines()
    np.testing.assert_array_equal(lines[0].get_xdata(), [0.3, 0.6])
    assert [line.get_color() for line in lines[:2]] == list(COLOURS[:2])
    assert lines[0].get_marker() != lines[1].get_marker()


def test_every_run_is_a_point_beside_its_mean():
    points, mean, *_ = (
        figures.accuracies([Point("A", 0.5, a) for a in (0.8, 0.9)]).axes[0].get_lines()
    )
    np.testing.assert_array_equal(points.get_xdata(), [0.8, 0.9])
    np.testing.assert_allclose(mean.get_xdata(), [0.85])


def test_long_names_leave_room_for_the_axes():
    name = "a method with quite a long name, and a setting"
    figure = figures.magnitudes(
        [Pair(f"{name} {n}", EPOCHS, [9, 8, 7, 6], [9, 8, 7, 6]) for n in "AB"]
    )
    svg(figure)  # Which lays it out.
    assert figure.axes[0].get_position().width > 0.6


def test_empty_cells_are_left_out():
    figure = figures.curves(
        {"A": [*rows(0.1, 0.2), {"epoch": 3, "loss": ""}]}, ["loss"]
    )
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_xdata(), [1, 2])


def test_thousands_of_rows_are_thinned_out():
    values = np.random.default_rng(0).random((5, 4000))
    figure = figures.norms(range(5), values, np.arange(4000) < 100)
    assert len(figure.axes[0].get_lines()) <= 2 * progress_figures.MOST_LINES + 2
    assert {"survive (100)", "forgotten (3,900)"} <= set(texts(figure))


def test_all_rows_may_survive():
    assert "forgotten (0)" in texts(figures.norms([0, 1], np.ones((2, 3)), [True] * 3))


def test_a_users_settings_do_not_matter():
    import matplotlib

    expected = svg(examples()["tradeoff"]())
    with matplotlib.rc_context({"font.size": 20, "axes.grid": True}):
        assert svg(examples()["tradeoff"]()) == expected


def test_errors():
    with pytest.raises(ValueError, match=r"`layers` must not be empty.*Received"):
        figures.widths([])
    with pytest.raises(ValueError, match=r"must not be empty. Received: layers=\(\)"):
        figures.channels([0, 1], [])
    with pytest.raises(ValueError, match=r"2 steps by 3 rows.*shape \(3, 3\)"):
        figures.norms([0, 1], np.ones((3, 3)), [True] * 3)
