"""Differences of placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.errors import MismatchError
from gnnplace.explaining.placements.difference import steps_differ
from gnnplace.placers.contract import branches, training_chain
from gnnplace.simulation import Simulator
from tests.random_problems import random_order


def test_what_moved_and_what_came_of_it():
    """One branch goes to another device: its three ops, its seconds, and both steps."""
    problem = branches()
    problem = replace(
        problem, module=tuple(n.partition(".")[0] for n in problem.graph.names)
    )
    order = random_order(problem, np.random.default_rng(0))
    simulator, before = Simulator(problem), np.zeros(problem.num_ops, dtype=np.int32)
    after = np.where(
        [name.startswith("x2.") for name in problem.graph.names], 1, before
    )
    found = steps_differ(
        problem, simulator.run(before, order), simulator.run(after, order)
    )
    (move,) = found.moves
    assert (move.module, move.source, move.target, move.ops) == ("x2", "d0", "d1", 3)
    assert move.seconds == 12.0
    assert found.same == problem.num_ops - 3
    assert (found.before.transfers, found.after.transfers) == (0, 2)
    assert found.after.bytes == 2.0
    assert found.before.step_time > found.after.step_time
    assert found.before.busy.tolist() == [50.0, 0.0, 0.0, 0.0]


def test_groups_that_differ_are_compared_by_what_they_hold():
    """One problem has an op where the other has two: the captured ops in them are compared."""
    problem = branches()
    members = tuple((f"{name}.a", f"{name}.b") for name in problem.graph.names)
    problem = replace(problem, members=members)
    index = problem.graph.index
    swapped = list(members)
    swapped[index["x0.0"]], swapped[index["x1.0"]] = (
        members[index["x1.0"]],
        members[index["x0.0"]],
    )
    names = tuple(f"other{i}" for i in range(problem.num_ops))
    other = replace(
        problem, members=tuple(swapped), graph=replace(problem.graph, names=names)
    )
    order = random_order(problem, np.random.default_rng(1))
    device = np.zeros(problem.num_ops, dtype=np.int32)
    device[index["x0.0"]] = 1
    step = Simulator(problem).run(device, order)
    found = steps_differ(problem, step, Simulator(other).run(device, order), other)
    assert {(m.source, m.target, m.ops) for m in found.moves} == {
        ("d1", "d0", 2),
        ("d0", "d1", 2),
    }
    assert steps_differ(problem, step, step).moves == ()
    with pytest.raises(MismatchError, match="in one of the placements alone"):
        steps_differ(
            problem,
            step,
            Simulator(training_chain(num_devices=4)).run(*_any()),
            _chain(),
        )


def _chain():
    chain = training_chain(num_devices=4)
    return replace(chain, cluster=branches().cluster)


def _any():
    order = random_order(_chain(), np.random.default_rng(2))
    return np.zeros(_chain().num_ops, dtype=np.int32), order
