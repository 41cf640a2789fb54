from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gnnplace.errors import InputError
from gnnplace.report.frontier import Axis, Trade, check_drawable, frontier_svg, write_frontier

AXES = ("memory (GB)", "time (ms)")


def drawn(trades, knee=None):
    return frontier_svg(trades, knee, title="t <1>", note="n", axes=AXES)


def circles(svg):
    parts = [part for part in ElementTree.fromstring(svg).iter() if part.tag.endswith("circle")]
    return [(float(part.get("cx")), float(part.get("cy"))) for part in parts]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_more_memory_is_to_the_right_and_more_time_above(scale):
    trades = [Trade(9.0 * scale, 1.0, "a"), Trade(4.0, 2.0, "b"), Trade(1.0, 50.0, "c")]
    places = circles(drawn(trades, 1))
    assert places[0][0] > places[1][0] > places[2][0]
    assert places[0][1] > places[1][1] > places[2][1]
    assert places[3] == places[1]
    assert "knee: b" in drawn(trades, 1)


def test_one_strategy_is_a_picture_too():
    assert len(circles(drawn([Trade(3.0, 0.0, "only")]))) == 1
    assert "t &lt;1&gt;" in drawn([Trade(0.0, 0.0, "only")])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (3.2, 3.3), (1e-5, 2e3), (5e9, 9e9)])
def test_ticks_are_inside_and_some(low, high):
    ticks = Axis(low, high, 0.0, 100.0).ticks()
    assert 3 <= len(ticks) <= 40
    assert all(low <= tick <= high for tick in ticks)


def test_files(tmp_path):
    svg = drawn([Trade(1.0, 1.0, "a")])
    write_frontier(tmp_path / "f.svg", svg, "t")
    assert (tmp_path / "f.svg").read_text() == svg
    write_frontier(tmp_path / "f.html", svg, "t")
    assert svg in (tmp_path / "f.html").read_text()
    with pytest.raises(InputError, match=r"\.svg or \.html"):
        check_drawable("f.pdf")
