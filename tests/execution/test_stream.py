"""Steps are handed on while a run goes on, and those that were complete when it fails."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from gnnplace.errors import ExecutionError
from gnnplace.execution import execute, stream
from tests.execution.programs import problem_of, random_placement, two_towers

PROGRAM = two_towers(width=16, batch=8, layers=3)


class Kept:
    """An observer."""

    def __init__(self):
        self.calls = []

    def __call__(self, first, timings):
        assert first == sum(len(c) for c in self.calls)
        self.calls.append(list(timings))

    @property
    def steps(self):
        return [timing for call in self.calls for timing in call]


class Dying:
    """The mean; at the n-th call its process is killed."""

    def __init__(self, last):
        self.last, self.calls = last, 0

    def __call__(self, tensor):
        self.calls += 1
        if self.calls > self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensor.mean()


def with_loss(function):
    ops = [replace(o, target=function) if o.name == "loss" else o for o in PROGRAM.ops]
    return replace(PROGRAM, ops=tuple(ops))


@pytest.mark.parametrize("mode", ["measured", "emulated"])
def test_the_observer_gets_every_step_after_the_warm_up_once(mode):
    kept, problem = Kept(), problem_of(PROGRAM, 2)
    placement = random_placement(problem, 0)
    run = execute(
        PROGRAM, problem, placement, steps=4, warmup=2, mode=mode, timeout=30, observer=kept
    )
    assert kept.steps == list(run.steps)
    assert len(kept.steps) == 4


def test_steps_are_handed_over_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(stream, "EVERY", 0.0)
    kept, problem = Kept(), problem_of(PROGRAM, 2)
    program = with_loss(Slow())
    execute(program, problem, random_placement(problem, 0), steps=6, timeout=30, observer=kept)
    assert len(kept.calls) > 1
    assert len(kept.steps) == 6


class Slow:
    """The mean, after a while."""

    def __call__(self, tensor):
        end = stream.time.monotonic() + 0.15
        while stream.time.monotonic() < end:
            pass
        return tensor.mean()


@pytest.mark.parametrize("mode", ["measured", "emulated"])
def test_steps_complete_before_a_worker_is_killed_are_kept(mode):
    kept, problem = Kept(), problem_of(PROGRAM, 2)
    placement = random_placement(problem, 0)
    with pytest.raises(ExecutionError, match="SIGKILL"):
        execute(
            with_loss(Dying(5)),
            problem,
            placement,
            steps=9,
            warmup=2,
            mode=mode,
            timeout=30,
            observer=kept,
        )
    assert len(kept.steps) == 3
    assert all(0 < step.wall < 5 and 0 < step.virtual < 5 for step in kept.steps)
