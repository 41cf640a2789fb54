"""The one shell of all pages: headings, paragraphs, cards, tables and pictures in one file.

Every function escapes its text and returns ``Html``, so that a type checker can tell text from
markup. A page is light or dark as the reader's system is, unless its switch is used, and prints in
black on white. Its content security policy forbids it to fetch anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NewType

Html = NewType("Html", str)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def asset(name: str) -> str:
    """Read a file of the page: its style, its markup or a part of its script."""
    return (files("gnnplace.report") / "assets" / name).read_text(encoding="utf-8")


def page(title: str, parts: Sequence[Html], *, facts: str = "") -> str:
    """Make the text of a page.

    Args:
        title: its heading.
        parts: what stands below it, in this order.
        facts: one line below the heading.
    """
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{escape(title)}</title><style>{asset('page.css')}</style></head><body><main>",
            f'<h1>{escape(title)}</h1><button type="button" id="theme">Dark</button>',
            *([f'<p class="facts">{escape(facts)}</p>'] if facts else []),
            f"<script>{asset('theme.js')}</script>",
            *parts,
            "</main></body></html>\n",
        ]
    )


def cards(entries: Sequence[tuple[str, str]]) -> Html:
    """Make cards of the figures that matter most, each with its meaning."""
    shown = (
        f'<div class="card"><b>{escape(figure)}</b><span>{escape(meaning)}</span></div>'
        for figure, meaning in entries
    )
    return Html(f'<div class="cards">{"".join(shown)}</div>')


def hint(text: str) -> Html:
    """Make a remark on what stands above it."""
    return Html(f'<p class="hint">{escape(text)}</p>')


def share(part: float, mark: float | None = None) -> Html:
    """Make a bar that is full at a share of 1.

    Args:
        part: how much of it is filled, 0..1.
        mark: The position of a mark across it, in 0..1.
    """
    if mark is None:
        line = ""
    else:
        line = f'<em style="left:{100 * mark:.1f}%"></em>'
    return Html(
        f'<span class="share"><i style="width:{100 * part:.1f}%"></i>{line}</span>'
    )


def heading(text: str, level: int = 2, anchor: str = "") -> Html:
    """Make a heading of a level from 1 to 6; ``links`` leads to its anchor."""
    place = f' id="{escape(anchor)}"' if anchor else ""
    return Html(f"<h{level}{place}>{escape(text)}</h{level}>")


def paragraph(text: str) -> Html:
    """Make a paragraph."""
    return Html(f"<p>{escape(text)}</p>")


def links(anchors: Sequence[str]) -> Html:
    """Make a line of links to headings of the same page."""
    texts = (f'<a href="#{escape(anchor)}">{escape(anchor)}</a>' for anchor in anchors)
    return Html(f"<p>{' · '.join(texts)}</p>")


def table(
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    bars: Sequence[Html] = (),
    words: bool = False,
) -> Html:
    """Make a table; the first column is a name, the others are figures.

    Args:
        headings: The headings of the columns, except that of bars.
        lines: the cells of each line.
        bars: one for each line, beside its name; none where there are none.
        words: whether the last column holds sentences.
    """
    drawn = [f"<td>{bar}</td>" for bar in bars] or [""] * len(lines)
    body = "\n".join(
        _line("td", line, bar, words) for line, bar in zip(lines, drawn, strict=True)
    )
    head = _line("th", headings, "<th></th>" if bars else "", words)
    return Html(
        f'<div class="wide"><table><thead>{head}</thead>\n<tbody>{body}</tbody></table></div>'
    )


def _line(tag: str, cells: Sequence[str], bar: str, words: bool) -> str:
    *shown, last = (f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    if words and shown:
        last = last.replace(f"<{tag}>", f'<{tag} class="words">', 1)
    return f"<tr>{''.join(shown[:1])}{bar}{''.join(shown[1:])}{last}</tr>"


def figure(svg: str) -> Html:
    """Make a picture from the text of an SVG file, which is markup already."""
    return Html(f"<figure>{svg}</figure>")


def footer(text: str) -> Html:
    """Make the last line of a page."""
    return Html(f"<footer>{escape(text)}</footer>")
