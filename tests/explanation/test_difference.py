"""Differences of placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.explanation.difference import difference
from gnnplace.placers.contract import branches
from gnnplace.simulation import Simulator
from tests.random_problems import random_order


def test_what_moved_and_what_came_of_it():
    """One branch goes to another device: its three ops, its seconds, and both steps."""
    problem = branches()
    problem = replace(problem, module=tuple(n.partition(".")[0] for n in problem.graph.names))
    order = random_order(problem, np.random.default_rng(0))
    simulator, before = Simulator(problem), np.zeros(problem.num_ops, dtype=np.int32)
    after = np.where([name.startswith("x2.") for name in problem.graph.names], 1, before)
    found = difference(problem, simulator.run(before, order), simulator.run(after, order))
    (move,) = found.moves
    assert (move.module, move.source, move.target, move.ops) == ("x2", "d0", "d1", 3)
    assert move.seconds == 12.0
    assert found.same == problem.num_ops - 3
    assert (found.before.transfers, found.after.transfers) == (0, 2)
    assert found.after.bytes == 2.0
    assert found.before.step_time > found.after.step_time
    assert found.before.busy.tolist() == [50.0, 0.0, 0.0, 0.0]
