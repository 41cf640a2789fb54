"""Measures what a message between two workers costs over the shared-memory transport.

There are two experiments:

* Cold sends. Worker 0 sends with cold caches, as in a step, where an op's code and tensors come
  between two messages. This gives the sender's own time.
* Rallies. Both workers play ping-pong with warm caches. Half a round trip is the time from the
  start of a send to the end of the receive.

Each experiment rotates over tens of megabytes of tensors and buffers, since a single one would stay
in the cache. To the medians by size s,

    send(s) = send_overhead + s / bandwidth                 (the sender makes the copy itself)
    one_way(s) = warm_send(s) + latency + receive_overhead  (half a round trip)

are fitted: the first by least squares of the relative error, the latency of the second as the
median over messages of at most `SMALL` bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from gnnplace.problem import Link
from gnnplace.run.workers.board import Board
from gnnplace.run.workers.tasks import Task, available_cores, run_tasks
from gnnplace.run.workers.transport import (
    Message,
    Receive,
    Send,
    Transport,
    make_transport,
)

SIZES = (4, 1024, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20)
"""Bytes of the messages that are measured."""
ROTATION = 32 << 20
"""Bytes that the buffers of one size and direction have together; there are two at least."""
MOST_BUFFERS = 32
"""Buffers of one size and direction, at most."""
TURNS = 7
"""Turns of each size. Odd turns are cold sends, even turns are rallies. The first one only maps the
buffers, and is not counted."""
FORGET = 4 << 20
"""Bytes that are touched before a cold send: more than the caches of a core hold."""
SMALL = 4096
"""Bytes up to which the copy of a message takes no time that could be measured."""
TIMEOUT = 60.0
"""Seconds without progress after which a measurement is given up."""
LEAST_LATENCY = 1e-7
"""Seconds of latency, at least: no flag crosses between two cores faster."""
LEAST_SLOPE = 1e-13
"""Seconds per byte, at least, which is 10 TB/s."""


@dataclass(frozen=True)
class MessageTimes:
    """Median seconds of messages between one pair of workers, by size.

    Attributes:
        sizes: Bytes of the messages.
        send: Seconds that the sender is busy with cold caches, for each size.
        warm_send: Seconds that the sender is busy with warm caches, for each size.
        one_way: Half a round trip with warm caches, for each size.
        receive: Seconds that the receiver is busy with a message that is already there.
    """

    sizes: tuple[int, ...]
    send: tuple[float, ...]
    warm_send: tuple[float, ...]
    one_way: tuple[float, ...]
    receive: float


def measure_link(devices: Sequence[torch.device] | None = None) -> Link:
    """Measure the link between two workers of this machine, "cpu:0" and "cpu:1".

    Args:
        devices: The device of each worker's tensors; None: the CPU. The sender copies a GPU's
            tensor to the host's memory, and the receiver copies it from there.

    Returns:
        The link from the first worker to the second, with a channel of its own.

    Raises:
        ExecutionError: If a worker failed.
    """
    cores = available_cores()
    ends = (cores[0], cores[1 % len(cores)])
    first, second = devices or (torch.device("cpu"),) * 2
    return fit_link("cpu:0", "cpu:1", time_messages(ends, (first, second)))


def fit_link(source: str, target: str, times: MessageTimes) -> Link:
    """Return the link whose send overhead, bandwidth and latency fit the times best.

    The module's docstring has the formulas.

    Args:
        source: Name of the sending device.
        target: Name of the receiving device.
        times: The measured times.
    """
    size = np.array(times.sizes, dtype=float)
    send_overhead, slope = fit_line(size, np.array(times.send))
    transit = np.array(times.one_way) - np.array(times.warm_send) - times.receive
    return Link(
        source=source,
        target=target,
        latency=float(max(np.median(transit[size <= SMALL]), LEAST_LATENCY)),
        bandwidth=float(1 / slope),
        sender_busy=True,
        send_overhead=float(send_overhead),
        receive_overhead=times.receive,
    )


def fit_line(size: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of the line `seconds` over `size`.

    Least squares of the relative error: both sides of each equation are divided by its seconds. The
    intercept is 0 at least and the slope `LEAST_SLOPE`.

    Args:
        size: Bytes. [N]
        seconds: Seconds, more than 0. [N]
    """
    columns = np.stack([np.ones_like(size), size], axis=1)
    relative_columns = columns / seconds[:, None]
    ones = np.ones(len(size))
    solution, *_ = np.linalg.lstsq(relative_columns, ones, rcond=None)
    intercept = max(float(solution[0]), 0.0)
    slope = max(float(solution[1]), LEAST_SLOPE)
    return intercept, slope


