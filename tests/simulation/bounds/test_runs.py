from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.simulation import Simulator
from gnnplace.simulation.bounds.relaxation import Relaxation
from gnnplace.simulation.bounds.runs import by_runs
from gnnplace.simulation.bounds.serial import with_serial_runs
from tests.random_problems import random_order, seeds
from tests.simulation.bounds.test_combined import line
from tests.simulation.bounds.test_serial import woven


def relaxation(problem) -> Relaxation:
    return with_serial_runs(Relaxation.of(problem))


def pipelined(work: np.ndarray, microbatches: int, transfer: float) -> float:
    """The shortest step of a line of ops in seconds, each run of it on a device of its own."""
    steps = []
    for count in range(len(work)):
        for cut in combinations(range(1, len(work)), count):
            runs = [run.sum() for run in np.split(work, cut)]
            steps.append(work.sum() + count * transfer + (microbatches - 1) * max(runs))
    return min(steps)


@pytest.mark.parametrize("microbatches", [2, 4, 8])
@pytest.mark.parametrize("latency", [0.01, 0.05, 0.2, 1.0])
def test_a_line_on_enough_devices_is_nearly_proven_optimal(microbatches, latency):
    problem = line(10, microbatches, 10, latency=latency, bandwidth=1e12)
    best = pipelined(np.full(10, 1 / microbatches), microbatches, latency)
    bound = by_runs(relaxation(problem))
    assert best * 0.98 <= bound <= best * (1 + 1e-9)


def test_runs_and_transfers_add_up_where_paths_see_the_larger_of_them():
    here = relaxation(line(32, 8, 32, latency=0.05, bandwidth=1e12))
    assert by_runs(here) > 1.05 * max(here.bounds().values())


def test_pieces_of_a_line_that_are_tied_are_one_run():
    problem = line(4, 1, 4, bandwidth=1e12)
    tied = line(4, 4, 4, bandwidth=1e12)
    colocate = tuple("ab"[int(name[5]) // 2] for name in tied.graph.names)
    assert problem.num_ops * 4 == tied.num_ops
    assert by_runs(relaxation(replace(tied, colocate=colocate))) == pytest.approx(
        1 + 3 / 2, rel=0.02
    )


def test_without_micro_batches_or_edges_there_is_no_bound():
    assert by_runs(relaxation(line(4, 1, 2))) == 0.0
    assert by_runs(relaxation(line(1, 4, 2))) == 0.0


@settings(max_examples=60, deadline=None)
@given(seed=seeds, microbatches=st.integers(2, 4), num_devices=st.integers(2, 4))
def test_it_is_not_above_any_placement(seed, microbatches, num_devices):
    rng = np.random.default_rng(seed)
    problem = woven(rng, 9, num_devices, microbatches)
    bound, simulator = by_runs(relaxation(problem)), Simulator(problem)
    along = problem.unit_of[np.argsort(problem.graph.position, kind="stable")]
    line_of_units = np.unique(along, return_index=True)[1].argsort().argsort()
    for _ in range(8):
        cuts = np.sort(rng.integers(0, problem.num_units + 1, num_devices - 1))
        chunk = np.searchsorted(cuts, line_of_units, side="right")
        unit_device = rng.permutation(num_devices)[chunk]
        device = unit_device[problem.unit_of].astype(np.int32)
        order = simulator.complete(device) if rng.random() < 0.7 else random_order(problem, rng)
        assert bound <= simulator.step_time(device, order) * (1 + 1e-9)
