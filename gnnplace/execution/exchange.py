"""What hosts tell each other during a run: clocks of finished steps, and failures.

Every host but the first publishes the ticks of its workers; the first copies them, by its own
clock, to where it would find them were they its own workers. A host that fails says so, and the
others end with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gnnplace.errors import ExecutionError
from gnnplace.execution.source import TICKS
from gnnplace.execution.stream import EVERY
from gnnplace.execution.worker import Records
from gnnplace.runtime.board import DONE, OFFSET, Board
from gnnplace.runtime.hosts import Hosts
from gnnplace.runtime.network import LOST

FAILED, ENDED, DONE_KEY, ROWS = "failed", "ended", "done", "rows"
LOOK = 0.5
"""Seconds between two looks whether another host has failed."""
PATIENCE = 1.5
"""Seconds in which the host that was lost may say why."""
GRACE = 3.0
"""Seconds in which the first host waits for what others publish when they end."""


class Exchange:
    """One host's side of a run on several.

    Args:
        hosts: All hosts.
        host_of: Host of each worker.
        records: The records of every worker; those of other hosts are filled in on the first.
        board: The same.
    """

    def __init__(
        self, hosts: Hosts, host_of: Sequence[int], records: Sequence[Records], board: Board
    ) -> None:
        self._hosts, self._host_of = hosts, host_of
        self._records, self._board = records, board
        self._published = 0
        self._collected = [0] * hosts.count
        self._looked = self._updated = time.monotonic()

    def _workers(self, host: int) -> list[int]:
        return [w for w, where in enumerate(self._host_of) if where == host]

    def now_and_then(self) -> None:
        """Looks for failures, and publishes or collects; called often.

        Raises:
            ExecutionError: another host has failed; says what happened there.
        """
        now = time.monotonic()
        if now - self._looked > LOOK:
            self._looked = now
            self._look()
        if now - self._updated > EVERY:
            self._updated = now
            self.update()

    def _look(self) -> None:
        for rank in range(self._hosts.count):
            why = self._failure(rank)
            if rank != self._hosts.rank and why and LOST not in why:
                raise ExecutionError(f"host {rank} failed: {why}")

    def cause(self, error: BaseException) -> BaseException:
        """Why a run failed: a lost connection is explained by the host that was lost, if it can."""
        deadline = time.monotonic() + PATIENCE
        while LOST in str(error) and time.monotonic() < deadline:
            for rank in range(self._hosts.count):
                why = self._failure(rank)
                if rank != self._hosts.rank and why and LOST not in why:
                    return ExecutionError(f"host {rank} failed: {why}")
            time.sleep(0.05)
        return error

    def _failure(self, rank: int) -> str:
        """What a host said of its failure; nothing if it said nothing."""
        try:
            key = f"{FAILED}/{rank}"
            return self._hosts.store.get(key).decode() if self._hosts.store.check([key]) else ""
        except RuntimeError:  # the store's host is gone
            return ""

    def update(self) -> None:
        """Publishes or collects what is new."""
        if not self._hosts.first:
            self._publish()
            return
        for rank in range(1, self._hosts.count):
            self._collect(rank)

    def end(self, error: BaseException | None) -> None:
        """Tells the others that this host's run is over; the first one waits for the others.

        Args:
            error: Why it failed, if it did.
        """
        store, rank = self._hosts.store, self._hosts.rank
        try:
            if error is not None:
                store.set(f"{FAILED}/{rank}", " ".join(str(error).split()) or type(error).__name__)
            if not self._hosts.first:
                self._publish()
            store.set(f"{ENDED}/{rank}", "")
            if self._hosts.first:
                self._wait()
                self.update()
        except RuntimeError:  # the store's host is gone: nobody is left to tell
            return

    def _wait(self) -> None:
        keys = [f"{ENDED}/{rank}" for rank in range(1, self._hosts.count)]
        deadline = time.monotonic() + GRACE
        while not self._hosts.store.check(keys) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _publish(self) -> None:
        workers, store = self._workers(self._hosts.rank), self._hosts.store
        done = min((self._board.get(w, DONE) for w in workers), default=0)
        if done <= self._published:
            return
        first = self._published
        for w in workers:
            record = self._records[w]
            words = record.words[first * record.row : done * record.row]
            store.set(f"{ROWS}/{w}/{first}", words.tobytes())  # type: ignore[arg-type]
        offsets = {w: self._board.get(w, OFFSET) for w in workers}
        message = {"done": done, "offsets": offsets}
        store.set(f"{DONE_KEY}/{self._hosts.rank}/{first}", json.dumps(message))
        self._published = done

    def _collect(self, rank: int) -> None:
        store = self._hosts.store
        while store.check([f"{DONE_KEY}/{rank}/{self._collected[rank]}"]):
            first = self._collected[rank]
            message = json.loads(store.get(f"{DONE_KEY}/{rank}/{first}"))
            for w in self._workers(rank):
                data = memoryview(store.get(f"{ROWS}/{w}/{first}")).cast("q")
                self._fill(self._records[w], first, data, message["offsets"][str(w)])
                self._board.put(w, DONE, message["done"])
            self._collected[rank] = message["done"]

    def _fill(self, record: Records, first: int, data: memoryview, offset: int) -> None:
        """Copies rows, their wall clocks moved to that of worker 0."""
        base = first * record.row
        record.words[base : base + len(data)] = data
        for row in range(len(data) // record.row):
            at = base + row * record.row
            for tick in range(record.num_ticks):
                record.words[at + TICKS * tick] += offset
