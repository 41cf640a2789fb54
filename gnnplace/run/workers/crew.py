"""`Crew`: workers that stay alive and answer one request after the other.

Between requests they sleep in the kernel, so that the calling process has the cores. They are
supervised as in `tasks`: a worker that dies, raises or hangs ends the whole crew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from gnnplace.errors import ExecutionError
from gnnplace.run.workers.tasks import (
    Task,
    Worker,
    end_workers,
    make_reply,
    prepare_worker,
    start_worker,
    supervise,
)


class Crew:
    """Workers under supervision, from now until `close`.

    Args:
        tasks: One for each worker; `run` gets it ready and returns the function that answers its
            requests.
        timeout: See `run_tasks`, as for the others.
        progress: A snapshot that changes while workers get on.
        doing: What a worker is doing now.
        suspect: The worker to blame when none gets on.

    Raises:
        ExecutionError: a worker died, failed or hung while it got ready.
        UnsupportedError: see `start_worker`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        timeout: float = 120.0,
        progress: Callable[[], bytes] = bytes,
        doing: Callable[[int], str] = lambda worker: "",
        suspect: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._watch = (timeout, progress, doing, suspect, lambda: None)
        self._ended = ""
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, end_workers, self._workers)
        try:
            for task in tasks:
                self._workers.append(start_worker(task, _serve))
        except BaseException:
            self.close()
            raise
        self._replies()

    def ask(self, request: object) -> list[Any]:
        """Hand a request to every worker and wait for all answers, in order.

        Args:
            request: The request, as plain data.

        Raises:
            ExecutionError: a worker died, raised or hung, now or before; the crew has ended.
        """
        if self._ended:
            raise ExecutionError(f"workers have ended: {self._ended}")
        for worker in self._workers:
            try:
                worker.pipe.send(request)
            except OSError:  # it is dead: `supervise` says how it died
                break
        return self._replies()

    @property
    def running(self) -> bool:
        """Return whether the workers can take requests."""
        return not self._ended

    def close(self, why: str = "closed") -> None:
        """End all workers; may be called again."""
        self._ended = self._ended or why
        self._finalizer()

    def _replies(self) -> list[Any]:
        try:
            return supervise(self._workers, *self._watch)
        except BaseException as error:
            self.close(str(error) or type(error).__name__)
            raise


def _serve(task: Task, pipe: Connection, parent: int) -> None:
    prepare_worker(task, parent)
    reply, answer = make_reply(task.run)
    pipe.send(reply)
    while not reply.failed:
        try:
            request = pipe.recv()
        except EOFError:
            return
        reply, _ = make_reply(lambda given=request: answer(given), keep=True)  # type: ignore[misc]
        pipe.send(reply)
