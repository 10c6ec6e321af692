"""The documentation's pages, and the blocks of code in them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page: The page's path from the project's root.
        line: The line of the page that the code begins after.
        language: What the fence says.
        code: The text.
    """

    page: str
    line: int
    language: str
    code: str

    def run(self, names: dict, replaced: dict[str, str]) -> None:
        """Executes the code; a traceback shows the page and its line.

        Args:
            names: The code's globals.
            replaced: Parts of the code, and what stands in their place.
        """
        code = "\n" * self.line + self.code
        for old, new in replaced.items():
            code = code.replace(old, new)
        exec(compile(code, ROOT / self.page, "exec"), names)


def pages() -> list[str]:
    """Returns all pages but the changelog, by their paths from the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    found += DOCS.rglob("*.md")
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str, *languages: str) -> list[Block]:
    """Returns the blocks of a page that are in one of these languages."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")),
            found["language"],
            textwrap.dedent(found["code"]),
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in languages
    ]


def mentioned(pattern: str) -> dict[str, set[str]]:
    """Returns the matches of a pattern in inline code, each with its pages."""
    found: dict[str, set[str]] = {}
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        for code in re.findall(r"`([^`\n]+)`", text):
            for name in re.findall(pattern, code):
                found.setdefault(name, set()).add(page)
    return found
