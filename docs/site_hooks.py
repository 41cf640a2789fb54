"""Lets the site show pages that stand outside ``docs/``, under links that work in both places.

``benchmarks/``, ``data_sets/``, ``CONTRIBUTING.md``, ``CHANGELOG.md`` and the cards of the package
stand beside the code they speak of. Here they become pages at the same path below the site's root,
and links between them and ``docs/`` are rewritten: in a checkout ``docs/`` is a folder more.
Notebooks become pages too, with what their cells printed.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/*.md",
    "benchmarks/results/*.md",
    "benchmarks/results/*.svg",
    "benchmarks/results/*/*.svg",
    "data_sets/README.md",
    "data_sets/*/README.md",
    "gnnplace/**/README.md",
)
NOTEBOOKS = "notebooks/*.ipynb"
LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from outside ``docs/``."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted((ROOT / "docs").glob(NOTEBOOKS)):
        uri = path.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
        files.append(File.generated(config, uri, content=notebook_page(path)))
    return files


def notebook_page(path: Path) -> str:
    """Return a notebook as a page: its text, its code, and what the code printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(
            source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        )
        printed = "".join("".join(output["text"]) for output in cell.get("outputs", ()))
        parts += [f"```text\n{printed}```"] if printed else []
    parts.append(f"This page is the notebook [{path.name}]({path.name}).")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Rewrite links that cross the border of ``docs/``; a file that is no page is named."""
    uri = page.file.src_uri
    here = uri if (ROOT / uri).is_file() else f"docs/{uri}"

    def rewritten(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        wanted = there.removeprefix("docs/")
        if wanted.endswith(".ipynb") and text != posixpath.basename(wanted):
            wanted = wanted.removesuffix(".ipynb") + ".md"
        if files.get_file_from_path(wanted) is None:
            return f"{text} (`{there}`)" if (ROOT / there).exists() else match[0]
        relative = posixpath.relpath(wanted, posixpath.dirname(uri) or ".")
        return f"[{text}]({relative}{anchor})"

    return LINK.sub(rewritten, markdown)
