"""Worker processes under supervision: one thread each, a core each, and none outlives the run.

Workers are forked, so that what they run needs no pickling; CUDA is initialised in the workers
alone. A worker that dies, raises or stops making progress ends the run with one `ExecutionError`,
and all workers are killed and reaped before it is raised, as they are on Ctrl-C. A worker whose
parent dies is killed by the kernel.

A worker that computes may take minutes for one op; one that the kernel reports as stopped (SIGSTOP,
or Ctrl-Z of job control) would take forever. Time limits for stopped workers count the parent's
checks, not seconds: if the parent was stopped too, it has not checked.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from gnnplace.errors import ExecutionError, UnsupportedError
from gnnplace.processes import end_with, exit_text, hold_interrupts, let_interrupts

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""From glibc's malloc.h: free memory at which malloc trims the heap; blocks that may be mapped."""
POLL = 0.1
"""Seconds between two looks of the supervisor."""
GRACE = 0.2
"""Seconds in which a worker's death shows, when another one's failure may stem from it."""
STACKS = "GNNPLACE_STACKS"
"""Set in the environment, it has workers that hang print where."""
STDERR = 2
"""Its descriptor: `sys.stderr` may stand for something without one."""
AUTOGRAD_THREAD = "pt_autograd_"
"""How PyTorch names its threads for the backward passes of GPUs."""
LOOKS = 100
"""Looks in a row that find a worker stopped, before it is given up: 10 s at a look each 0.1 s."""


@dataclass(frozen=True)
class Task:
    """The work of one worker.

    Attributes:
        name: The name of the worker, for messages.
        run: Called in the worker; returns plain data (no tensors), sent back through a pipe.
        core: Core to stay on; None leaves the affinity as it is.
    """

    name: str
    run: Callable[[], Any]
    core: int | None = None


class WorkerFailure(Exception):
    """Raised inside a worker to say in one line what failed where."""


class Reply(NamedTuple):
    """A worker's message: a result, or one line why there is none, and the time."""

    failed: bool
    content: Any
    time: float


@dataclass
class Worker:
    """A worker process and our end of its pipe."""

    task: Task
    process: BaseProcess
    pipe: Connection


def available_cores() -> list[int]:
    """Return the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def run_tasks(
    tasks: Sequence[Task],
    *,
    timeout: float = 120.0,
    progress: Callable[[], bytes] = bytes,
    doing: Callable[[int], str] = lambda worker: "",
    suspect: Callable[[], int | None] = lambda: None,
    idle: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run every task in a process of its own and return their results in order.

    Args:
        tasks: One for each worker.
        timeout: Seconds without any progress after which the run is given up.
        progress: A snapshot that changes while workers get on.
        doing: What a worker is doing now, for messages, such as " in op 'conv1'".
        suspect: The worker to blame when none gets on.
        idle: Called now and then while the workers work.

    Raises:
        ExecutionError: a worker died, raised or hung; names it and what it was doing.
        UnsupportedError: CUDA is already initialised in this process, which cannot be forked.
    """
    workers: list[Worker] = []
    try:
        for task in tasks:
            workers.append(start_worker(task, _work))
        return supervise(workers, timeout, progress, doing, suspect, idle)
    finally:
        end_workers(workers)


def start_worker(task: Task, work: Callable[[Task, Connection, int], None]) -> Worker:
    """Fork a process that does `work(task, pipe, parent)`.

    Raises:
        UnsupportedError: CUDA is already initialised in this process, which cannot be forked.
    """
    if torch.cuda.is_initialized():
        raise UnsupportedError(
            "workers: CUDA is already in use in this process, which therefore cannot be forked; "
            "execute in a fresh process"
        )
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=work,
        args=(task, theirs, os.getpid()),
        name=f"gnnplace {task.name}",
        daemon=True,
    )
    with hold_interrupts(), daemons_may_fork():
        process.start()
    theirs.close()
    return Worker(task, process, ours)


def check_backward_can_fork() -> None:
    """Check that a worker forked from this process can run a backward pass.

    PyTorch refuses one in a process whose parent had threads for it. They belong to GPUs, real ones
    or those that a torch with CUDA pretends to have within a `FakeTensorMode` where it finds none.

    Raises:
        UnsupportedError: this process has such threads.
    """
    names = (Path(task, "comm") for task in Path("/proc/self/task").glob("*"))
    if any(_text(name).startswith(AUTOGRAD_THREAD) for name in names):
        raise UnsupportedError(
            "workers: this process has threads of a backward pass for GPUs, as torch.compile or a "
            "FakeTensorMode starts them, and so no forked worker can run a backward pass; execute "
            "in a fresh process"
        )


def _text(path: Path) -> str:
    """Return what a file says, or nothing if its thread has ended."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


@contextmanager
def daemons_may_fork() -> Iterator[None]:
    """Let a daemonic process, e.g. of a `multiprocessing.Pool`, start workers inside.

    `multiprocessing` forbids it, for such a process may be ended without ending its own; workers
    end with the process that started them in any case (`end_with`).
    """
    options = multiprocessing.current_process()._config  # type: ignore[attr-defined] # noqa: SLF001
    daemonic = options.pop("daemon", None)
    try:
        yield
    finally:
        if daemonic is not None:
            options["daemon"] = daemonic


def _work(task: Task, pipe: Connection, parent: int) -> None:
    prepare_worker(task, parent)
    pipe.send(make_reply(task.run, keep=True)[0])


def make_reply(work: Callable[[], Any], keep: bool = False) -> tuple[Reply, Any]:
    """Do the work; return its reply, which has the result if `keep`, and the result."""
    try:
        result = work()
        return Reply(False, result if keep else None, time.monotonic()), result
    except WorkerFailure as failure:
        return Reply(True, str(failure), time.monotonic()), None
    except BaseException as error:
        return Reply(True, describe(error), time.monotonic()), None


def describe(error: BaseException) -> str:
    """Return the last line of an error's traceback: its class and message, on one line."""
    return " ".join(traceback.format_exception_only(error)[-1].split())


