"""Only what is seen stays of an SVG, and marks get their tooltips."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import pytest

from gnnplace.report.svg import cleaned, told
from tests.report.drawn import SPACE, texts, tooltips

HEAD = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="72.5pt" height="36pt" viewBox="0 0 72.5 36"
 xmlns="http://www.w3.org/2000/svg"><metadata><a href="http://example.com"/></metadata>
 <defs><style>*{stroke-linejoin: round}</style></defs>"""


def drawn(body, name="n"):
    return cleaned(f"{HEAD}{body}</svg>", name)


def group(tips, body):
    return f"<g id={quoteattr(told(tips))}>{body}</g>"


def test_what_is_not_seen_goes():
    body = """<g id="axes_1"><clipPath id="p1"><path d="M 1.23456 2 L 3.999 -0.5 z"/>
    </clipPath><path d="M 0 0 C 1 1 2 2 3 3 L 4 4" clip-path="url(#p1)"/>
    <text style="font-size: 10px; font-family: 'DejaVu Sans', sans-serif" x="1.005" y="2"
     transform="rotate(-0 1.5 2)">a b</text></g>"""
    text = drawn(body)
    assert text.count("http") == 1
    assert "style>" not in text
    assert "axes_1" not in text
    assert 'id="p1"' in text
    assert 'd="M 1.23 2 4 -0.5 z"' in text
    assert 'd="M 0 0 C 1 1 2 2 3 3 L 4 4"' in text  # after a curve a line must say so
    assert '<text style="font-size:10px" x="1' in text
    assert "transform" not in text
    assert texts(text) == ["a b"]
    root = ElementTree.fromstring(text)
    assert (root.get("width"), root.get("height")) == ("72.5", "36")
    assert not list(root.iter(f"{SPACE}g"))


def test_the_name_is_said_to_who_cannot_see():
    root = ElementTree.fromstring(drawn("", 'a "<&>'))
    assert (root.get("role"), root.get("aria-label")) == ("img", 'a "<&>')


def test_marks_get_their_texts_in_turn():
    marker = "<defs><path id='m' d='M 0 0'/></defs><use xlink:href='#m' x='{}'/>"
    text = drawn(group(["a <b>", "", "c"], "<path d='M 1 1'/>" + marker.format(1) * 3))
    assert tooltips(text) == ["a <b>", "c"]
    assert tooltips(drawn(group(["line"], "<g><path d='M 1 1'/></g>"))) == ["line"]
    with pytest.raises(ValueError, match="zip"):
        drawn(group(["a", "b"], marker.format(1)))
