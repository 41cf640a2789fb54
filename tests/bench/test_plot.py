from __future__ import annotations

from xml.etree import ElementTree

from gnnplace.bench.best_known import merged
from gnnplace.bench.plot import profile_plot, quality_plot
from gnnplace.bench.profiles import performance_profiles
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


def test_profiles_rise_and_show_the_largest_budget():
    rows = [row(p, "best", 1.0) for p in "abc"]
    for p, time in zip("abc", (1.0, 1.5, 9.0), strict=True):
        rows += [row(p, "mine <&>", time, budget=1.0), row(p, "mine <&>", 9.0, budget=0.1)]
    root = ElementTree.fromstring(profile_plot(performance_profiles(rows, merged({}, rows)), "t"))
    lines = {
        line.find(f"{SPACE}title").text: [
            tuple(map(float, point.split(","))) for point in line.attrib["points"].split()
        ]
        for line in root.iter(f"{SPACE}polyline")
    }
    assert sorted(lines) == ["best, 0 s: 100% within 5 %", "mine <&>, 1 s: 33% within 5 %"]
    mine = lines["mine <&>, 1 s: 33% within 5 %"]
    assert [x for x, _ in mine] == sorted(x for x, _ in mine)
    assert [y for _, y in mine] == sorted((y for _, y in mine), reverse=True)  # up is less
    assert len({y for _, y in mine}) == 2  # one problem within 1, two within 1.5, never three


def test_no_profile_is_still_a_picture():
    assert ElementTree.fromstring(profile_plot([], "empty")) is not None
