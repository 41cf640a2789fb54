"""Pictures show their numbers, need nothing else, and are the same text for the same numbers.

Only what is seen stays of an SVG, and marks get their tooltips.
"""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex

from gnnplace.errors import InputError
from gnnplace.report.pictures import (
    COLOURS,
    Axis,
    Series,
    chart,
    check_drawable,
    clean_svg,
    heat,
    mark,
    register_tooltips,
    svg,
    write_picture,
)
from tests.report.drawn import SPACE, texts, tooltips

PLAIN = (Axis("seconds"), Axis("ratio"))


def wild(axes=PLAIN):
    """A picture whose words are markup, mathematics and quotes."""
    one = Series(
        "<a> & $b$", [1.0, 10.0, 100.0], [3.0, 2.0, 1.0], told=['"1" <&>', "2", "$3$"]
    )
    return chart([one], axes, title="t & <t> $x$", note="n 'n'")


def test_lines_have_their_numbers_names_and_scales():
    axes = (
        Axis("x", logarithmic=True, ticks=[1.0, 8.0], text="<{:g}>".format),
        Axis("y", limits=(0.0, 4.0)),
    )
    [plot] = wild(axes).axes
    [line] = plot.lines
    assert np.array_equal(line.get_xydata(), [[1.0, 3.0], [10.0, 2.0], [100.0, 1.0]])
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("x", "y")
    assert (plot.get_xscale(), plot.get_yscale(), plot.get_ylim()) == (
        "log",
        "linear",
        (0.0, 4.0),
    )
    assert [text.get_text() for text in plot.get_legend().get_texts()] == ["<a> & $b$"]
    assert [tick for tick in texts(svg(wild(axes))) if "<" in tick][:2] == [
        "<1>",
        "<8>",
    ]


@pytest.mark.parametrize(("most", "named"), [(20.0, "5"), (1e6, "100000")])
def test_a_short_logarithmic_axis_names_more_than_powers_of_ten(most, named):
    axes = (Axis("", logarithmic=True), Axis(""))
    drawn = texts(svg(chart([Series("", [1.0, most], [0.0, 1.0])], axes, title="t")))
    assert named in drawn
    assert ("2" in drawn) == (most < 1e3)


def test_shades_are_what_intervals_are():
    one = Series("a", [1.0, 2.0], [5.0, 6.0], low=[4.0, 5.5], high=[7.0, 6.5])
    [plot] = chart([one], PLAIN, title="t").axes
    [shade] = plot.collections
    corners = {tuple(corner) for corner in shade.get_paths()[0].vertices}
    assert corners == {(1.0, 4.0), (1.0, 7.0), (2.0, 5.5), (2.0, 6.5)}


def test_many_lines_are_told_apart():
    many = [Series(str(k), [0.0, 1.0], [k, k]) for k in range(3 * len(COLOURS))]
    lines = chart(many, PLAIN, title="t").axes[0].lines
    looks = {
        (to_hex(one.get_color()), one.get_linestyle(), one.get_marker())
        for one in lines
    }
    assert len(looks) == len(many)


def test_text_is_text_and_tooltips_are_on_their_dots():
    text = svg(wild())
    assert text.startswith("<svg")
    assert {"t & <t> $x$", "n 'n'", "<a> & $b$", "seconds", "ratio"} <= set(texts(text))
    assert tooltips(text) == ['"1" <&>', "2", "$3$"]
    dots = [e for e in ElementTree.fromstring(text).iter(f"{SPACE}use") if len(e)]
    assert [float(dot.get("x")) for dot in dots] == sorted(
        float(dot.get("x")) for dot in dots
    )
    assert [float(dot.get("y")) for dot in dots] == sorted(
        float(dot.get("y")) for dot in dots
    )


def test_a_picture_needs_nothing_else_and_is_always_the_same():
    text = svg(wild())
    assert text == svg(wild())
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "<script" not in text
    assert "2026" not in text
    assert len(text) < 15_000


def test_a_mark_is_a_dot_with_words_on_the_side_that_has_room():
    for x, side in ((1.2, "left"), (9.0, "right")):
        figure = chart(
            [Series("", [1.0, 10.0], [0.0, 1.0], told=["a", "b"])], PLAIN, title="t"
        )
        mark(figure, x, 0.5, "here", "what")
        [words] = figure.axes[0].texts
        assert (words.xy, words.get_ha()) == ((x, 0.5), side)
        assert tooltips(svg(figure)) == ["a", "b", "what"]


def test_a_table_of_shades_has_a_number_in_every_cell_that_is_not_empty():
    tables = {
        "one <1>": {"a": [0.0, 1.25], "b": [np.nan, 30.0]},
        "two": {"c": [2.0, 3.0]},
    }
    figure = heat(tables, ["x", "y"], title="t, %", unit="%", most=20.0)
    shown = [
        plot.collections[0].get_array().filled(-1.0).tolist() for plot in figure.axes
    ]
    assert shown == [[[0.0, 1.25], [-1.0, 30.0]], [[2.0, 3.0]]]
    text = svg(figure)
    assert text == svg(figure)
    assert tooltips(text) == [
        "a, x: 0.0 %",
        "a, y: 1.2 %",
        "b, y: 30.0 %",
        "c, x: 2.0 %",
        "c, y: 3.0 %",
    ]
    assert {"x", "y", "a", "b", "c", "one <1>", "two", "t, %", "30.0"} <= set(
        texts(text)
    )


def test_files_are_pictures_or_pages(tmp_path):
    for name in ("a.svg", "b.HTML"):
        write_picture(tmp_path / name, wild())
    assert (tmp_path / "a.svg").read_text() == svg(wild())
    page = (tmp_path / "b.HTML").read_text()
    assert svg(wild()) in page
    assert "<title>t &amp; &lt;t&gt; $x$</title>" in page
    for name in ("a.png", "a"):
        with pytest.raises(InputError, match=r"\.svg or \.html"):
            check_drawable(name)
    with pytest.raises(InputError, match=r"\.svg or \.html"):
        write_picture(tmp_path / "a.pdf", wild())
    assert not (tmp_path / "a.pdf").exists()


def test_nothing_of_matplotlib_is_changed_and_none_of_its_windows_loaded():
    before = dict(rcParams)
    svg(wild())
    assert dict(rcParams) == before
    code = """
import sys
from gnnplace.report import pictures
assert "matplotlib" not in sys.modules
pictures.svg(pictures.chart([], (pictures.Axis("x"), pictures.Axis("y")), title="t"))
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


HEAD = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="72.5pt" height="36pt" viewBox="0 0 72.5 36"
 xmlns="http://www.w3.org/2000/svg"><metadata><a href="http://example.com"/></metadata>
 <defs><style>*{stroke-linejoin: round}</style></defs>"""


def drawn(body, name="n"):
    return clean_svg(f"{HEAD}{body}</svg>", name)


def group(tips, body):
    return f"<g id={quoteattr(register_tooltips(tips))}>{body}</g>"


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
