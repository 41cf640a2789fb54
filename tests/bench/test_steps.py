"""Budgets in simulated steps: the same on every machine and at every load."""

from __future__ import annotations

import pytest

from gnnplace.bench.cells import list_tasks, run_task
from gnnplace.bench.rows import identity
from gnnplace.bench.standings import merge_best_known
from gnnplace.bench.suite import SuiteFile, cells
from gnnplace.bench.summary import split_rows
from gnnplace.bench.tables import tables
from gnnplace.placers.search.space import read_clock
from gnnplace.simulation import count_budget_steps, count_steps
from tests.bench.rows import row

STEPPED = ("annealing", "coarse-annealing", "learned", "best", "random-search")


def suite(placers, **more):
    """A suite of one small problem with a budget in steps alone."""
    problem = {"family": "layered", "seed": 1, "ops": [40, 50]}
    keys = {"name": "s", "problems": [problem], "placers": list(placers), "budgets": []}
    return SuiteFile.model_validate({**keys, "steps": [300], "timeout": 600.0, **more})


@pytest.mark.parametrize(
    ("placer", "steps"), [*((name, 300) for name in STEPPED), ("optuna", 60)]
)
def test_a_budget_in_steps_repeats_bit_by_bit(placer, steps, tmp_path):
    """A few steps of ``optuna``, whose library takes a second to import."""
    one = suite([placer], steps=[steps])
    (cell,) = cells(one)
    first, second = (run_task(list_tasks(one, [cell], tmp_path)[0]) for _ in range(2))
    assert first["feasible"], first["error"]
    assert (first["step_time"], first["note"]) == (second["step_time"], second["note"])
    assert first["peak_memory"] == second["peak_memory"]
    assert (first["budget"], first["unit"]) == (steps, "steps")
    assert first["processor_seconds"] > 0


def test_a_solver_with_a_clock_of_its_own_refuses_steps(tmp_path):
    (cell,) = cells(suite(["exact"]))
    failed = run_task(list_tasks(suite(["exact"]), [cell], tmp_path)[0])
    assert "limited by seconds, not by steps" in failed["error"]


def test_the_clock_counts_steps_and_a_little_for_a_look_at_it():
    with count_budget_steps():
        count_steps(5)
        assert 5 < read_clock() < 5.1
        with count_budget_steps():
            assert read_clock() < 1
        assert read_clock() < 5.1
    assert read_clock() > 10  # seconds again


def test_seconds_and_steps_are_cells_of_their_own():
    both = suite(["heft", "exact"], budgets=[300.0], methods={"exact": {"steps": []}})
    assert [(c.placer, c.budget, c.unit) for c in cells(both)] == [
        ("heft", 300.0, "seconds"),
        ("heft", 300.0, "steps"),
        ("exact", 300.0, "seconds"),
    ]
    assert identity(row("p", "heft", 1.0)) != identity(
        row("p", "heft", 1.0, unit="steps")
    )


def test_they_stand_in_tables_of_their_own_with_the_constructions_in_both():
    rows = [row("p", "heft", 2.0), row("p", "best", 1.0, budget=9.0)]
    rows.append(row("p", "best", 1.5, budget=9.0, unit="steps"))
    found = split_rows(rows)
    assert {title: len(part) for title, part in found.items()} == {
        "s@1": 2,
        "s@1-steps": 2,
    }
    lines = tables(found["s@1-steps"], merge_best_known({}, rows), "heft", "title")[
        0
    ].rows
    assert [line[:2] for line in lines] == [["heft", "0 steps"], ["best", "9 steps"]]
