"""Step times by running: failures are bad, known placements are not run again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnplace.cluster import Cluster
from gnnplace.errors import InputError
from gnnplace.execution import objective as room
from gnnplace.execution.objective import MeasuredObjective, work
from gnnplace.execution.verification import Difference, Verification
from gnnplace.measurements import MeasurementStore
from tests.execution.programs import problem_of, random_placement
from tests.execution.test_stream import PROGRAM, Dying, with_loss

PROBLEM = problem_of(PROGRAM, 2)


@pytest.fixture
def store(tmp_path):
    return MeasurementStore(tmp_path / "store.db")


def objective(program=PROGRAM, **options):
    return MeasuredObjective(program, **({"steps": 2, "mode": "emulated"} | options))


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


def test_another_model_or_mode_is_another_measurement(store):
    placement = random_placement(PROBLEM, 0)
    objective(store=store)(PROBLEM, placement)
    for options in ({"label": "other"}, {"mode": "measured"}):
        measure = objective(store=store, **options)
        measure(PROBLEM, placement)
        assert measure.runs == 1


def test_a_worker_that_dies_is_a_bad_step_time_and_not_a_crash(store):
    measure = objective(with_loss(Dying(1)), store=store, penalty=20.0)
    placement = random_placement(PROBLEM, 0)
    assert measure(PROBLEM, placement) == pytest.approx(20 * work(PROBLEM))
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
    assert store.runs()[0].outcome.status == "open"
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
    with pytest.raises(InputError, match="penalty"):
        objective(penalty=0.5)
