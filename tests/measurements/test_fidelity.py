"""Residuals name the ops and links that are off."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.measurements.fidelity import link_residuals, op_residuals
from gnnplace.measurements.records import StepRecord
from gnnplace.measurements.samples import Sample
from gnnplace.problem.placement import Placement
from tests.measurements.test_calibration import problem

P = problem(n=6)
PLACED = Placement(np.array([0, 1, 0, 1, 0, 1], np.int32))
SAMPLE = Sample(P, PLACED, 1.0, "x", "run")


def step(number, slow):
    busy = [P.time["cpu"][i] + (slow if i == 2 else 0) for i in range(6)]
    ops = {f"op{i}": (1.0, 9.0, busy[i]) for i in range(6)}
    messages = (("op0", "op0", "cpu:0", "cpu:1", 5e4, 0.5, 0.5 + 4e-5 + slow / 100),)
    return StepRecord(number, 1.0, 1.0, False, ops, messages)


STEPS = {"run": [step(k, slow) for k, slow in enumerate([1e-3, 2e-3, 9.0])]}


def test_the_op_that_is_off_comes_first():
    worst, *rest = op_residuals([SAMPLE], STEPS)
    assert worst.op == "op2"
    assert worst.excess == pytest.approx(2e-3)  # the median of its steps
    assert all(abs(r.excess) < 1e-9 for r in rest)
    assert len(rest) == 5


def test_a_link_s_messages_against_what_it_says():
    (link,) = link_residuals([SAMPLE], STEPS)
    assert (link.source, link.target, link.messages) == ("cpu:0", "cpu:1", 1)
    assert link.predicted == pytest.approx(5e-6 + 5e4 / 5e9)
    assert link.measured == pytest.approx(6e-5)


def test_runs_without_steps_say_nothing():
    assert op_residuals([SAMPLE], {}) == []
    assert link_residuals([SAMPLE], {}) == []
