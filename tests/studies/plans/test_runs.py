"""Errors, rank and regret of made-up runs, and the figures that are stated of published ones."""

import pytest

from benchmarks.studies.plans import sailor, vtrain
from benchmarks.studies.plans.megatron import TABLE, Host, seconds_of
from benchmarks.studies.plans.runs import Run, regret, summary
from benchmarks.studies.plans.study import PlanStudy, headline, page


def test_regret_is_what_the_chosen_run_took():
    runs = [Run("q", "a", 1.0, 3.0), Run("q", "b", 2.0, 2.0), Run("q", "c", 3.0, 2.5)]
    assert regret(runs) == pytest.approx(0.5)
    assert regret(runs, 3) == 0.0
    found = summary([*runs, Run("alone", "a", 1.1, 1.0)])
    assert (found.runs, found.questions) == (4, 1)
    assert found.rank == pytest.approx(-0.5)
    assert found.random == pytest.approx(0.25)


def test_sailor_s_plans():
    found = summary(sailor.runs())
    assert (found.runs, found.rank, found.regret) == (26, 1.0, 0.0)
    assert found.error < 0.07


def test_a_published_plan_survives_its_file(tmp_path):
    from gnnplace.plans.reading import read_plan

    plan = next(p for p in sailor.data()["plans"] if p["name"] == "N8_D4")
    sailor.given(plan).save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").to_data() == sailor.given(plan).to_data()


def test_vtrain_s_file_is_composed_of_few_cells():
    """Time is linear in the number of micro-batches: three batches of one cell are on a line."""
    by_cell = {}
    for row in vtrain.rows():
        key = (
            row.hidden,
            row.layers,
            row.size,
            row.shards,
            row.replicas,
            row.stages,
            row.devices,
        )
        by_cell.setdefault(key, []).append((row.batch, row.seconds))
    lines = [sorted(points)[:3] for points in by_cell.values() if len(points) > 2]
    assert len(lines) == 68
    for (a, x), (b, y), (c, z) in lines:
        assert (y - x) / (b - a) == pytest.approx((z - y) / (c - b), rel=1e-4)


def test_published_rates_are_seconds():
    assert seconds_of(TABLE[3]) == pytest.approx(9.40, rel=1e-3)


def test_the_report_has_every_source():
    runs = [Run("q", "a", 1.0, 2.0), Run("q", "b", 2.0, 3.0)]
    study = PlanStudy(
        {name: runs for name in ("sailor", "megatron", "unfitted", "fitted")}, Host()
    )
    assert len(headline(study)) == 4
    assert "composed" in page(study)
