from __future__ import annotations

import numpy as np
import pytest

from gnnplace.errors import InputError
from gnnplace.sharding import best_strategy, read_sharding
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.problem import CapturedProblem, captured_tables
from gnnplace.sharding.files import write_sharding
from tests.sharding.captured_graphs import shared
from tests.sharding.problems import random_problem


@pytest.mark.parametrize("memory", [True, False])
def test_what_is_written_is_read(tmp_path, memory):
    problem = random_problem(3, nodes=4, edges=5, memory=memory)
    write_sharding(tmp_path / "a.json", problem)
    again = read_sharding(tmp_path / "a.json")
    assert again.names == problem.names
    assert again.has_memory == problem.has_memory
    for a, b in zip(again.cost, problem.cost, strict=True):
        assert np.array_equal(a, b)
    for a, b in zip(again.edges, problem.edges, strict=True):
        assert (a.u, a.v) == (b.u, b.v)
        assert np.array_equal(a.cost, b.cost)


def test_equal_tables_are_stored_once(tmp_path):
    problem = captured_tables(CapturedProblem(shared(), (2,), MeshMachine()))
    write_sharding(tmp_path / "a.json", problem)
    with np.load(tmp_path / "a.npz") as arrays:
        assert len(arrays.files) < len(problem.cost) + len(problem.edges)
    again = read_sharding(tmp_path / "a.json")
    assert best_strategy(again).cost == best_strategy(problem).cost


def test_no_folder_is_one_error(tmp_path):
    problem = random_problem(3, nodes=3, edges=2, memory=False)
    with pytest.raises(InputError, match="cannot be written"):
        write_sharding(tmp_path / "none" / "a.json", problem)
    assert list(tmp_path.iterdir()) == []
