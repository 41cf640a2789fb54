"""A run in the store: what ran, every step, how it ended; also if it ends badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import gnnplace
from gnnplace.errors import ExecutionError, InputError
from gnnplace.measurements import MeasurementStore
from gnnplace.problem import problem_from_data
from gnnplace.problem.placement import placement_from_data
from gnnplace.run.measuring.recording import Recorder, run_record
from gnnplace.simulation import simulate
from tests.run.placed.test_clock import PROGRAM, Dying, with_loss
from tests.run.programs import problem_of, random_placement


@pytest.fixture
def store(tmp_path):
    return MeasurementStore(tmp_path / "store.db")


@pytest.mark.parametrize("mode", ["measured", "emulated"])
def test_a_run_is_kept_with_all_its_steps(store, mode):
    problem = problem_of(PROGRAM, 2)
    placement = random_placement(problem, 0)
    run = gnnplace.execute(
        PROGRAM,
        problem,
        placement,
        run=gnnplace.ExecutionOptions(steps=3, mode=mode),
        record=gnnplace.RecordOptions(store=store, label="towers"),
    )
    (kept,) = store.runs()
    assert run.run == kept.id
    assert (kept.model, kept.mode, kept.steps) == ("towers", mode, 3)
    assert kept.step_time == pytest.approx(run.execution.step_time)
    assert (kept.outcome.status, kept.outcome.verified, kept.outcome.bitwise) == (
        "ok",
        True,
        True,
    )
    for step, timing in zip(store.steps(kept.id), run.execution.steps, strict=True):
        assert step.wall == timing.wall
        assert set(step.ops) == set(problem.graph.names)
        assert len(step.transfers) == len(timing.transfers)


def test_what_is_kept_predicts_the_same_again(store):
    problem = problem_of(PROGRAM, 2)
    record = run_record(
        "towers",
        problem,
        random_placement(problem, 1),
        mode="measured",
        transport="shm",
    )
    Recorder(store, record)
    (kept,) = store.runs()
    again = problem_from_data(store.problem(kept.problem))
    placement = placement_from_data(store.placement(kept.id), again)
    assert simulate(again, placement).step_time == kept.predicted
    assert again.fingerprint == kept.fingerprint == problem.fingerprint


def test_a_run_that_fails_keeps_its_steps_and_says_why(store):
    problem = problem_of(PROGRAM, 2)
    program, placement = with_loss(Dying(4)), random_placement(problem, 0)
    with pytest.raises(ExecutionError):
        gnnplace.execute(
            program,
            problem,
            placement,
            run=gnnplace.ExecutionOptions(steps=9, mode="measured"),
            record=gnnplace.RecordOptions(store=store),
        )
    (kept,) = store.runs()
    assert kept.steps == 2
    assert kept.outcome.status == "failed"
    assert "SIGKILL" in kept.outcome.error


def test_a_store_that_fails_in_mid_run_does_not_end_it(store, monkeypatch):
    problem = problem_of(PROGRAM, 2)

    def full(*_):
        raise InputError("disk full")

    monkeypatch.setattr(store, "add_steps", full)
    run = gnnplace.execute(
        PROGRAM,
        problem,
        random_placement(problem, 0),
        run=gnnplace.ExecutionOptions(mode="measured"),
        record=gnnplace.RecordOptions(store=store),
    )
    assert run.verification.passed
    assert "disk full" in run.fault
    assert store.runs()[0].outcome.status == "open"  # not all of it is there


@pytest.mark.campaign
def test_a_killed_command_leaves_what_it_measured(tmp_path):
    """The command, its process killed with -9 while it runs many steps."""
    store, placement = tmp_path / "store.db", tmp_path / "p.json"
    env = os.environ | {"GNNPLACE_STORE": str(store)}
    gnnplace = [sys.executable, "-m", "gnnplace"]
    place = [
        "place",
        "mlp?batch=8",
        "--cluster",
        "cpu:2",
        "--budget",
        "0",
        "-o",
        str(placement),
    ]
    subprocess.run([*gnnplace, *place, "--placer", "contiguous"], env=env, check=True)
    steps = ["--steps", "100000", "--mode", "emulated", "--no-eager"]
    command = [*gnnplace, "execute", "mlp?batch=8", str(placement), *steps]
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not _steps(store) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (kept,) = MeasurementStore(store).runs()
    assert kept.steps > 0
    assert kept.outcome.status == "open"
    assert json.loads(placement.read_text())["fingerprint"] == kept.fingerprint


def _steps(store):
    runs = MeasurementStore(store).runs() if store.exists() else []
    return runs[0].steps if runs else 0
