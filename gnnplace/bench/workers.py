"""The places where cells run: this process, N worker processes, or a Dask cluster.

All three run ``cells.run_task`` and yield its rows as they come; the caller alone writes them.
A worker process (``python -m gnnplace.bench.workers KIND PLACER...``) reads tasks as lines of JSON
and answers with lines of JSON: what it knows of the problem once that is in memory, then the row.
So a worker that is killed, or that hangs in compiled code where no Python signal arrives, becomes a
row, and a fresh worker takes the next cell. On Dask every worker thread has such a process of its
own: same code, and no placer slows down the cluster's own threads. Suites are read where ``gnnplace
bench`` runs; files that problems name must be there at the same path on every machine.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gnnplace.bench.cells import CellTask, Row, make_failed_row, run_task
from gnnplace.bench.kinds import warm_up
from gnnplace.errors import InputError
from gnnplace.placing import is_warm
from gnnplace.processes import ends_with_this, exit_text

if TYPE_CHECKING:
    from distributed import Future

GRACE = 10.0  # seconds after the suite's limit until a worker that does not answer is killed
LOADING = 900.0  # seconds that a worker may take to start, compile and load a problem
ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
}
Runner = Callable[[Sequence[CellTask]], Iterator[Row]]
Say = Callable[[str], None]


class CellWorker:
    """A process that runs one cell at a time; it is started by the first one.

    Args:
        names: Placers of the suite, to compile before the first cell.
        folder: The process starts in it, if it is there: classes of one's own are found from it.
    """

    def __init__(self, names: Sequence[str] = (), folder: str = "") -> None:
        self.names = names
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.closed = False
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self, task: CellTask) -> Row:
        """Return the row of a cell: the worker's, or one that says that there is none."""
        begin = time.perf_counter()
        limit = LOADING
        description = None
        self._send(task.to_json())
        while True:
            text = self._answer(begin + limit - time.perf_counter())
            if not text:
                return make_failed_row(
                    task, description, time.perf_counter() - begin, self._end(limit)
                )
            answer: Row = json.loads(text)
            if not answer.pop("begun", False):
                return answer
            begin = time.perf_counter()
            limit = task.timeout + GRACE
            description = answer

    def close(self) -> None:
        """End the process, at once, for good."""
        self.closed = True
        self._kill()

    def _kill(self) -> None:
        process = self.process
        self.process = None
        if process is not None:
            process.kill()
            process.wait()

    def _send(self, text: str) -> None:
        if self.closed:
            self.answers.put("")
            return
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        # A worker that has died gives no answer, which the caller notices.
        with suppress(OSError):
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()

    def _start(self) -> None:
        command = [sys.executable, "-m", "gnnplace.bench.workers", *self.names]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
        }
        # A session of its own: Ctrl-C is for the process that writes the rows.
        self.process = subprocess.Popen(
            command,
            **pipes,
            env={**os.environ, **ONE_THREAD},
            cwd=self.folder if os.path.isdir(self.folder) else None,
            start_new_session=True,
            preexec_fn=ends_with_this(),
        )
        self.answers = queue.SimpleQueue()
        threading.Thread(
            target=_listen, args=(self.process, self.answers), daemon=True
        ).start()

    def _answer(self, seconds: float) -> str:
        """Return the next line; empty if the worker is gone or too late."""
        try:
            return self.answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return ""

    def _end(self, limit: float) -> str:
        """End a worker that gave no answer, and return what was wrong with it."""
        process = self.process
        if process is None:  # closed meanwhile: the run is being stopped
            return "stopped"
        try:
            code = process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._kill()
            return f"timed out: no answer after {limit:g} s, worker killed"
        self.process = None
        return f"worker died: it {exit_text(code)}"


