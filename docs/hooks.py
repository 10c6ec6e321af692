"""Hooks of MkDocs (`mkdocs.yml`) for pages whose text is elsewhere in the project."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# The names of pages, and the files that they are made from.
PAGES = {
    "index.md": "README.md",
    "tutorial.md": "docs/tutorial.py",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in `docs/`."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = page_of(text)
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_) -> str:
    """Replaces links to files of the project by links to pages of the site."""
    for name, source in PAGES.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(source)}\b", f"]({name}", markdown)
    return markdown.replace("](docs/", "](").replace("](tutorial.py)", "](tutorial.md)")


def page_of(script: str) -> str:
    """Returns the page of a script that consists of cells.

    Cells begin with `# %%`, those of text with `# %% [markdown]`.
    """
    parts = []
    for cell in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        kind, _, body = cell.partition("\n")
        if kind.strip() == "[markdown]":
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"
