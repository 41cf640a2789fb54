"""The page of a hybrid study has the recommendation, every split and where figures come from.

The plot: a line for each kind of split, on logarithmic axes.
"""

from __future__ import annotations

from dataclasses import replace

from gnnplace.plans.hybrid.advice import advise, sentence
from gnnplace.plans.hybrid.study import HybridStudy
from gnnplace.report.hybrid import hybrid_page, hybrid_plot, hybrid_study_lines
from gnnplace.report.pictures import svg
from gnnplace.units import training_text
from tests.plans.hybrid.test_advice import ROWS, row
from tests.report.drawn import texts, tooltips


def test_the_page_has_every_split() -> None:
    """One row each, also for what does not fit."""
    rows = [*ROWS, row(32, 1, None)]
    origin = {
        "step": "predicted",
        "all_reduce": "predicted",
        "examples": "given",
        "epochs": "x",
    }
    study = HybridStudy("a <model>", "a <model>", 16, rows, advise(rows), origin)
    text = hybrid_page(study)
    assert text.count("<tr><td>") == len(rows)
    assert sentence(study.advice, 16) in text
    assert "a &lt;model&gt; on up to 16 devices" in text
    assert "too large" in text
    assert "<svg" in text
    assert study.advice.best is not None
    assert training_text(study.advice.best.seconds) in text


def test_the_other_way_is_told_where_there_is_one() -> None:
    """What a group's step is, and what the other would reach."""
    origin = dict.fromkeys(("step", "all_reduce", "examples", "epochs"), "predicted")
    slower = [replace(one, epochs=2.0) for one in ROWS]
    other = HybridStudy(
        "m", "m", 16, slower, advise(slower), origin, "a plan of layers"
    )
    study = HybridStudy("m", "m", 16, ROWS, advise(ROWS), origin, "ops")
    assert not any("a plan of layers" in x for x in hybrid_study_lines(study))
    lines = hybrid_study_lines(replace(study, alternative=other))
    [line] = [line for line in lines if "a plan of layers" in line]
    assert other.advice.best is not None
    assert line.startswith("each step is ops; with a plan of layers ")
    assert line.endswith(f"{training_text(other.advice.best.seconds)} to converge")


def test_lines_and_dots() -> None:
    """Three lines, a dot a row, those without a time left out."""
    figure = hybrid_plot([*ROWS, row(32, 1, None)], title="a & b", note="predicted")
    [plot] = figure.axes
    assert (plot.get_xscale(), plot.get_yscale()) == ("log", "log")
    lines = {line.get_label(): line.get_xydata().tolist() for line in plot.lines}
    assert list(lines) == ["data parallel", "hybrid 2", "hybrid 4"]
    assert lines["data parallel"] == [[1, 100], [2, 52], [4, 30], [8, 25], [16, 28]]
    assert lines["hybrid 2"] == [[2, 60], [4, 31], [8, 20], [16, 16]]
    told = tooltips(svg(figure))
    assert len(told) == len(ROWS)
    assert told[0] == "1 devices, 1 x 1: 100 s"
    assert "8 devices, 4 x 2: 20 s" in told


def test_axes_name_the_counts_and_round_times() -> None:
    """Title and note are there too."""
    hours = [row(1, 1, 9 * 3600.0), row(2, 1, 5 * 3600.0), row(3, 1, 2.5 * 3600.0)]
    drawn = texts(svg(hybrid_plot(hours, title="a & b", note="predicted")))
    assert {"a & b", "predicted", "1", "2", "3", "5 h"} <= set(drawn)
    assert not [text for text in drawn if "." in text]


def test_nothing_to_draw_is_drawn_empty() -> None:
    """No row with a time."""
    figure = hybrid_plot([row(1, 1, None)], title="t", note="n")
    assert not figure.axes[0].lines
    assert "t" in texts(svg(figure))


def test_one_value_is_a_picture_too() -> None:
    """Its scales have no width."""
    assert tooltips(svg(hybrid_plot([row(1, 1, 5.0)], title="t", note="n"))) == [
        "1 devices, 1 x 1: 5 s"
    ]
