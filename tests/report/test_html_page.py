"""Parts of HTML pages: escaped, labelled, and without anything from outside."""

import pytest

from resrep_tf.report import html_page
from resrep_tf.report.drawing import Drawing

SVG = (
    '<?xml version="1.0"?>\n<svg width="9pt" viewBox="0 0 {width} 20">'
    "<style>* {{color: red}}</style><metadata>when</metadata>"
    '<path id="a" style="fill: #0072b2"/><use href="#a" clip-path="url(#a)"/></svg>'
)


def drawing(width=100):
    return Drawing(SVG.format(width=width), "A <caption>.", 'What it "says".')


def test_a_page_has_its_parts_in_order():
    page = html_page.page(
        "A & B",
        "A <b>subtitle</b>",
        ["<p>first</p>", "<p>second</p>"],
        [("One", "<p>1</p>"), ("Empty", ""), ("Two", "<p>2</p>")],
        {"keras": "3.15", "<evil>": "1"},
    )
    parts = ["A &amp; B", "<b>subtitle</b>", "<p>first", "<p>second", "<h2>One</h2>"]
    parts += ["<p>1</p>", "<h2>Two</h2>", "<p>2</p>", "keras 3.15, &lt;evil&gt; 1"]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert "Empty" not in page
    assert "$" not in page  # Nothing of the template is left.


def test_a_page_needs_no_versions():
    assert "arXiv:2007.03260" in html_page.page("Title", "", (), (), None)


def test_cells_are_escaped():
    assert html_page.text("<a href='x'>") == "&lt;a href=&#x27;x&#x27;&gt;"
    assert html_page.row_header("<b>") == '<th scope="row">&lt;b&gt;</th>'
    assert html_page.number(3) == '<td class="number">3</td>'
    assert html_page.number("<3", "good") == '<td class="number good">&lt;3</td>'


def test_a_table_has_a_caption_titles_and_kinds():
    rows = [[html_page.row_header("a"), html_page.number(1)], ["<td>b</td>"]]
    table = html_page.table(
        "A caption", ["name", "n"], rows, "wide", ["", "same"], numbers=(1,)
    )
    assert '<table class="wide">' in table
    assert "<caption><span>A caption</span></caption>" in table
    assert '<th scope="col">name</th><th scope="col" class="number">n</th>' in table
    assert '<tr><th scope="row">a</th><td class="number">1</td></tr>' in table
    assert '<tr class="same"><td>b</td></tr>' in table
    # It can be scrolled by keyboard, and a screen reader says what it is.
    assert 'tabindex="0" aria-label="A caption"' in table


def test_every_row_has_its_kind():
    with pytest.raises(ValueError):
        html_page.table("c", ["a"], [["<td></td>"]], row_kinds=["x", "y"])


def test_settings_are_for_people():
    shown = html_page.settings({"a": True, "b": None, "c": (1, 2), "d": (), "e": "<"})
    found = shown.replace("</div>", "\n")
    for line in ("a</dt><dd>yes", "b</dt><dd>–", "c</dt><dd>1, 2", "d</dt><dd>–"):
        assert line in found
    assert "<dd>&lt;</dd>" in found
    assert html_page.settings(None) == html_page.settings({}) == ""


def test_commands_and_names():
    assert html_page.command("a < b") == "<pre><code>a &lt; b</code></pre>"
    assert html_page.command(None) == ""
    assert html_page.names(["a", "<b>"]) == "<code>a</code>, <code>&lt;b&gt;</code>"
    many = html_page.names([f"n{i}" for i in range(15)], most=2)
    assert many == "<code>n0</code>, <code>n1</code> and 13 more"


def test_figures_have_ids_of_their_own_and_the_page_s_colours():
    shown = html_page.figures([drawing(), drawing(500)])
    assert 'id="figure1-a"' in shown and 'href="#figure2-a"' in shown
    assert "url(#figure1-a)" in shown
    assert "var(--blue)" in shown and "#0072b2" not in shown
    assert "<style" not in shown and "<metadata" not in shown and "<?xml" not in shown
    assert shown.count('role="img" aria-label="What it &quot;says&quot;."') == 2
    assert shown.count("<figcaption>A &lt;caption&gt;.</figcaption>") == 2
    # The wide one scrolls.
    assert shown.count('<figure class="wide">') == shown.count('class="scroll"') == 1
    assert html_page.figures([]) == ""
