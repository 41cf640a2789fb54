"""A page is well formed, may fetch nothing, and escapes what it is given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from gnnplace.report import html

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg"><path d="M 0 0"/></svg>'


def whole():
    parts = [
        html.paragraph("1 < 2"),
        html.links(["first", "a&b"]),
        html.heading("<h>", anchor="a&b"),
        html.heading("deep", level=3),
        html.cards([("<1 s>", "predicted & so on")]),
        html.table(["<name>", "figure"], [["<c>", "1"], ["d", "2"]]),
        html.table(
            ["n", "f"], [["a", "<w>"]], bars=[html.share(0.5, 0.25)], words=True
        ),
        html.figure(PICTURE),
        html.footer("'end'"),
    ]
    return html.page("t <&> u", parts, facts="f < g")


def tree(text):
    """The page as markup, without its scripts, which are none."""
    return ElementTree.fromstring(
        re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    )


def test_a_page_is_well_formed_and_holds_all_in_its_order():
    root = tree(whole())
    body = root.find("body/main")
    assert [part.tag for part in body] == [
        *("h1", "button", "p", "p", "p", "h2", "h3", "div", "div", "div"),
        *("figure", "footer"),
    ]
    assert root.find("head/title").text == body.find("h1").text == "t <&> u"
    assert [part.text for part in body.findall("p")][:2] == ["f < g", "1 < 2"]
    assert body.find("h2").attrib == {"id": "a&b"}
    assert [link.get("href") for link in body.iter("a")] == ["#first", "#a&b"]
    assert body.find("div/div/b").text == "<1 s>"
    cells = [[cell.text for cell in row] for row in body.iter("tr")]
    assert cells[:3] == [["<name>", "figure"], ["<c>", "1"], ["d", "2"]]
    assert cells[3:] == [["n", None, "f"], ["a", None, "<w>"]]
    assert [cell.get("class") for cell in body.iter("td")][-1] == "words"
    assert [bar.get("style") for bar in body.find(".//span[@class='share']")] == [
        "width:50.0%", "left:25.0%",
    ]  # fmt: skip
    assert body.find("footer").text == "'end'"


def test_a_page_needs_nothing_from_elsewhere_and_may_fetch_nothing():
    text = whole()
    assert "default-src 'none'" in tree(text).find("head/meta[@http-equiv]").get(
        "content"
    )
    plain = text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    for word in ("http", "url(", "@import", "src=", "import("):
        assert word not in plain


def test_a_page_can_be_dark_and_be_printed():
    style = html.asset("page.css")
    assert ":root[data-theme=dark]" in style
    assert "@media print" in style
    assert style.count("{") == style.count("}")
    assert "prefers-color-scheme: dark" in whole()
