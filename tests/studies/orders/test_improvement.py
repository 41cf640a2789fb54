"""The order study by improvement walks: one run of a graph, rows, tables."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.orders import improvement
from benchmarks.studies.orders.improvement import (
    MARKS,
    NVLINK,
    PAPER,
    POPULATION,
    OneGraph,
    machines,
    study_improvement,
)
from benchmarks.studies.orders.improvement_report import Table, improvement_report
from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy.learned import make_untrained
from gnnplace.train.data.random_families import RandomDraws, random_problem


def small_space(seed=3):
    draws = RandomDraws(ops=(20, 30), devices=(3, 3), microbatches=(1,))
    return SearchSpace(random_problem("layered", seed, draws))


def test_a_run_never_gets_worse_and_repeats_bit_by_bit():
    graph = OneGraph(small_space(), make_untrained().policy)
    single = graph.rollouts.space.score(
        graph.rollouts.space.spread(graph.rollouts.get_start()),
        graph.rollouts.space.problem.graph.topological_order,
    )
    curve = list(graph.run("alpha", 1, 3 * POPULATION))
    assert len(curve) == 3
    assert all(np.diff(curve) <= 0)
    assert curve[-1] <= single
    assert list(graph.run("alpha", 1, 3 * POPULATION)) == curve


def test_the_paper_has_three_devices_and_its_simulator_s_links():
    cluster = machines()[PAPER]
    assert cluster.num_devices == 3
    assert set(cluster.bandwidth[cluster.linked]) == {7.6e9}
    assert set(cluster.latency[cluster.linked]) == {25e-6}


def test_rows_are_run_once_and_reported(tmp_path, monkeypatch):
    spaces = tuple(small_space(seed) for seed in range(4))
    monkeypatch.setattr(improvement, "MARKS", (10, 20))
    monkeypatch.setattr(improvement, "graphs_on", lambda machine: spaces)
    monkeypatch.setattr(improvement, "graph_families", lambda: ("a", "a", "b", "b"))
    monkeypatch.setattr(improvement, "RIVALS", ("single", "heft"))
    study_improvement(tmp_path, orders="alpha,upward-rank", seeds=2)
    rows = (tmp_path / improvement.FILE).read_text()
    assert len(rows.splitlines()) == 2 * (2 + 2 * 2 * 2)
    study_improvement(tmp_path, orders="alpha,upward-rank", seeds=2)
    assert (tmp_path / improvement.FILE).read_text() == rows
    text = (tmp_path / improvement.REPORT).read_text()
    assert "| family | graphs | alpha | upward-rank | heft |" in text
    assert "paper, 10 walks, all families" in text


def table_of(seconds):
    """Return a table of two orders with the seconds that are given by machine, order and seed."""
    rows = [
        {
            "problem": machine,
            "placer": order,
            "seed": seed,
            "budget": MARKS[0],
            "one": one,
        }
        for machine in (PAPER, NVLINK)
        for (order, seed), one in seconds.items()
    ]
    rows += [
        {
            "problem": machine,
            "placer": "single",
            "seed": 0,
            "budget": 0,
            "one": [1.0] * 4,
        }
        for machine in (PAPER, NVLINK)
    ]
    return Table(rows, ("a", "a", "b", "b"), ("single",), MARKS[:1])


def test_a_family_s_best_order_stands_out():
    seconds = {
        ("alpha", seed): [0.5, 0.5 + 0.001 * seed, 1.0, 1.0] for seed in (0, 1)
    } | {("upward-rank", seed): [1.0, 1.0, 0.5, 0.5] for seed in (0, 1)}
    lines = improvement_report(table_of(seconds), (PAPER,)).splitlines()
    assert "| a | 2 | **0.500** | 1.000 |" in lines
    assert "| b | 2 | 1.000 | **0.500** |" in lines


def test_what_is_missing_is_one_line(tmp_path):
    with pytest.raises(InputError, match="nothing to report"):
        improvement_report(table_of({}), (PAPER,))
    with pytest.raises(InputError, match="order 'in-time': unknown"):
        study_improvement(tmp_path, orders="in-time", seeds=1)
