"""Messages between workers of several hosts: shared memory inside a host, gloo across.

The first message of a kind across hosts is preceded by its strides, as there is no memory to
publish them in.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from gnnplace.run.workers.board import OFFSET, Board
from gnnplace.run.workers.hosts import Hosts
from gnnplace.run.workers.transport import (
    SETUP_TIMEOUT,
    GlooMessages,
    Message,
    Receive,
    Send,
    SharedMemoryTransport,
)

LOST = "is lost"
"""Ends what is said of a connection: whoever says so failed because another one had failed."""
ROUNDS = 20
"""Of the game that compares two clocks; the fastest one counts."""


class NetworkTransport(GlooMessages):
    """Carries messages between workers on several hosts.

    Args:
        messages: All messages of the run, by global numbers of workers.
        board: The board of this host; it has words for all workers.
        hosts: All hosts of the run.
        host_of: The host of each worker.
    """

    def __init__(
        self,
        messages: tuple[Message, ...],
        board: Board,
        hosts: Hosts,
        host_of: Sequence[int],
    ) -> None:
        super().__init__(messages, board)
        self._hosts = hosts
        self._host_of = tuple(host_of)
        near = [i for i, m in enumerate(messages) if self._inside(m)]
        self.elsewhere: dict[int, int] = {message: k for k, message in enumerate(near)}
        self._shared = SharedMemoryTransport(tuple(messages[i] for i in near), board)

    def _inside(self, message: Message) -> bool:
        ends = (self._host_of[message.source], self._host_of[message.target])
        return ends == (self._hosts.rank, self._hosts.rank)

    def open(self, worker: int, device: torch.device) -> None:
        """Meet all other workers and compare clocks with worker 0."""
        self._worker = worker
        self._device = device
        self._shared.open(worker, device)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("workers", self._hosts.client()),
            rank=worker,
            world_size=len(self._host_of),
            timeout=SETUP_TIMEOUT,
        )
        self._board.put(worker, OFFSET, self._compare_clocks())

    def _compare_clocks(self) -> int:
        """Return the nanoseconds from this worker's wall clock to worker 0's.

        The other clock is read in the middle of a round trip, of the fastest of several.
        """
        word = torch.zeros(1, dtype=torch.int64)
        fastest = (1 << 62, 0)
        remote_workers = [
            w for w in range(len(self._host_of)) if self._host_of[w] != self._host_of[0]
        ]
        for remote in remote_workers:
            for _ in range(ROUNDS):
                if self._worker == 0:
                    dist.recv(word, remote)
                    word[0] = time.perf_counter_ns()
                    dist.send(word, remote)
                elif self._worker == remote:
                    start = time.perf_counter_ns()
                    dist.send(word, 0)
                    dist.recv(word, 0)
                    end = time.perf_counter_ns()
                    fastest = min(
                        fastest, (end - start, int(word[0]) - (start + end) // 2)
                    )
        return fastest[1]

    def barrier(self, worker: int, meeting: int) -> None:
        """Wait for all workers of all hosts."""
        with self.reaching():
            dist.barrier()

    def held(self, worker: int) -> float:
        """Return the bytes of shared buffers it receives into, and of both ends by gloo."""
        return self._shared.held(worker) + super().held(worker)

    def sender(self, message: int) -> Send:
        """Return how a message is sent: through shared memory, or by gloo from a copy."""
        if message in self.elsewhere:
            return self._shared.sender(self.elsewhere[message])
        return super().sender(message)

    def receiver(self, message: int) -> Receive:
        """Return how a message is received: from shared memory, or by gloo."""
        if message in self.elsewhere:
            return self._shared.receiver(self.elsewhere[message])
        return super().receiver(message)

    @contextmanager
    def reaching(self, worker: int | None = None) -> Iterator[None]:
        """Raise gloo's long errors inside as one line: another host does not answer.

        Raises:
            ConnectionError: it does not.
        """
        try:
            yield
        except RuntimeError as error:
            if worker is None:
                which = "another host"
            else:
                which = f"host {self._host_of[worker]}"
            raise ConnectionError(f"the connection to {which} {LOST}") from error

    def bring_home(self, tensors: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Send what workers of other hosts have to worker 0, whose memory host 0 reads."""
        for tag, (source, tensor) in enumerate(tensors):
            if self._host_of[source] == self._host_of[0] or not tensor.numel():
                continue
            if self._worker == source:
                dist.send(tensor.reshape(-1).view(torch.uint8), 0, tag=tag)
            elif self._worker == 0:
                dist.recv(tensor.reshape(-1).view(torch.uint8), source, tag=tag)

    def close(self) -> None:
        """Leave the process group when all others are done."""
        dist.barrier()
        dist.destroy_process_group()

    def dispose(self) -> None:
        """Free all that is shared."""
        self._shared.dispose()
