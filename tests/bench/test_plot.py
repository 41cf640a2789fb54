from __future__ import annotations

from xml.etree import ElementTree

from gnnplace.bench.best_known import merged
from gnnplace.bench.plot import quality_plot
from gnnplace.bench.standings import standings
from tests.bench.rows import row

SPACE = "{http://www.w3.org/2000/svg}"


def test_the_plot_has_a_line_a_placer_and_a_dot_a_budget():
    rows = [
        row("a", placer, time, budget=budget, seconds=max(budget, 0.01))
        for placer, budget, time in (
            ("heft", 0.0, 1.5),
            ("learned <&>", 0.1, 1.2),
            ("learned <&>", 1.0, 1.0),
            ("far off", 1.0, 50.0),
            ("lost", 1.0, None),
        )
    ]
    text = quality_plot(standings(rows, merged({}, rows)), "a & b")
    root = ElementTree.fromstring(text)
    assert len(text) < 20_000
    told = [title.text for title in root.iter(f"{SPACE}title")]
    assert sorted(told) == [
        "heft, 0 s: 1.500",
        "learned <&>, 0.1 s: 1.200",
        "learned <&>, 1 s: 1.000",
    ]
    line = next(e for e in root.iter(f"{SPACE}polyline") if " " in e.attrib["points"])
    (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in line.attrib["points"].split())
    assert x1 < x2  # more seconds, further right
    assert y1 < y2  # a better ratio, further down


def test_nothing_to_show_is_still_a_picture():
    assert ElementTree.fromstring(quality_plot([], "empty")) is not None
