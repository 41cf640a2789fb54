from __future__ import annotations

import numpy as np
import pytest

from gnnplace.report.frontier import Trade, frontier_plot
from gnnplace.report.pictures import svg
from tests.report.drawn import texts, tooltips

AXES = ("memory (GB)", "time (ms)")


def drawn(trades, knee=None):
    return frontier_plot(trades, knee, title="t <1>", note="n", axes=AXES)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_more_memory_is_to_the_right_and_more_time_above(scale):
    trades = [Trade(9.0 * scale, 1.0, "a <&>"), Trade(4.0, 2.0, "b"), Trade(1.0, 50.0, "c")]
    figure = drawn(trades, 1)
    [plot] = figure.axes
    stairs, dots, knee = plot.lines
    assert dots.get_xydata().tolist() == [[1.0, 50.0], [4.0, 2.0], [9.0 * scale, 1.0]]
    assert knee.get_xydata().tolist() == [[4.0, 2.0]]
    assert plot.get_yscale() == "log"
    assert plot.get_xscale() == ("linear" if scale == 1 else "log")
    assert not plot.xaxis_inverted()
    assert not plot.yaxis_inverted()
    assert stairs.get_drawstyle() == "steps-post"  # up to the next memory, the same time
    assert stairs.get_xydata().tolist()[:3] == dots.get_xydata().tolist()
    assert stairs.get_xydata().tolist()[3] == [plot.get_xlim()[1], 1.0]
    assert tooltips(svg(figure)) == ["c", "b", "a <&>", "b"]
    assert {"knee: b", "t <1>", "n", *AXES} <= set(texts(svg(figure)))


def test_one_strategy_is_a_picture_too():
    for memory in (3.0, 0.0):
        assert tooltips(svg(drawn([Trade(memory, 0.0, "only")]))) == ["only"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (3.2, 3.3), (1e-5, 2e3), (5e9, 9e9)])
def test_all_is_inside_and_some_ticks_are(low, high):
    [plot] = drawn([Trade(high, low, "a"), Trade(low, high, "b")]).axes
    for (left, right), ticks in ((plot.get_xlim(), plot.get_xticks()),):
        assert left <= low < high <= right
        assert 3 <= np.sum((left <= ticks) & (ticks <= right)) <= 40
