"""One shell for pages: headings, paragraphs, tables and pictures in one file, without scripts.

Every function escapes the text that it gets and returns ``Html``, so that a type checker tells what
is text from what is markup. A page is well-formed XML too. It is dark where the reader's system is,
and prints in black on white.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NewType

Html = NewType("Html", str)

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --soft: #5c636b; --line: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --back: #15171a; --text: #e8e9eb; --soft: #9aa0a8; --line: #33383f; }
}
@media print {
  :root { --back: #fff; --text: #000; --soft: #333; --line: #bbb; }
  figure, tr { break-inside: avoid; }
  h1, h2, h3 { break-after: avoid; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
  margin: 2em auto; max-width: 78em; padding: 0 1em; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: .4em 0 1.4em; }
th, td { padding: .2em .7em; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid var(--soft); }
td { white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1em 0; }
svg { max-width: 100%; height: auto; }
figcaption, footer { color: var(--soft); }
footer { margin-top: 2em; }
""".strip()


def page(title: str, parts: Sequence[Html]) -> str:
    """The text of a whole page.

    Args:
        title: its heading.
        parts: what stands below it, in this order.
    """
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def heading(text: str, level: int = 2, anchor: str = "") -> Html:
    """A heading of a level from 1 to 6; ``links`` leads to its anchor."""
    place = f' id="{escape(anchor)}"' if anchor else ""
    return Html(f"<h{level}{place}>{escape(text)}</h{level}>")


def paragraph(text: str) -> Html:
    """A paragraph."""
    return Html(f"<p>{escape(text)}</p>")


def links(anchors: Sequence[str]) -> Html:
    """A line of links to headings of the same page."""
    texts = (f'<a href="#{escape(anchor)}">{escape(anchor)}</a>' for anchor in anchors)
    return Html(f"<p>{' · '.join(texts)}</p>")


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Html:
    """A table; the first column is a name, the others are figures."""
    body = "\n".join(_line("td", line) for line in lines)
    return Html(f"<table><thead>{_line('th', headings)}</thead>\n<tbody>{body}</tbody></table>")


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def figure(svg: str, caption: str = "") -> Html:
    """A picture.

    Args:
        svg: text of an SVG file, which is markup already.
        caption: what stands below it.
    """
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Html(f"<figure>{svg}{below}</figure>")


def footer(text: str) -> Html:
    """What stands last on a page."""
    return Html(f"<footer>{escape(text)}</footer>")
