"""A page is well formed, needs nothing from elsewhere, and escapes what it is given."""

from __future__ import annotations

from xml.etree import ElementTree

from gnnplace.report import html

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg"><path d="M 0 0"/></svg>'


def whole():
    parts = [
        html.paragraph("1 < 2"),
        html.links(["first", "a&b"]),
        html.heading("<h>", anchor="a&b"),
        html.heading("deep", level=3),
        html.table(["<name>", "figure"], [["<c>", "1"], ["d", "2"]]),
        html.figure(PICTURE, "what & how"),
        html.figure(PICTURE),
        html.footer("'end'"),
    ]
    return html.page("t <&> u", parts)


def test_a_page_is_well_formed_and_holds_all_in_its_order():
    root = ElementTree.fromstring(whole())
    body = root.find("body")
    assert [part.tag for part in body] == [
        *("h1", "p", "p", "h2", "h3", "table", "figure", "figure", "footer")
    ]
    assert root.find("head/title").text == body.find("h1").text == "t <&> u"
    assert body.find("p").text == "1 < 2"
    assert body.find("h2").attrib == {"id": "a&b"}
    assert [link.get("href") for link in body.iter("a")] == ["#first", "#a&b"]
    cells = [[cell.text for cell in row] for row in body.iter("tr")]
    assert cells == [["<name>", "figure"], ["<c>", "1"], ["d", "2"]]
    assert body.find("figure/figcaption").text == "what & how"
    assert body.find("footer").text == "'end'"


def test_a_page_needs_nothing_from_elsewhere():
    text = whole()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_a_page_can_be_dark_and_be_printed():
    assert "prefers-color-scheme: dark" in html.STYLE
    assert "@media print" in html.STYLE
    assert html.STYLE.count("{") == html.STYLE.count("}")
