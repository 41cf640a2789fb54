"""A device without a limit, such as a CPU beside accelerators, takes nothing of the penalty."""

from __future__ import annotations

import json

import pytest

import gnnplace
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem.formats import convert

GIGABYTE = 1e9


@pytest.fixture
def problem(tmp_path):
    """Eight layers of 1 GB that are quick on three accelerators of 2.9 GB and slow on the CPU."""
    nodes = [
        {
            "id": k,
            "supportedOnFpga": 1,
            "cpuLatency": 300.0,
            "fpgaLatency": 3.0,
            "isBackwardNode": 0,
            "size": GIGABYTE,
        }
        for k in range(8)
    ]
    edges = [{"sourceId": k, "destId": k + 1, "cost": 0.1} for k in range(7)]
    file = {"maxSizePerFPGA": 2.9 * GIGABYTE, "maxFPGAs": 3, "maxCPUs": 1}
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(file | {"nodes": nodes, "edges": edges}))
    return convert(path, "dnn-partitioning", None)


@pytest.mark.parametrize("placer", ["portfolio", "annealing", "random-search", "best"])
def test_what_fits_is_found_beside_what_is_quicker_and_does_not(problem, placer):
    """Two layers have to be on the CPU; all on one accelerator is quicker, and 5 GB too much."""
    result = gnnplace.place(problem, placer=placer, budget=0.0)
    assert result.step_time == pytest.approx(0.6, rel=0.1)


def test_bytes_in_excess_count_as_on_the_accelerators_alone(problem):
    space = SearchSpace(problem)
    usable = 3 * 2.9 * GIGABYTE + space.all_bytes
    times_of_all_memory = space.penalty / float(problem.cluster.memory.sum())
    assert times_of_all_memory == pytest.approx(100 * 8 * 0.3 / usable)