def time_messages(
    cores: tuple[int, int], devices: tuple[torch.device, torch.device]
) -> MessageTimes:
    """Measure messages of all `SIZES` between two workers.

    Args:
        cores: The core of each worker.
        devices: The device of each worker's tensors.

    Raises:
        ExecutionError: If a worker failed.
    """
    counts = [max(2, min(MOST_BUFFERS, ROTATION // size)) for size in SIZES]
    # Messages of one size are neighbours; there and back alternate.
    messages = []
    for size, count in zip(SIZES, counts, strict=True):
        for _ in range(count):
            for end in (0, 1):
                message = Message(
                    source=end,
                    target=1 - end,
                    shape=(size,),
                    stride=(1,),
                    dtype=torch.uint8,
                )
                messages.append(message)
    board = Board(2, crowded=cores[0] == cores[1])
    transport = make_transport("shm", tuple(messages), board)
    tasks = []
    for end, core in enumerate(cores):
        work = _LinkEnd(
            end=end,
            counts=counts,
            transport=transport,
            board=board,
            device=devices[end],
        )
        tasks.append(Task(f"link end {end}", work, core))
    try:
        rows, receive = run_tasks(tasks, timeout=TIMEOUT)[0]
    finally:
        transport.dispose()
    send, warm_send, one_way = zip(*rows, strict=True)
    return MessageTimes(
        sizes=SIZES, send=send, warm_send=warm_send, one_way=one_way, receive=receive
    )


@dataclass(frozen=True)
class _LinkEnd:
    """One of the two workers of a measurement. End 0 begins, and keeps the clock.

    Attributes:
        end: 0 or 1.
        counts: Buffers of each size and direction.
        transport: The transport of the messages.
        board: The board at which both ends meet before every turn.
        device: The device of this end's tensors.
    """

    end: int
    counts: list[int]
    transport: Transport
    board: Board
    device: torch.device

    def __call__(self) -> tuple[list[tuple[float, float, float]], float]:
        """Measure all sizes.

        Returns:
            For each size the seconds of `_play`, and the seconds of receiving a message that is
            already there: the least over all sizes, as `receive` copies nothing.
        """
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.transport.open(self.end, self.device)
        rows = []
        first = 0  # the first message of the size
        receive_seconds = float("inf")
        with torch.inference_mode():
            for size, count in zip(SIZES, self.counts, strict=True):
                sends = [
                    self.transport.sender(first + 2 * k + self.end)
                    for k in range(count)
                ]
                receives = [
                    self.transport.receiver(first + 2 * k + 1 - self.end)
                    for k in range(count)
                ]
                rows.append(self._play(size, first, sends, receives))
                # The last rally's messages are all there, so that nothing waits.
                start = time.perf_counter()
                for receive in receives:
                    receive(TURNS - 1)
                self._synchronize()
                seconds = (time.perf_counter() - start) / len(receives)
                receive_seconds = min(receive_seconds, seconds)
                first += 2 * count
        self.transport.close()
        return rows, receive_seconds

    def _play(
        self, size: int, first: int, sends: list[Send], receives: list[Receive]
    ) -> tuple[float, float, float]:
        """Play all turns with messages of one size.

        Args:
            size: Bytes of a message.
            first: Number of the size's first message, which makes the numbers of meetings unique.
            sends: Functions that send to the other end, one for each buffer.
            receives: Functions that receive from it, one for each buffer.

        Returns:
            Median seconds of a cold send, of a warm send, and of half a round trip.
        """
        sources = [
            torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in sends
        ]
        cold: list[float] = []
        rallies: list[tuple[float, float]] = []
        for turn in range(1, TURNS + 1):
            self.board.barrier(self.end, first * TURNS + turn)
            for source in sources:
                source.fill_(turn)
            is_cold = turn % 2 == 1
            for send, receive, source in zip(sends, receives, sources, strict=True):
                if is_cold:
                    cold.append(self._send_cold(send, receive, source, turn))
                else:
                    rallies.append(self._rally(send, receive, source, turn))
            self.transport.finish_round()
        warm, one_way = zip(*rallies, strict=True)
        return median(cold[len(sends) :]), median(warm), median(one_way)

    def _send_cold(
        self, send: Send, receive: Receive, source: torch.Tensor, turn: int
    ) -> float:
        """Return the seconds of a send with cold caches; 0 at end 1, which receives it."""
        if self.end == 1:
            receive(turn)
            return 0.0
        # Disturb the caches as an op between two messages does.
        torch.zeros(FORGET, dtype=torch.uint8).add_(1)
        torch.ones(64, 64).mm(torch.ones(64, 64)).relu().sum()
        self._synchronize()
        start = time.perf_counter()
        send(source, turn)
        return time.perf_counter() - start

    def _rally(
        self, send: Send, receive: Receive, source: torch.Tensor, turn: int
    ) -> tuple[float, float]:
        """Return the seconds of a send and of half a round trip; 0 at end 1, which answers."""
        if self.end == 1:
            receive(turn)
            self._synchronize()
            send(source, turn)
            return 0.0, 0.0
        self._synchronize()
        start = time.perf_counter()
        send(source, turn)
        sent = time.perf_counter()
        receive(turn)
        self._synchronize()
        return sent - start, (time.perf_counter() - start) / 2

    def _synchronize(self) -> None:
        """Wait until a GPU has done all its work: copies run behind the program."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
