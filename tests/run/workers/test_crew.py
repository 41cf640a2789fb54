"""Workers that stay: they answer, and end together, however one of them ends."""

from __future__ import annotations

import gc
import os
import signal
import time

import pytest

from gnnplace.errors import ExecutionError
from gnnplace.run.workers.crew import Crew
from gnnplace.run.workers.tasks import Task
from tests.leftovers import workers


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    assert workers() == []


def counter(name="w", fail_at=None, how="raise"):
    def run():
        count = 0

        def answer(request):
            nonlocal count
            count += request
            if fail_at is not None and count >= fail_at:
                if how == "raise":
                    raise ValueError("too much")
                if how == "hang":
                    time.sleep(60)
                os.kill(os.getpid(), signal.SIGKILL)
            return name, count

        return answer

    return Task(name, run)


def test_every_worker_answers_and_remembers():
    crew = Crew([counter("a"), counter("b")], timeout=20)
    assert crew.ask(2) == [("a", 2), ("b", 2)]
    assert crew.ask(3) == [("a", 5), ("b", 5)]
    crew.close()
    crew.close()
    with pytest.raises(ExecutionError, match="closed"):
        crew.ask(1)


@pytest.mark.parametrize(
    ("how", "message"),
    [("raise", "too much"), ("kill", "SIGKILL"), ("hang", "no progress")],
)
def test_one_that_fails_ends_all(how, message):
    crew = Crew([counter("a"), counter("b", 2, how)], timeout=1.0, suspect=lambda: 1)
    crew.ask(1)
    with pytest.raises(ExecutionError, match=message) as failure:
        crew.ask(1)
    assert "'b'" in str(failure.value)
    assert workers() == []
    with pytest.raises(ExecutionError, match="ended"):
        crew.ask(1)


def test_one_that_dies_between_requests_is_told():
    crew = Crew([counter("a"), counter("b")], timeout=20)
    workers()[0].kill()
    time.sleep(0.2)
    with pytest.raises(ExecutionError, match="SIGKILL"):
        crew.ask(1)


def test_one_that_cannot_get_ready_is_told():
    def broken():
        raise ValueError("no memory")

    with pytest.raises(ExecutionError, match="no memory"):
        Crew([counter("a"), Task("b", broken)], timeout=20)


def test_a_forgotten_crew_ends():
    crew = Crew([counter("a")], timeout=20)
    crew.ask(1)
    del crew
    gc.collect()
    assert workers() == []


def test_idle_workers_leave_the_cores_alone():
    crew = Crew([counter("a")], timeout=20)
    (child,) = workers()
    before = sum(child.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(child.cpu_times()[:2]) - before < 0.1
    crew.close()
