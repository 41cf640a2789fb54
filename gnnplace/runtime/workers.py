"""Worker processes under supervision: one thread each, a core each, and none outlives the run.

Workers are forked, so that what they run needs no pickling; CUDA is initialised in the workers
alone. A worker that dies, raises or stops making progress ends the run with one `ExecutionError`,
and all workers are killed and reaped before it is raised, as they are on Ctrl-C. A worker whose
parent dies is killed by the kernel.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from gnnplace.errors import ExecutionError, UnsupportedError

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when its parent dies."""
POLL = 0.1
"""Seconds between two looks of the supervisor."""
GRACE = 0.2
"""Seconds in which a worker's death shows, when another one's failure may stem from it."""


@dataclass(frozen=True)
class Task:
    """What one worker does.

    Attributes:
        name: Of the worker, for messages.
        run: Called in the worker; returns plain data (no tensors), sent back through a pipe.
        core: Core to stay on; None leaves the affinity as it is.
    """

    name: str
    run: Callable[[], Any]
    core: int | None = None


class WorkerFailure(Exception):
    """Raised inside a worker to say in one line what failed where."""


@dataclass
class _Worker:
    task: Task
    process: BaseProcess
    pipe: Connection


def available_cores() -> list[int]:
    """Cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def run_tasks(
    tasks: Sequence[Task],
    *,
    timeout: float = 120.0,
    progress: Callable[[], bytes] = bytes,
    doing: Callable[[int], str] = lambda worker: "",
    suspect: Callable[[], int | None] = lambda: None,
) -> list[Any]:
    """Runs every task in a process of its own and returns their results in order.

    Args:
        tasks: One for each worker.
        timeout: Seconds without any progress after which the run is given up.
        progress: A snapshot that changes while workers get on.
        doing: What a worker is doing now, for messages, such as " in op 'conv1'".
        suspect: The worker to blame when none gets on.

    Raises:
        ExecutionError: a worker died, raised or hung; names it and what it was doing.
        UnsupportedError: CUDA is already initialised in this process, which cannot be forked.
    """
    if torch.cuda.is_initialized():
        raise UnsupportedError(
            "workers: CUDA is already in use in this process, which therefore cannot be forked; "
            "execute in a fresh process"
        )
    workers: list[_Worker] = []
    try:
        for task in tasks:
            workers.append(_start(task))
        return _supervise(workers, timeout, progress, doing, suspect)
    finally:
        _end(workers)


def _start(task: Task) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(task, theirs, os.getpid()), name=f"gnnplace {task.name}", daemon=True
    )
    process.start()
    theirs.close()
    return _Worker(task, process, ours)


def _work(task: Task, pipe: Connection, parent: int) -> None:
    _prepare(task, parent)
    try:
        pipe.send(("done", task.run()))
    except WorkerFailure as failure:
        pipe.send(("failed", str(failure)))
    except BaseException as error:
        pipe.send(("failed", describe(error)))


def describe(error: BaseException) -> str:
    """The last line of an error's traceback: its class and message, on one line."""
    return " ".join(traceback.format_exception_only(error)[-1].split())


def _prepare(task: Task, parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    torch.set_num_threads(1)
    gc.freeze()
    gc.disable()


def _supervise(
    workers: list[_Worker],
    timeout: float,
    progress: Callable[[], bytes],
    doing: Callable[[int], str],
    suspect: Callable[[], int | None],
) -> list[Any]:
    results: dict[int, Any] = {}
    seen, since = progress(), time.monotonic()
    while len(results) < len(workers):
        running = [i for i in range(len(workers)) if i not in results]
        pipes = [workers[i].pipe for i in running]
        if wait([*pipes, *(workers[i].process.sentinel for i in running)], POLL):
            results |= _collect(workers, running, doing)
            since = time.monotonic()
        elif (now := progress()) != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            _give_up(workers, running, timeout, doing, suspect)
    return [results[i] for i in range(len(workers))]


def _collect(
    workers: list[_Worker], running: list[int], doing: Callable[[int], str]
) -> dict[int, Any]:
    """Results of those that are done.

    Raises:
        ExecutionError: one died or failed; a death comes first, as others may fail from it.
    """
    ended = [i for i in running if not workers[i].process.is_alive()]  # before reading pipes
    messages = {i: message for i in running if (message := _message(workers[i])) is not None}
    failed = [i for i in messages if messages[i][0] == "failed"]
    if failed:
        _let_die([workers[i].process for i in running if i not in messages])
    for i in ended if not failed else running:
        if i not in messages and not workers[i].process.is_alive():
            workers[i].process.join()
            what = _exit_text(workers[i].process.exitcode)
            raise ExecutionError(f"worker {workers[i].task.name!r} {what}{doing(i)}")
    for i in failed:
        raise ExecutionError(f"worker {workers[i].task.name!r} failed{doing(i)}: {messages[i][1]}")
    return {i: content for i, (_, content) in messages.items()}


def _let_die(processes: list[BaseProcess]) -> None:
    """Reaps those whose death shows within a moment."""
    dying = wait([process.sentinel for process in processes], GRACE)
    for process in processes:
        if process.sentinel in dying:
            process.join()


def _message(worker: _Worker) -> tuple[str, Any] | None:
    """What a worker has sent, if anything."""
    try:
        if worker.pipe.poll():
            kind, content = worker.pipe.recv()
            return kind, content
    except EOFError:
        pass
    return None


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended early with exit code {code}"


def _give_up(
    workers: list[_Worker],
    running: list[int],
    timeout: float,
    doing: Callable[[int], str],
    suspect: Callable[[], int | None],
) -> None:
    blamed = suspect()
    i = running[0] if blamed is None or blamed not in running else blamed
    raise ExecutionError(
        f"worker {workers[i].task.name!r} hangs{doing(i)}: no progress for {timeout:g} s"
    )


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.pipe.close()
        worker.process.close()
