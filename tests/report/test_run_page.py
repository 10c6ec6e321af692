"""The HTML report: complete, escaped, and fit for a real browser."""

import html.parser
import re

import numpy as np
import pytest
from matplotlib.image import imread

from resrep_tf.report import run_page as report_html
from support.web.browser import assert_fits_a_phone, browse, needs_chromium

# Elements that have no end.
VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}


def layer(name, width, new_width, flops=1_000_000, new_flops=400_000):
    return {
        "name": name,
        "kind": "Conv2D",
        "width": width,
        "new_width": new_width,
        "flops": flops,
        "new_flops": new_flops,
        "folded": 0,
    }


def make_report(names=("stage1_conv1", "stage1_conv2", "stage2_conv1")):
    before = {"flops": 3_000_000, "params": 900, "bytes": 9000, "accuracy": 0.95}
    after = {"flops": 1_200_000, "params": 400, "bytes": 5000, "accuracy": 0.955}
    return {
        "arch": "resnet20",
        "dataset": "digits",
        "flops_target": 0.6,
        "before": {**before, "latency": {"1": 0.002, "32": 0.02}},
        "after": {**after, "latency": {"1": 0.001, "32": 0.015}},
        "plan": {"total_steps": 1000, "warmup_steps": 50, "interval": 10, "step": 4},
        "conversion": {
            "layers": [layer(name, 16, 5) for name in names]
            + [layer("logits", 10, 10, 900, 900)],
            "flops_removed": 0.6,
            "rows_dropped": 33,
            "largest_norm_dropped": 0.0,
            "kept": {"`conv9` (Conv2D) pads its input": 2},
            "difference": 3e-7,
            "damage": None,
        },
        "channels": {
            "epochs": "0 1 2 3",
            "layers": {
                name: {"width": 16, "kept": "16 9 5 5", "left": "16 16 9 5"}
                for name in names
            },
        },
        "versions": {"resrep_tf": "1.2.3", "keras": "3.15"},
    }


METRICS = [
    {"phase": phase, "epoch": str(i), "loss": str(2 / i), "val_accuracy": str(v)}
    | ({"flops_removed": f"0.{i}", "forgotten": "0.5"} if phase == "prune" else {})
    for phase in ("base", "prune")
    for i, v in enumerate((0.5, 0.8, 0.9), start=1)
]
EXPLANATION = {
    "layers": [
        {
            "name": "logits",
            "status": "pinned",
            "reason": "it is an output of the model",
        },
        {"name": "stream", "status": "shared", "reason": "with targets='all'"},
        {"name": "stage1_conv1", "status": "internal", "reason": "yes"},
    ],
    "unknown": ["`norm` (LayerNormalization)"],
}
COMMAND = "python -m resrep_tf.train --flagfile=run.flags"


def render(report=None, metrics=METRICS, **options):
    options = {
        "explanation": EXPLANATION,
        "settings": {"epochs": 3, "snap": True, "targets": None, "boundaries": ()},
        "command": COMMAND,
        **options,
    }
    return report_html.render(report or make_report(), metrics, **options)


@pytest.fixture(scope="module")
def text():
    return render()


