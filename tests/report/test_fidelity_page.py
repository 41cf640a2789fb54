"""The page is well formed, self-contained, and shows what it is given."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from gnnplace.report.fidelity_page import Point, page, paragraph, scatter, table

POINTS = [
    Point("a <b>", 0.018, 0.020),
    Point("a <b>", 0.0195, 0.020, "calibrated"),
    Point("c", 0.033, 0.034),
]


def test_points_lie_where_they_should():
    svg = ET.fromstring(scatter(POINTS, "x & y"))
    circles = [e for e in svg.iter() if e.tag.endswith("circle")]
    assert len(circles) == 3
    x = [float(c.get("cx")) for c in circles]
    y = [float(c.get("cy")) for c in circles]
    assert x[0] == x[1] < x[2]
    assert y[0] > y[1] > y[2]  # upwards is slower
    diagonal = next(e for e in svg.iter() if e.tag.endswith("line"))
    assert float(diagonal.get("y1")) == float(diagonal.get("x2"))


def test_the_page_needs_nothing_from_elsewhere():
    text = page("t", [paragraph("1 < 2"), scatter(POINTS, "x"), table(["h"], [["<c>"]])])
    assert "1 &lt; 2" in text
    assert "&lt;c&gt;" in text
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_any_scale_has_ticks():
    for scale in (1e-6, 1e-3, 0.7, 1.0, 9.99, 300.0):
        assert "<text" in scatter([Point("a", scale, 0.9 * scale)], "x")
