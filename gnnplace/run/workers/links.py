"""Measures what a message between two workers costs, over shared memory itself.

There are two experiments. In the first, worker 0 sends with cold caches, as in a step, where the
code and tensors of an op come between two messages; this gives the sender's own time. The second is
a ping-pong with warm caches, in which half a round trip gives the time of the message itself.
Tensors and buffers rotate over tens of megabytes, because a single one would stay in the cache.
From the medians,

    send(s) = send_overhead + s / bandwidth                 (the sender makes the copy itself)
    one_way(s) = warm_send(s) + latency + receive_overhead  (half a round trip)

are fitted by least squares of the relative error.
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
ROTATION = 32 << 20
"""Bytes of the buffers of one size and direction."""
MOST_BUFFERS = 32
TURNS = 7
"""Odd ones are cold sends, the first of them a warm-up that maps the buffers; even ones rallies."""
FORGET = 4 << 20
"""Bytes that an op between two messages touches: more than a core's own caches hold."""
SMALL = 4096
"""Up to this many bytes a message is all latency."""
TIMEOUT = 60.0
"""Seconds without progress after which a measurement is given up."""
LEAST_LATENCY = 1e-7
"""Seconds: no flag crosses between cores faster."""


@dataclass(frozen=True)
class MessageTimes:
    """Median seconds of messages between one pair of workers, by size.

    Attributes:
        sizes: The bytes of the messages.
        send: The sender's own time a message, its caches cold.
        warm_send: The same with warm caches.
        one_way: Half a round trip with warm caches.
        receive: The receiver's own time for a message that is already there.
    """

    sizes: tuple[int, ...]
    send: tuple[float, ...]
    warm_send: tuple[float, ...]
    one_way: tuple[float, ...]
    receive: float


def measure_link(devices: Sequence[torch.device] | None = None) -> Link:
    """Measure the link between two workers of this machine, "cpu:0" and "cpu:1".

    Args:
        devices: Where the workers' tensors live; the CPU by default. Tensors of GPUs are staged in
            the host's memory by whom sends them, and fetched from there.

    Returns:
        The link from the first worker to the second, with a channel of its own.

    Raises:
        ExecutionError: a worker failed.
    """
    cores = available_cores()
    ends = (cores[0], cores[1 % len(cores)])
    first, second = devices or (torch.device("cpu"),) * 2
    return fit_link("cpu:0", "cpu:1", time_messages(ends, (first, second)))


def fit_link(source: str, target: str, times: MessageTimes) -> Link:
    """Return the link that explains the times best (see the module)."""
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
    """Intercept and slope of `seconds` over `size`, least squares of the relative error.

    Neither is below a positive minimum: no message is free.
    """
    columns = np.stack([np.ones_like(size), size], axis=1) / seconds[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(columns, np.ones(len(size)), rcond=None)
    return max(float(intercept), 0.0), max(float(slope), 1e-13)


def time_messages(
    cores: tuple[int, int], devices: tuple[torch.device, torch.device]
) -> MessageTimes:
    """Time ping-pong of all `SIZES` between two workers on `cores`, with tensors on `devices`."""
    counts = [max(2, min(MOST_BUFFERS, ROTATION // size)) for size in SIZES]
    messages = tuple(
        Message(end, 1 - end, (size,), (1,), torch.uint8)
        for size, count in zip(SIZES, counts, strict=True)
        for _ in range(count)
        for end in (0, 1)
    )
    board = Board(2, crowded=cores[0] == cores[1])
    carrier = make_transport("shm", messages, board)
    tasks = [
        Task(f"link end {end}", _End(end, counts, carrier, board, devices[end]), core)
        for end, core in enumerate(cores)
    ]
    try:
        rows, receive = run_tasks(tasks, timeout=TIMEOUT)[0]
    finally:
        carrier.dispose()
    cold, warm, way = zip(*rows, strict=True)
    return MessageTimes(SIZES, cold, warm, way, receive)


@dataclass(frozen=True)
class _End:
    """One end; end 0 keeps the clock. Odd turns are cold sends, even ones ping-pong."""

    end: int
    counts: list[int]
    transport: Transport
    board: Board
    device: torch.device

    def __call__(self) -> tuple[list[tuple[float, float, float]], float]:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.transport.open(self.end, self.device)
        rows = []
        first = 0
        receive = float("inf")
        with torch.inference_mode():
            for size, count in zip(SIZES, self.counts, strict=True):
                out = [
                    self.transport.sender(first + 2 * k + self.end)
                    for k in range(count)
                ]
                back = [
                    self.transport.receiver(first + 2 * k + 1 - self.end)
                    for k in range(count)
                ]
                rows.append(self._play(size, first, out, back))
                start = time.perf_counter()
                for one in back:
                    one(TURNS - 1)  # the last that was answered
                self._settle()
                receive = min(receive, (time.perf_counter() - start) / len(back))
                first += 2 * count
        self.transport.close()
        return rows, receive

    def _play(
        self, size: int, first: int, out: list[Send], back: list[Receive]
    ) -> tuple[float, float, float]:
        sources = [
            torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in out
        ]
        cold: list[float] = []
        rallies: list[tuple[float, float]] = []
        for turn in range(1, TURNS + 1):
            self.board.barrier(self.end, first * TURNS + turn)
            for source in sources:
                source.fill_(turn)
            if turn % 2:
                cold += [
                    self._serve(*ball, turn)
                    for ball in zip(out, back, sources, strict=True)
                ]
            else:
                rallies += [
                    self._rally(*ball, turn)
                    for ball in zip(out, back, sources, strict=True)
                ]
            self.transport.finish_round()
        warm, way = zip(*rallies, strict=True)
        return median(cold[len(out) :]), median(warm), median(way)

    def _serve(
        self, send: Send, receive: Receive, source: torch.Tensor, turn: int
    ) -> float:
        if self.end == 1:
            receive(turn)
            return 0.0
        # Disturb the caches as an op between two messages does.
        torch.zeros(FORGET, dtype=torch.uint8).add_(1)
        torch.ones(64, 64).mm(torch.ones(64, 64)).relu().sum()
        self._settle()
        start = time.perf_counter()
        send(source, turn)
        return time.perf_counter() - start

    def _rally(
        self, send: Send, receive: Receive, source: torch.Tensor, turn: int
    ) -> tuple[float, float]:
        if self.end == 1:
            receive(turn)
            self._settle()
            send(source, turn)
            return 0.0, 0.0
        self._settle()
        start = time.perf_counter()
        send(source, turn)
        sent = time.perf_counter()
        receive(turn)
        self._settle()
        return sent - start, (time.perf_counter() - start) / 2

    def _settle(self) -> None:
        """Wait until a GPU has done what it was told: its copies run behind the program."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
