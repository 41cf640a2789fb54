"""Why ops are where they are and what they wait for, as explanations have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.placers import contract
from gnnplace.policy.roster import make_placer as placer
from gnnplace.report import from_simulation
from gnnplace.report.explanation.causes import Causes
from gnnplace.report.explanation.critical_path import COMPUTING, critical_path
from gnnplace.report.reasons import ARRIVAL, DEVICE, NOTHING, UNKNOWN, place_reasons, waits


def test_waits_are_the_causes():
    """Every op's, with the critical path; unknown where nothing was simulated."""
    problem = contract.branches()
    step = from_simulation(problem, placer("heft").place(problem).simulation, "heft")
    found, causes = waits(step), Causes(problem, step.simulation)
    assert {NOTHING, DEVICE, ARRIVAL} == set(found.kind.tolist())
    for op in range(problem.num_ops):
        cause = causes.of(op)
        assert (found.kind[op] == NOTHING) == (cause is None)
        if cause is not None:
            assert (found.op[op], found.transfer[op]) == (cause.op, cause.transfer)
    path = {piece.op for piece in critical_path(causes) if piece.kind == COMPUTING}
    assert set(np.flatnonzero(found.critical)) == path
    unknown = waits(replace(step, simulation=None))
    assert (unknown.kind == UNKNOWN).all()


def test_reasons_name_pins_kinds_forbids_and_classes():
    """Each op has a sentence; sentences are there once."""
    problem = contract.barred()
    texts, index = place_reasons(problem, "free")
    assert len(set(texts)) == len(texts)
    told = [texts[k] for k in index]
    for op, text in enumerate(told):
        assert ("It may be on" in text) == (not problem.allowed[op].all())
        shared = (
            problem.colocate[op] is not None and problem.colocate.count(problem.colocate[op]) > 1
        )
        assert ("It shares a device with" in text) == shared
    pin = np.where(np.arange(problem.num_ops) == 0, 1, -1).astype(np.int32)
    plain = replace(
        contract.training_chain(), pin=pin, forbid=None, colocate=(None,) * problem.num_ops
    )
    texts, index = place_reasons(plain, "free")
    assert texts[index[0]] == f"It is pinned to {problem.cluster.devices[1].name}."
    assert texts[index[1]] == "free"
