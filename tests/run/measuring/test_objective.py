"""Step times by running: failures are bad, known placements are not run again."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from gnnplace.errors import InputError
from gnnplace.measurements import MeasurementStore
from gnnplace.problem.cluster import Cluster
from gnnplace.run.checking.comparison import Difference, Verification
from gnnplace.run.measuring import objective as room
from gnnplace.run.measuring.objective import MeasuredObjective, work
from gnnplace.run.placed.options import ExecutionOptions, RecordOptions
from gnnplace.run.placed.result import Execution, StepTiming
from gnnplace.run.workers.tasks import available_cores
from tests.run.placed.test_clock import PROGRAM, Dying, with_loss
from tests.run.programs import problem_of, random_placement

PROBLEM = problem_of(PROGRAM, 2)


@pytest.fixture
def store(tmp_path):
    return MeasurementStore(tmp_path / "store.db")


def objective(program=PROGRAM, **options):
    names = ("store", "label")
    record = RecordOptions(
        **{name: options.pop(name) for name in names if name in options}
    )
    run = ExecutionOptions(steps=2, mode=options.pop("mode", "emulated"))
    return MeasuredObjective(program, run=run, record=record, **options)


def test_every_placement_is_run_once(store):
    measure = objective(store=store)
    placements = [random_placement(PROBLEM, seed) for seed in (0, 1)]
    first = [measure(PROBLEM, placement) for placement in placements]
    assert all(0 < seconds < 5 for seconds in first)
    assert [measure(PROBLEM, placement) for placement in placements] == first
    assert (measure.runs, measure.known) == (2, 2)
    assert [run.source for run in store.runs()] == ["objective"] * 2


def test_after_a_restart_the_store_knows_what_was_run(store, monkeypatch):
    placement = random_placement(PROBLEM, 0)
    seconds = objective(store=store)(PROBLEM, placement)
    again = objective(store=store)
    monkeypatch.setattr(room, "execute", None)
    found = again.measure(PROBLEM, placement)
    assert found.stored
    assert found.seconds == pytest.approx(seconds, rel=1e-6)
    assert (again.runs, again.known) == (0, 1)


@pytest.mark.parametrize(
    ("interrupted", "clock", "seconds"),
    [
        ((True, True), None, 1.0),
        ((True, False), None, 3.0),
        ((True, True), "wall", 3.0),
    ],
)
def test_a_run_that_others_disturbed_counts_by_the_workers_clock(
    monkeypatch, interrupted, clock, seconds
):
    steps = tuple(
        StepTiming(3.0 + k, 1.0 + k, each) for k, each in enumerate(interrupted)
    )
    run = Execution("measured", "shm", ("cpu:0", "cpu:1"), steps, None)
    monkeypatch.setattr(room, "execute", lambda *_, **__: run)
    measure = objective(mode="measured", clock=clock, check=False)
    result = measure.measure(PROBLEM, random_placement(PROBLEM, 0))
    assert result.seconds == seconds
    assert result.disturbed == (seconds == 1.0)


def test_what_is_older_than_an_age_is_run_again(store):
    placement = random_placement(PROBLEM, 0)
    young, old = (objective(store=store, max_age=seconds) for seconds in (3600.0, 0.0))
    for measure, runs in ((young, 1), (old, 1)):
        measure(PROBLEM, placement)
        measure(PROBLEM, placement)
        assert measure.runs == runs + (measure is old)
    assert [run.source for run in store.runs()] == ["objective"] * 3


def test_another_model_or_mode_is_another_measurement(store):
    placement = random_placement(PROBLEM, 0)
    objective(store=store)(PROBLEM, placement)
    for options in ({"label": "other"}, {"mode": "measured"}):
        measure = objective(store=store, **options)
        measure(PROBLEM, placement)
        assert measure.runs == 1


def test_a_worker_that_dies_is_a_bad_step_time_and_not_a_crash(store):
    measure = objective(with_loss(Dying(1)), store=store)
    placement = random_placement(PROBLEM, 0)
    assert measure(PROBLEM, placement) == pytest.approx(10 * work(PROBLEM))
    assert "SIGKILL" in measure.measure(PROBLEM, placement).error
    assert measure.runs == 1
    assert store.runs()[0].outcome.status == "failed"
    assert "SIGKILL" in objective(store=store).measure(PROBLEM, placement).error


def test_wrong_numbers_are_a_failure(monkeypatch, store):
    wrong = Verification(1, (Difference("loss", 1.0, 1.0, 0.0),))
    monkeypatch.setattr(room, "verify", lambda *_: wrong)
    placement = random_placement(PROBLEM, 0)
    assert objective(store=store).measure(PROBLEM, placement).seconds is None
    assert "NOT within" in store.runs()[0].outcome.error
    assert objective(check=False).measure(PROBLEM, placement).seconds is not None


def test_an_interrupted_run_is_no_failure_and_is_run_again(monkeypatch, store):
    placement = random_placement(PROBLEM, 0)
    with monkeypatch.context() as patch:
        patch.setattr(room, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            objective(store=store)(PROBLEM, placement)
    assert store.runs()[0].outcome.status == "interrupted"
    measure = objective(store=store)
    assert measure.measure(PROBLEM, placement).seconds is not None
    assert measure.runs == 1


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_placement_that_cannot_run_is_a_failure():
    """No link between the devices."""
    apart = replace(PROBLEM, cluster=Cluster(PROBLEM.cluster.devices, ()))
    found = objective().measure(apart, random_placement(apart, 0))
    assert found.seconds is None
    assert "link" in found.error


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="sun"):
        objective(clock="sun")


def test_several_at_a_time_are_the_same_as_one_after_the_other(store):
    """Each in a process with a core of its own; the parent knows afterwards what they found."""
    placements = [random_placement(PROBLEM, seed) for seed in (0, 1, 0)]
    measure = objective(store=store)
    found = measure.measure_all(PROBLEM, placements, at_once=2)
    assert all(0 < m.seconds < 5 for m in found)
    assert found[0] == found[2]
    assert measure.measure_all(PROBLEM, placements, at_once=2) == found
    assert measure.runs == 2
    assert {run.outcome.status for run in store.runs()} == {"ok"}
    again = objective(store=store)
    assert [m.seconds for m in again.measure_all(PROBLEM, placements)] == pytest.approx(
        [m.seconds for m in found], rel=1e-6
    )
    assert again.runs == 0


@pytest.mark.skipif(
    len(available_cores()) < 2, reason="one core: measured in this process"
)
def test_a_measuring_process_that_dies_is_a_failure(monkeypatch):
    monkeypatch.setattr(
        room, "execute", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    )
    found = objective().measure_all(
        PROBLEM, [random_placement(PROBLEM, s) for s in (0, 1)], 2
    )
    assert [m.error for m in found] == ["the process that measured it died"] * 2


def test_every_op_of_the_problem_has_its_seconds_also_from_the_store(store):
    placement = random_placement(PROBLEM, 0)
    fresh = objective(store=store).measure(PROBLEM, placement)
    assert set(fresh.ops) == set(PROBLEM.graph.names)
    known = objective(store=store).measure(PROBLEM, placement)
    assert known.stored
    assert known.ops == pytest.approx(fresh.ops, abs=2e-9)
