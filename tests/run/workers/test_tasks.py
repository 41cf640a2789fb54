"""Workers are supervised: results come back, failures end the run, nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from gnnplace.errors import ExecutionError
from gnnplace.run.workers import tasks as workers
from gnnplace.run.workers.tasks import Task, WorkerFailure, available_cores, run_tasks
from tests import leftovers
from tests.leftovers import nothing_shared


def sleep_forever() -> None:
    time.sleep(600)


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def raise_error() -> None:
    raise ValueError("bad\nshape")


def fail() -> None:
    raise WorkerFailure("member 'mm': it broke")


@pytest.fixture(autouse=True)
def no_children_left():
    with nothing_shared():
        yield
        assert leftovers.workers() == []


def test_results_come_back_in_order_of_the_tasks():
    tasks = [
        Task(f"w{i}", lambda i=i: (time.sleep(0.1 * (2 - i)), i)[1]) for i in range(3)
    ]
    assert run_tasks(tasks) == [0, 1, 2]


def test_a_worker_has_its_core_and_one_thread():
    core = available_cores()[-1]
    found = run_tasks(
        [Task("w", lambda: (os.sched_getaffinity(0), torch.get_num_threads()), core)]
    )
    assert found == [({core}, 1)]


def test_a_worker_can_compute_after_the_parent_used_threads():
    torch.randn(300, 300) @ torch.randn(300, 300)
    assert run_tasks(
        [Task("w", lambda: float((torch.ones(64, 64) @ torch.ones(64, 64))[0, 0]))]
    )


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (die, "worker 'b' was killed by SIGKILL"),
        (partial(die, 35), "worker 'b' was killed by signal 35"),
        (raise_error, "worker 'b' failed: ValueError: bad shape"),
        (fail, "worker 'b' failed: member 'mm': it broke"),
        (lambda: os._exit(3), "worker 'b' ended early with exit code 3"),
    ],
)
def test_a_worker_that_ends_badly_ends_the_run_at_once(task, message):
    start = time.monotonic()
    with pytest.raises(ExecutionError) as error:
        run_tasks([Task("a", sleep_forever), Task("b", task)], timeout=60)
    assert str(error.value) == message
    assert time.monotonic() - start < 5


def test_a_death_is_told_rather_than_the_failure_it_causes():
    """The peer is dead before the connection to it fails, however slow the machine is."""
    pid = multiprocessing.get_context("fork").Value("i", 0)

    def fail_after_peer() -> None:
        while not pid.value:
            time.sleep(0.001)
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(pid.value).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)
        raise ConnectionError("peer closed")

    def die_soon() -> None:
        pid.value = os.getpid()
        die()

    with pytest.raises(ExecutionError, match="'dead' was killed by SIGKILL"):
        run_tasks([Task("other", fail_after_peer), Task("dead", die_soon)])


def test_a_hang_is_ended_after_the_timeout_and_the_suspect_is_named():
    start = time.monotonic()
    with pytest.raises(ExecutionError, match="worker 'b' hangs in op 'x': no progress"):
        run_tasks(
            [Task("a", sleep_forever), Task("b", sleep_forever)],
            timeout=0.5,
            doing=lambda worker: " in op 'x'",
            suspect=lambda: 1,
        )
    assert time.monotonic() - start < 5


def test_progress_postpones_the_timeout():
    beats = iter(range(10**6))
    task = Task("slow", lambda: time.sleep(1.0))
    assert run_tasks(
        [task], timeout=0.3, progress=lambda: bytes(str(next(beats)), "ascii")
    ) == [None]


SCRIPT = r"""
    import os, time
    from gnnplace.run.workers.tasks import Task, run_tasks
    def report():
        os.write(1, b"%d\n" % os.getpid())
        time.sleep(600)
    run_tasks([Task("a", report), Task("b", report)])
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(how, tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(SCRIPT))
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(how)
    assert parent.wait(timeout=20) != 0
    deadline = time.monotonic() + 5
    while (
        any(psutil.pid_exists(pid) for pid in workers) and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in workers)
    parent.stdout.close()


def test_a_worker_keeps_the_memory_it_frees():
    def faults() -> int:
        for repetition in range(20):
            if repetition == 10:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            tensors = [torch.ones(10 << 20) for _ in range(2)]  # 80 MiB, 20480 pages
            del tensors
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert run_tasks([Task("w", faults)])[0] < 20480


def test_a_stopped_worker_is_given_up_long_before_the_timeout(monkeypatch):
    monkeypatch.setattr(workers, "LOOKS", 3)

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    begin = time.monotonic()
    with pytest.raises(
        ExecutionError, match=r"worker 'w' is stopped \(SIGSTOP\) in op 'x'"
    ):
        run_tasks([Task("w", stop)], timeout=600, doing=lambda worker: " in op 'x'")
    assert time.monotonic() - begin < 30


def test_a_worker_that_goes_on_is_waited_for(monkeypatch):
    monkeypatch.setattr(workers, "LOOKS", 20)

    def pause() -> int:
        timer = "import os, signal, time; time.sleep(0.5); os.kill({}, signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", timer.format(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
        return 1

    assert run_tasks([Task("w", pause)], timeout=600) == [1]
