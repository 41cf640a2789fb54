"""Predicted against measured: dots lie where they should, whatever the scale."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.measurements.fidelity import FidelityRow, Study
from gnnplace.measurements.samples import Sample
from gnnplace.placers import contract
from gnnplace.placing.roster import place
from gnnplace.report import as_page
from gnnplace.report.fidelity import agreement_plot, describe_study
from gnnplace.report.pictures import svg
from tests.report.drawn import texts, tooltips
from tests.report.embedded import held

ROWS = [
    FidelityRow("a <b>", predicted=0.018, measured=0.020, calibrated=0.0195),
    FidelityRow("c", predicted=0.033, measured=0.034),
    FidelityRow("failed", predicted=0.033, error="lost"),
]


def test_dots_lie_where_they_should():
    figure = agreement_plot(ROWS, "x & y")
    [plot] = figure.axes
    diagonal, before, after = plot.lines
    assert np.allclose(before.get_xydata(), [[20.0, 18.0], [34.0, 33.0]])
    assert np.allclose(after.get_xydata(), [[20.0, 19.5], [34.0, 33.0]])
    assert np.array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    assert plot.get_xlim() == plot.get_ylim()
    assert plot.get_xlim()[1] > 34.0
    assert before.get_linestyle() == after.get_linestyle() == "None"


def test_words_of_the_picture():
    text = svg(agreement_plot(ROWS, "x & y"))
    assert tooltips(text) == [
        "a <b>, as profiled: 18 ms, measured 20 ms",
        "c, as profiled: 33 ms, measured 34 ms",
        "a <b>, calibrated on other placements: 19.5 ms, measured 20 ms",
        "c, calibrated on other placements: 33 ms, measured 34 ms",
    ]
    assert {"x & y", "measured, ms", "predicted, ms", "as profiled"} <= set(texts(text))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.7, 1.0, 9.99, 300.0])
def test_any_scale_has_ticks(scale):
    [plot] = agreement_plot(
        [FidelityRow("a", predicted=0.9 * scale, measured=scale)], "x"
    ).axes
    assert 4 <= np.sum(plot.get_xticks() <= plot.get_xlim()[1]) <= 12


def test_nothing_that_ran_is_still_a_picture():
    assert not tooltips(svg(agreement_plot([ROWS[-1]], "x")))


def test_the_page_shows_two_placements():
    """The fastest, and the one whose prediction is most off."""
    problem = contract.training_chain()
    study = Study("mlp", "cpu:2", problem)
    for name, off in (("heft", 1.1), ("single", 1.6)):
        found = place(problem, placer=name)
        measured = off * found.step_time
        study.rows.append(
            FidelityRow(name, predicted=found.step_time, measured=measured)
        )
        study.samples.append(Sample(problem, found.placement, measured, name))
    data = held(as_page(describe_study(study)))
    most_off, fastest = "the most off, single", "the fastest, heft"
    assert [step["name"].rpartition(",")[0] for step in data["steps"]] == [
        fastest,
        most_off,
    ]
    assert len(data["graphs"]) == 1
    study.samples.clear()
    assert "<canvas" not in as_page(describe_study(study))
