"""Jobs side by side: cores of their own, deaths that are missing results, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from gnnplace.run.workers.parallel import core_groups, side_by_side
from gnnplace.run.workers.tasks import Task, available_cores, run_tasks


def test_groups_share_the_cores_out_evenly():
    cores = available_cores()
    assert core_groups(1) == [tuple(cores)]
    groups = core_groups(len(cores))
    assert groups == [(core,) for core in cores]
    assert len({len(group) for group in core_groups(3)}) == 1


def test_results_come_in_order_and_jobs_stay_on_their_cores():
    groups = [(core,) for core in available_cores()]

    def job(k):
        return lambda: (time.sleep(0.05 * (3 - k)), k, tuple(available_cores()))[1:]

    found = side_by_side([job(k) for k in range(4)], groups)
    assert [k for k, _ in found] == [0, 1, 2, 3]
    assert {cores for _, cores in found} <= set(groups)
    assert available_cores() == sorted(core for group in groups for core in group)


def test_a_job_may_fork_workers_of_its_own():
    def job():
        return run_tasks([Task("worker", os.getpid)], timeout=30)[0]

    pids = side_by_side([job, job], core_groups(1))
    assert len({os.getpid(), *pids}) == 3


def test_a_job_that_dies_or_raises_is_a_missing_result():
    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    def raises():
        raise ValueError("no")

    assert side_by_side([dies, lambda: 7, raises], core_groups(1)) == [None, 7, None]


def test_an_interrupt_ends_all_jobs(monkeypatch):
    def interrupted(pipes):
        raise KeyboardInterrupt

    monkeypatch.setattr("gnnplace.run.workers.parallel.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([lambda: time.sleep(60)], core_groups(1))
    assert not [p for p in multiprocessing.active_children() if p.is_alive()]
