"""Placements and plans as tables by module."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from gnnplace.errors import InputError
from gnnplace.placers.contract import training_chain
from gnnplace.plans.answers import find_plans
from gnnplace.policy.placing import place
from gnnplace.report.module_tables import check_table, placement_rows, plan_rows, write_table
from tests.plans.toys import chain, cluster


def test_every_op_and_second_of_a_placement_is_in_its_table(tmp_path):
    """Ops, seconds and state sum to those of the problem; CSV and Markdown have the same cells."""
    problem = training_chain()
    placement = place(problem, placer="heft").placement
    headings, rows = placement_rows(problem, placement)
    write_table(tmp_path / "t.csv", headings, rows)
    write_table(tmp_path / "t.md", headings, rows)
    with open(tmp_path / "t.csv", newline="") as file:
        read = list(csv.reader(file))
    assert read == [headings, *rows]
    assert sum(int(row[2]) for row in rows) == problem.num_ops
    times = problem.times[np.arange(problem.num_ops), placement.device]
    assert sum(float(row[3]) for row in rows) == pytest.approx(times.sum())
    assert sum(float(row[4]) for row in rows) == problem.state.sum()
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == rows[0]
    assert len(lines) == len(rows) + 2


def test_every_module_of_a_plan_has_a_row():
    """A row for each module, with its stage and devices."""
    plan = find_plans(chain(np.random.default_rng(0), count=4), cluster(2), budget=0.0)[0]
    _, rows = plan_rows(plan)
    assert [row[0] for row in rows] == ["s0", "s1", "s2", "s3"]
    assert {name for row in rows for name in row[2].split()} <= {"gpu:0", "gpu:1"}


def test_other_files_are_refused():
    """The name says what kind of table it is."""
    with pytest.raises(InputError, match=r"\.md or \.csv"):
        check_table("t.html")
