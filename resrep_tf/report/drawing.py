"""A figure as a part of an HTML page."""

import re
from dataclasses import dataclass
from html import escape

from resrep_tf.report.plotting import BLUE, INK, RULE, SHADE, VERMILLION

# A figure wider than this (in points) is for two columns.
_WIDE = 400
# Colours become variables of the page, which are others in dark mode.
_COLOURS = {
    INK: "currentColor",
    RULE: "var(--rule)",
    SHADE: "var(--shade)",
    BLUE: "var(--blue)",
    VERMILLION: "var(--vermillion)",
    "#ffffff": "none",
}


@dataclass(frozen=True)
class Drawing:
    """A figure of the report.

    Attributes:
        svg: The text of an SVG file.
        caption: A sentence about its content.
        alternative: Its content in words, for those who cannot see it.
    """

    svg: str
    caption: str
    alternative: str

    @property
    def wide(self) -> bool:
        """True if the figure takes the whole width of a page."""
        return float(re.search(r'viewBox="0 0 ([\d.]+)', self.svg).group(1)) > _WIDE

    def inline(self, prefix: str) -> str:
        """Returns an element of an HTML page; ids begin with `prefix`, to be unique."""
        text = self.svg[self.svg.index("<svg") :]
        # The figure's own style sheet would change the whole page.
        text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
        for colour, variable in _COLOURS.items():
            text = text.replace(colour.lower(), variable)
        box = re.search(r'viewBox="[^"]*"', text).group()
        label = escape(self.alternative)
        return re.sub(
            r"<svg[^>]*>",
            lambda _: (
                f'<svg xmlns="http://www.w3.org/2000/svg" '
                f'xmlns:xlink="http://www.w3.org/1999/xlink" {box} role="img" '
                f'aria-label="{label}">'
            ),
            text,
            count=1,
        ).strip()
