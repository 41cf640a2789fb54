"""Several measurements at a time, each in a process of its own on cores of its own.

The processes are forked and may fork workers themselves. One that dies is a missing result and no
error; when the caller is interrupted all end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from gnnplace.processes import end_with, hold_interrupts, let_interrupts
from gnnplace.run.workers.tasks import available_cores, daemons_may_fork

Job = Callable[[], Any]


@dataclass
class _Running:
    job: int
    process: BaseProcess
    pipe: Connection
    cores: tuple[int, ...]


def core_groups(count: int) -> list[tuple[int, ...]]:
    """Divide this process's cores into at most ``count`` groups of one size."""
    cores = available_cores()
    size = max(1, len(cores) // count)
    starts = range(0, len(cores) - size + 1, size)
    return [tuple(cores[i : i + size]) for i in starts][:count]


def side_by_side(jobs: Sequence[Job], groups: Sequence[tuple[int, ...]]) -> list[Any]:
    """Run jobs in processes, one for each group of cores at a time, and return their results.

    Args:
        jobs: What is to be run; each returns plain data.
        groups: Groups of cores, one for each job that runs at a time.

    Returns:
        None stands for a job whose process died or raised.
    """
    results: list[Any] = [None] * len(jobs)
    free = list(groups)
    waiting = list(range(len(jobs)))
    running = list[_Running]()
    try:
        while waiting or running:
            while waiting and free:
                running.append(_start(waiting.pop(0), jobs, free.pop(0)))
            wait([entry.pipe for entry in running])
            for entry in [entry for entry in running if entry.pipe.poll()]:
                results[entry.job] = _result(entry)
                running.remove(entry)
                free.append(entry.cores)
    finally:
        _end(running)
    return results


def _start(job: int, jobs: Sequence[Job], cores: tuple[int, ...]) -> _Running:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(jobs[job], theirs, cores, os.getpid())
    )
    with hold_interrupts(), daemons_may_fork():
        process.start()
    theirs.close()
    return _Running(job, process, ours, cores)


def _work(job: Job, pipe: Connection, cores: tuple[int, ...], parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent, signal.SIGTERM)
    os.sched_setaffinity(0, cores)
    try:
        let_interrupts()
        pipe.send(job())
    except BaseException:
        os._exit(1)  # the missing result says it; the parent has the interrupt as well


def _result(entry: _Running) -> object:
    try:
        result = entry.pipe.recv()
    except (EOFError, ConnectionError):
        result = None
    entry.process.join()
    entry.pipe.close()
    return result


def _end(running: list[_Running]) -> None:
    for entry in running:
        entry.process.terminate()
    for entry in running:
        entry.process.join()
        entry.pipe.close()
