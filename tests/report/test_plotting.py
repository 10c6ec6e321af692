"""The look of figures: the same for every user, and readable for everyone."""

import itertools
import xml.etree.ElementTree

import pytest

from resrep_tf.report import plotting


def lightness(colour: str) -> float:
    """Returns a colour's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@plotting.styled
def figure(title="", width=plotting.COLUMN):
    drawn = plotting.new_figure(width, 2)
    axes = drawn.subplots()
    axes.plot([0, 1], [0, 1], label=plotting.plain("a $5 line"), **plotting.look(0))
    axes.set_title(plotting.plain(title))
    return drawn


def test_series_differ_by_more_than_colour():
    looks = [tuple(plotting.look(n, markers=True).values()) for n in range(18)]
    assert len(set(looks)) == 18
    for one, two in itertools.combinations(looks[:6], 2):
        assert one[0] != two[0] and one[1] != two[1]
    assert plotting.look(0)["marker"] == ""


@pytest.mark.parametrize("colour", plotting.COLOURS)
def test_colours_can_be_seen_on_white(colour):
    assert 1.05 / (lightness(colour) + 0.05) > 1.9


def test_files_have_both_formats_and_dots_in_names_stay(tmp_path):
    files = plotting.save(figure(), tmp_path / "resnet.v1")
    assert [path.name for path in files] == ["resnet.v1.png", "resnet.v1.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    xml.etree.ElementTree.parse(files[1])


def test_text_stays_text_and_dollars_stay_dollars():
    text = plotting.svg(figure("costs $3 and $4"))
    assert "costs $3 and $4</text>" in text
    assert "<dc:date>" not in text


def test_a_legend_has_room_and_hides_nothing():
    for width, columns in ((plotting.COLUMN, 1), (plotting.PAGE, 2)):
        drawn = plotting.new_figure(width, 2)
        axes = drawn.subplots()
        for number in range(2):
            axes.plot([0, 1], label=f"a name of thirty-five letters, no {number}")
        plotting.legend(axes)
        assert axes.get_legend()._ncols == columns
        drawn.draw_without_rendering()
        box = axes.get_legend().get_window_extent()
        assert box.y0 >= axes.get_window_extent().y1


def test_axes_of_shares_and_epochs():
    drawn = figure()
    axes = drawn.axes[0]
    plotting.percent(axes.yaxis)
    plotting.over_epochs(axes)
    assert axes.yaxis.get_major_formatter()(0.125, 0) == "12.5"
    assert axes.get_xlabel() == "epoch"
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_note_stands_above_its_line():
    drawn = figure()
    plotting.note(drawn.axes[0], "target", 0.5)
    (text,) = drawn.axes[0].texts
    assert (text.get_text(), text.xy, text.get_va()) == ("target", (1, 0.5), "bottom")