def _listen(process: subprocess.Popen[str], answers: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")


def run_cells_here(names: Sequence[str], say: Say | None = None) -> Runner:
    """Run cells in this process, in order; no cell's seconds contain compilation.

    Args:
        names: Placers of the suite, to compile before the first cell.
        say: Called with a line now and then meanwhile.
    """

    def run(tasks: Sequence[CellTask]) -> Iterator[Row]:
        if tasks:
            warm_up(list(names), say)
        for task in tasks:
            yield run_task(task)

    return run


def run_cells_in_processes(
    count: int, names: Sequence[str], say: Say | None = None
) -> Runner:
    """Run cells in ``count`` worker processes; rows come as they are done.

    Kernels that are not on disk are compiled here first: each worker would compile all of them.

    Args:
        count: Processes.
        names: Placers of the suite, to compile before the first cell.
        say: Called with a line now and then meanwhile.

    Raises:
        InputError: The number of processes is below one.
    """
    if count < 1:
        raise InputError(f"--processes {count}: give a number above 0")

    def run(tasks: Sequence[CellTask]) -> Iterator[Row]:
        if tasks and not is_warm(names):
            warm_up(list(names), say)
        workers = [CellWorker(names) for _ in range(min(count, len(tasks)))]
        free: queue.SimpleQueue[CellWorker] = queue.SimpleQueue()
        for worker in workers:
            free.put(worker)
        pool = ThreadPoolExecutor(max(1, len(workers)))
        try:
            futures = [pool.submit(_with_worker, free, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()

    return run


def _with_worker(free: queue.SimpleQueue[CellWorker], task: CellTask) -> Row:
    worker = free.get()
    try:
        return worker.run(task)
    finally:
        free.put(worker)


def run_cells_on_dask(address: str, names: Sequence[str]) -> Runner:
    """Run cells on a Dask cluster, a cell a worker thread.

    Raises:
        InputError: ``distributed`` is not installed, or nobody answers at the address.
    """
    try:
        from distributed import Client
        from distributed import as_completed as done
    except ImportError:
        raise InputError(
            "--dask: the package distributed is missing; pip install 'gnnplace[dask]'"
        ) from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"--dask {address!r}: no scheduler answers there ({why})"
        ) from None

    def run(tasks: Sequence[CellTask]) -> Iterator[Row]:
        with client:
            lines = [task.to_json() for task in tasks]
            futures = client.map(
                run_on_dask,
                lines,
                names=list(names),
                folder=os.getcwd(),
                pure=False,
                retries=0,
            )
            origin = dict(zip((f.key for f in futures), tasks, strict=True))
            for future in done(futures):
                yield _make_row(future, origin[future.key])

    return run


def _make_row(future: Future, task: CellTask) -> Row:
    """Return a future's row; a cell that took Dask's worker with it is a failure."""
    error = future.exception()
    if error is None:
        return json.loads(future.result())
    return make_failed_row(
        task, None, 0.0, f"Dask worker failed: {type(error).__name__}: {error}"
    )


_of_thread = threading.local()


def run_on_dask(line: str, names: list[str], folder: str) -> str:
    """Run one task in the calling thread's own worker process; both are JSON."""
    worker = getattr(_of_thread, "worker", None)
    if worker is None or (worker.names, worker.folder) != (names, folder):
        if worker is not None:
            worker.close()
        _of_thread.worker = CellWorker(names, folder)
    return json.dumps(_of_thread.worker.run(CellTask.from_json(line)))


def serve(names: Sequence[str]) -> None:
    """Read tasks from standard input and write answers to standard output, both lines of JSON.

    Whatever else is printed goes to standard error. It ends when nobody asks or listens any more.

    Args:
        names: Placers of the suite, to compile before the first cell; may be empty.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(row: Row) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    if names:
        warm_up(list(names))
    with suppress(BrokenPipeError):
        for line in sys.stdin:
            answer(
                run_task(
                    CellTask.from_json(line), lambda row: answer({**row, "begun": True})
                )
            )


if __name__ == "__main__":
    serve(sys.argv[1:])