class Page(html.parser.HTMLParser):
    """Reads a page, strictly: every element that begins also ends."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self._open = [], [], [], []
        self._in_word = False
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        self._in_word = tag == "wbr"

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._in_word:
            self.words[-1] += data
        else:
            self.words.append(data)
        self._in_word = False

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def of(self, tag):
        return [attributes for name, attributes in self.attributes if name == tag]


# === Content ===


def test_the_page_has_it_all(text):
    page = Page(text)
    for words in [
        "resnet20 on digits",
        "60.0% of the FLOPs removed",
        "FLOPs (multiply-adds) 3,000,000 1,200,000 −60.0%",
        "latency, batch 32 (ms) 20.00 15.00 −25.0%",
        "top-1 accuracy 95.00% 95.50% +0.50 points",
        "stage1_conv1 16 → 5 −60.0% 1.000 0.400",
        "logits : it is an output of the model.",
        "stream : their channels are shared",
        "2 pruned channels: conv9 (Conv2D) pads its input.",
        "norm (LayerNormalization)",
        "outputs differ by 3e-07",
        "snap yes",
        "boundaries –",
        COMMAND,
        "resrep_tf 1.2.3, keras 3.15",
    ]:
        assert words in page.text


@pytest.mark.parametrize("on", ["64 random inputs", "128 of the <given> ones"])
def test_says_on_what_the_conversion_was_verified(on):
    report = make_report()
    report["conversion"]["verified_on"] = on
    words = " ".join(Page(render(report)).words)
    assert (
        f"was compared with the trained one on {on}: outputs differ by 3e-07" in words
    )


def test_nothing_is_loaded_and_nothing_runs(text):
    page = Page(text)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    addresses = [a for _, b in page.attributes for k, a in b.items() if k == "src"]
    assert not addresses
    assert "@import" not in text and "url(http" not in text


def test_the_page_is_accessible(text):
    page = Page(text)
    assert page.of("html")[0]["lang"] == "en"
    assert page.tags.count("h1") == page.tags.count("main") == 1
    drawings = page.of("svg")
    assert len(drawings) == 5 == page.tags.count("figcaption")
    for drawing in drawings:
        assert drawing["role"] == "img" and len(drawing["aria-label"]) > 20
    assert page.tags.count("caption") == page.tags.count("table") == 2
    assert {th["scope"] for th in page.of("th")} == {"row", "col"}
    ids = [a["id"] for _, a in page.attributes if "id" in a]
    assert len(ids) == len(set(ids)) > 10
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert used and set(used) <= set(ids)


def test_what_comes_from_outside_is_escaped():
    evil = "<script>alert(1)</script>&\"'$x$"
    report = make_report([evil])
    report["arch"] = report["versions"]["keras"] = evil
    explanation = {
        "layers": [{"name": evil, "status": "pinned", "reason": evil}],
        "unknown": [evil],
    }
    page = Page(
        render(report, explanation=explanation, settings={evil: evil}, command=evil)
    )
    assert "script" not in page.tags
    assert page.text.count("alert(1)") >= 8


def test_only_the_report_is_needed():
    page = Page(report_html.render({**make_report(), "channels": None}))
    assert page.tags.count("svg") == 1  # The widths.
    assert "Settings" not in page.text and "To repeat it" not in page.text


def test_the_same_each_time(text):
    assert render() == text


# === In a browser ===


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(tmp_path, text, scheme):
    number = {"dark": 0, "light": 1}[scheme]
    picture = tmp_path / "page.png"
    browse(
        tmp_path,
        text,
        "--window-size=1000,1600",
        f"--screenshot={picture}",
        f"--blink-settings=preferredColorScheme={number}",
    )
    pixels = np.round(255 * imread(picture)[..., :3]).astype(int)
    assert pixels.shape == (1600, 1000, 3)
    paper, blue = {
        "light": ((255, 255, 255), (0x00, 0x72, 0xB2)),
        "dark": ((0x14, 0x17, 0x1A), (0x56, 0xB4, 0xE9)),
    }[scheme]
    np.testing.assert_array_equal(pixels[2, 2], paper)
    shares = {
        name: (np.abs(pixels - colour).max(axis=2) < 3).mean()
        for name, colour in [("paper", paper), ("blue", blue)]
    }
    assert 0.6 < shares["paper"] < 0.97
    assert shares["blue"] > 0.002  # The bars of the widths.


@needs_chromium
def test_a_phone_does_not_scroll_sideways(tmp_path):
    report = make_report([f"stage{1 + i // 36}_block{i}_conv1" for i in range(108)])
    report["conversion"]["layers"].append(layer("a_very_long_name_" * 8, 16, 3))
    page = render(report, settings={"a_long_setting": "value_" * 30})
    assert_fits_a_phone(tmp_path, page)


def test_the_title_has_names_instead_of_the_machines_paths():
    paths = {"arch": "/home/me/mine.keras", "dataset": "folder:C:\\photos\\"}
    page = render({**make_report(), **paths}, settings=None, command=None)
    assert "<h1>mine.keras on photos</h1>" in page and "/home/me" not in page
