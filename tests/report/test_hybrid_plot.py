"""The plot: self-contained, a line for each kind of split."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from gnnplace.errors import InputError
from gnnplace.report.hybrid_plot import Scale, check_drawable, hybrid_svg, write_hybrid
from tests.hybrid.test_advice import ROWS, row


def test_lines_and_dots() -> None:
    """Three lines, a dot a row; faster is lower."""
    svg = hybrid_svg([*ROWS, row(32, 1, None)], title="a & b", note="predicted")
    tree = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{space}polyline")) == 3
    titled = [c for c in tree.findall(f"{space}circle") if c.find(f"{space}title") is not None]
    assert len(titled) == len(ROWS)
    assert float(titled[0].get("cy", 0)) < float(titled[1].get("cy", 0))
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_nothing_to_draw_is_drawn_empty() -> None:
    """No row with a time."""
    assert "polyline" not in hybrid_svg([row(1, 1, None)], title="t", note="n")


def test_scales_of_one_value() -> None:
    """Lie in the middle."""
    assert Scale([5.0], 0.0, 100.0).at(5.0) == pytest.approx(50.0)


def test_files(tmp_path: Path) -> None:
    """SVG alone or in a page; no other kind."""
    svg = hybrid_svg(ROWS, title="t", note="n")
    write_hybrid(tmp_path / "a.svg", svg, "t")
    write_hybrid(tmp_path / "a.html", svg, "t")
    assert (tmp_path / "a.svg").read_text() == svg
    assert svg in (tmp_path / "a.html").read_text()
    with pytest.raises(InputError, match=r"\.svg or \.html"):
        check_drawable("a.png")