def prepare_worker(task: Task, parent: int) -> None:
    """Make a new process a worker: its core, one thread, and an end with its parent's."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    let_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    if STACKS in os.environ:
        faulthandler.register(signal.SIGUSR1, file=STDERR)
    torch.set_num_threads(1)
    _keep_memory()
    gc.freeze()
    gc.disable()


def _keep_memory() -> None:
    """Let malloc keep what is freed instead of handing it back to the kernel.

    Large tensors would else be mapped and unmapped in every step, and each first touch of a page
    costs a fault: 5 % of a GPT-2 step with four micro-batches in flight.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)


def supervise(
    workers: list[Worker],
    timeout: float,
    progress: Callable[[], bytes],
    doing: Callable[[int], str],
    suspect: Callable[[], int | None],
    idle: Callable[[], None],
) -> list[Any]:
    """Wait for a reply of every worker and return the results in order.

    Args:
        workers: All workers of the run.
        timeout: See `run_tasks`, as for the others.
        progress: A snapshot that changes while workers get on.
        doing: What a worker is doing now.
        suspect: The worker to blame when none gets on.
        idle: Called now and then.

    Raises:
        ExecutionError: a worker died, raised, hung or is stopped; names it and what it was doing.
    """
    results: dict[int, Any] = {}
    snapshot = progress()
    since = time.monotonic()
    stopped = StoppedWorkers()
    while len(results) < len(workers):
        running = [i for i in range(len(workers)) if i not in results]
        pipes = [workers[i].pipe for i in running]
        if wait([*pipes, *(workers[i].process.sentinel for i in running)], POLL):
            results |= _collect(workers, running, doing)
            since = time.monotonic()
        elif (latest := progress()) != snapshot:
            snapshot = latest
            since = time.monotonic()
        elif time.monotonic() - since > timeout:
            _give_up(workers, running, timeout, doing, suspect)
        elif (pid := stopped.look(workers[i].process.pid for i in running)) is not None:
            i = next(i for i in running if workers[i].process.pid == pid)
            raise ExecutionError(
                f"worker {workers[i].task.name!r} is stopped (SIGSTOP){doing(i)}: given up after "
                f"{LOOKS * POLL:g} s"
            )
        idle()
    return [results[i] for i in range(len(workers))]


def _collect(
    workers: list[Worker], running: list[int], doing: Callable[[int], str]
) -> dict[int, Any]:
    """Return the results of the workers that are done.

    Raises:
        ExecutionError: one died or failed. A death is told first, then the earliest failure, as
            the others may fail because of it.
    """
    # Ended workers are found before pipes are read.
    ended = [i for i in running if not workers[i].process.is_alive()]
    messages = _messages(workers, running)
    if any(message.failed for message in messages.values()):
        silent = [i for i in running if i not in messages]
        ended = _let_die(workers, silent)
        messages |= _messages(workers, silent)
    for i in ended:
        if i not in messages:
            workers[i].process.join()
            cause = exit_text(workers[i].process.exitcode)
            raise ExecutionError(f"worker {workers[i].task.name!r} {cause}{doing(i)}")
    failures = [(m.time, i) for i, m in messages.items() if m.failed]
    if failures:
        _, i = min(failures)
        raise ExecutionError(
            f"worker {workers[i].task.name!r} failed{doing(i)}: {messages[i].content}"
        )
    return {i: message.content for i, message in messages.items()}


def _messages(workers: list[Worker], running: list[int]) -> dict[int, Reply]:
    """Return what workers have sent, if anything."""
    replies: dict[int, Reply] = {}
    for i in running:
        try:
            if workers[i].pipe.poll():
                replies[i] = workers[i].pipe.recv()
        except (EOFError, ConnectionError):
            pass
    return replies


def _let_die(workers: list[Worker], silent: list[int]) -> list[int]:
    """Reap the workers whose death shows within a moment, and return them."""
    sentinels = {i: workers[i].process.sentinel for i in silent}
    dying = wait(list(sentinels.values()), GRACE)
    dead = [i for i in silent if sentinels[i] in dying]
    for i in dead:
        workers[i].process.join()
    return dead


def _give_up(
    workers: list[Worker],
    running: list[int],
    timeout: float,
    doing: Callable[[int], str],
    suspect: Callable[[], int | None],
) -> None:
    blamed = suspect()
    if blamed is None or blamed not in running:
        i = running[0]
    else:
        i = blamed
    if STACKS in os.environ:
        for k in running:
            os.kill(workers[k].process.pid or os.getpid(), signal.SIGUSR1)
            time.sleep(GRACE)
    raise ExecutionError(
        f"worker {workers[i].task.name!r} hangs{doing(i)}: no progress for {timeout:g} s"
    )


def end_workers(workers: list[Worker]) -> None:
    """Kill the workers that still run and reap all."""
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.pipe.close()
        worker.process.close()


class StoppedWorkers:
    """Counts looks that find a worker stopped."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()

    def look(self, pids: Iterable[int | None]) -> int | None:
        """Return the first of these processes that is stopped for long, or None."""
        for pid in pids:
            if pid is None:
                continue
            stopped = False
            with suppress(psutil.Error):
                stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
            self._looks[pid] = self._looks[pid] + 1 if stopped else 0
            if self._looks[pid] >= LOOKS:
                return pid
        return None
