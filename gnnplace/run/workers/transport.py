"""How tensors travel between workers: the interface, shared memory, and gloo; each by its name.

A message is a tensor that one worker sends to another once a round. Its buffer is its own, so that
rounds need only a barrier between them. Strides travel with the tensor: in the first round the
sender publishes the strides it met, and both sides keep views with these strides from then on
(a tensor sent as contiguous would make the receiver's kernels round differently). So does its
place within a cache line, the `shift`: a slice that begins in the middle of one is received so.

With gloo (`torch.distributed`, over TCP) the sender copies a tensor, which the program may change
later, and hands the copy to gloo's own thread; the round ends when all of its sends have completed.
Workers that are forked here meet at a file in memory without a name to form gloo's process group: a
`TCPStore` in the parent has a thread, which may hold the lock of the resolver at the instant of a
fork, so that the worker waits for it for ever.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from gnnplace.errors import UnsupportedError
from gnnplace.run.workers.board import STRIDE, WAITING, Board, has_ordered_stores
from gnnplace.run.workers.memory import (
    LINE,
    Arena,
    contiguous_stride,
    shared_words,
    span,
)

ROW = 32
"""Words of a message's layout: its strides (torch ops know at most 25 dimensions); the last one is
its `shift`."""
Send = Callable[[torch.Tensor, int], None]
Receive = Callable[[int], torch.Tensor]
SETUP_TIMEOUT = timedelta(seconds=60)
"""For the first meeting of several hosts."""
LONG = timedelta(days=1)
"""For workers of one host: how long they wait is the supervisor's to end."""


@contextmanager
def meeting_place() -> Iterator[int]:
    """Open a meeting place, whose descriptor forked workers have too; closed at the end."""
    place = os.memfd_create("gnnplace meeting place")
    try:
        yield place
    finally:
        os.close(place)


def join_group(place: int, rank: int, count: int, timeout: timedelta) -> None:
    """Wait for the others at a meeting place and form a gloo group with them.

    Args:
        place: A descriptor, as `meeting_place` gives it.
        rank: Number of this process.
        count: The number of all processes.
        timeout: How long the meeting and whatever the group does may take.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file:///proc/self/fd/{place}",
        rank=rank,
        world_size=count,
        timeout=timeout,
    )


@dataclass(frozen=True)
class Message:
    """A tensor from one worker to another, once a round.

    Attributes:
        source: The number of the sending worker.
        target: The number of the receiving worker.
        shape: The sizes of the tensor.
        stride: Strides that are expected, in elements.
        dtype: The element type of the tensor.
    """

    source: int
    target: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def capacity(self) -> int:
        """Return the elements that the buffer holds: the expected layout, or any dense one."""
        return max(
            span(self.shape, self.stride),
            span(self.shape, contiguous_stride(self.shape)),
        )

    def find_strides(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return a tensor's strides in the buffer: its own if they fit, else contiguous ones."""
        fits = span(self.shape, tensor.stride()) <= self.capacity
        if fits:
            return tensor.stride()
        return contiguous_stride(self.shape)


class Transport(ABC):
    """Carries messages. Made before the workers are forked, opened in each of them."""

    @abstractmethod
    def open(self, worker: int, device: torch.device) -> None:
        """Set up; called once in each worker before any other call."""

    @abstractmethod
    def sender(self, message: int) -> Send:
        """Return the function `send(tensor, round)` of a message, for its source."""

    @abstractmethod
    def receiver(self, message: int) -> Receive:
        """Return the function `receive(round) -> tensor` of a message, for its target."""

    @abstractmethod
    def barrier(self, worker: int, meeting: int) -> None:
        """Wait until all workers are at `meeting`, a number that grows from call to call."""

    def bring_home(self, tensors: Iterable[tuple[int, torch.Tensor]]) -> None:  # noqa: B027
        """Make tensors of all workers known to the parent of worker 0; called in each worker.

        Args:
            tensors: Worker that has it, and where it lies in memory that this host shares.
        """

    @abstractmethod
    def held(self, worker: int) -> float:
        """Return the bytes of buffers that a worker keeps for its messages."""

    def finish_round(self) -> None:  # noqa: B027 (most transports have nothing to do)
        """Wait until what this worker sent may be changed."""

    def close(self) -> None:  # noqa: B027
        """Finish; called in each worker after the last round."""

    def dispose(self) -> None:  # noqa: B027
        """Clean up; called in the parent when the workers have ended, however they did."""


class MessageLayouts:
    """Strides of every message, published by its sender in the first round."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages
        self.words = shared_words(len(messages) * ROW)

    def publish(self, message: int, tensor: torch.Tensor) -> tuple[int, ...]:
        """Store and return a tensor's strides in the buffer: its own or contiguous ones."""
        stride = self._messages[message].find_strides(tensor)
        base = message * ROW
        for i, step in enumerate(stride):
            self.words[base + i] = step
        self.words[base + ROW - 1] = shift(tensor)
        return stride

    def read(self, message: int) -> tuple[int, ...]:
        """Return the published strides of a message."""
        base = message * ROW
        dimensions = len(self._messages[message].shape)
        return tuple(self.words[base + i] for i in range(dimensions))

    def shift(self, message: int) -> int:
        """Return the published shift of a message."""
        return self.words[message * ROW + ROW - 1]


def shift(tensor: torch.Tensor) -> int:
    """Return the elements between the start of the tensor's cache line and the tensor."""
    return tensor.data_ptr() % LINE // tensor.element_size()


def overlaps(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether two elements of a strided tensor may share memory (expanded, unfolded)."""
    reach = 0
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that a strided tensor spans, as a vector."""
    size = span(tuple(tensor.shape), tensor.stride())
    return tensor.as_strided((size,), (1,), tensor.storage_offset())


def copying(receive: Receive) -> Receive:
    """Copy into memory of torch, laid out the same; what overlaps itself stays in place."""

    def received(turn: int) -> torch.Tensor:
        tensor = receive(turn)
        if overlaps(tuple(tensor.shape), tensor.stride()):
            return tensor
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(tensor)

    return received


class SharedMemoryTransport(Transport):
    """Buffers and flags in shared memory: the sender copies, the receiver reads in place.

    Args:
        messages: All messages of the run.
        board: The board on which workers wait and say what they wait for.
    """

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        self._messages = messages
        self._board = board
        self._layouts = MessageLayouts(messages)
        self._flags = shared_words(len(messages) * STRIDE)
        self._arena = Arena()
        self._offsets = [
            self._arena.reserve(m.capacity * m.dtype.itemsize + LINE) for m in messages
        ]
        for i in range(len(messages)):
            self._buffer(i, messages[i].shape, contiguous_stride(messages[i].shape))
        self._worker = -1
        self._device = torch.device("cpu")

    def _buffer(
        self, i: int, shape: tuple[int, ...], stride: tuple[int, ...], shift: int = 0
    ) -> torch.Tensor:
        dtype = self._messages[i].dtype
        return self._arena.view(
            self._offsets[i] + shift * dtype.itemsize, shape, stride, dtype
        )

    def open(self, worker: int, device: torch.device) -> None:
        """Note who this is; called in the worker."""
        self._worker = worker
        self._device = device

    def barrier(self, worker: int, meeting: int) -> None:
        """Wait at the board."""
        self._board.barrier(worker, meeting)

    def held(self, worker: int) -> float:
        """Return the bytes of the buffers that it receives into, which senders write."""
        return float(
            sum(
                m.capacity * m.dtype.itemsize
                for m in self._messages
                if m.target == worker
            )
        )

    def sender(self, message: int) -> Send:
        """Return a function that copies the tensor into the message's buffer and flags it."""
        flags = self._flags
        slot = message * STRIDE
        copy: Callable[[torch.Tensor], object] | None = None

        def send(tensor: torch.Tensor, turn: int) -> None:
            nonlocal copy
            if copy is None:
                copy = self._copier(message, tensor)
            copy(tensor)
            flags[slot] = turn

        return send

    def _copier(
        self, message: int, tensor: torch.Tensor
    ) -> Callable[[torch.Tensor], object]:
        shape = self._messages[message].shape
        stride = self._layouts.publish(message, tensor)
        at = self._layouts.shift(message)
        if overlaps(shape, stride):
            vector = self._buffer(message, (span(shape, stride),), (1,), at)
            return lambda tensor: vector.copy_(flat(tensor))
        return self._buffer(message, shape, stride, at).copy_

    def receiver(self, message: int) -> Receive:
        """Return a function that waits for the flag and returns the buffer itself, on the CPU."""
        board = self._board
        flags = self._flags
        slot = message * STRIDE
        state = self._worker * STRIDE + WAITING
        received: torch.Tensor | None = None

        def receive(turn: int) -> torch.Tensor:
            nonlocal received
            if flags[slot] < turn:
                board.words[state] = message + 1
                board.wait(flags, slot, turn)
                board.words[state] = 0
            if received is None:
                shape = self._messages[message].shape
                stride = self._layouts.read(message)
                received = self._buffer(
                    message, shape, stride, self._layouts.shift(message)
                )
            if received.device == self._device:
                return received
            return received.to(self._device)

        return receive


class GlooMessages(Transport):
    """Point-to-point messages of gloo, tagged by their numbers; the first one's strides go before.

    Args:
        messages: All messages of the run.
        board: Says how many workers meet, and what each waits for.
    """

    elsewhere: Container[int] = ()
    """Messages that do not go by gloo."""

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        self._messages = messages
        self._board = board
        self._pending: list[dist.Work] = []
        self._worker = -1
        self._device = torch.device("cpu")

    def held(self, worker: int) -> float:
        """Return a buffer at both ends of each message."""
        return float(
            sum(
                m.capacity * m.dtype.itemsize
                for i, m in enumerate(self._messages)
                if i not in self.elsewhere and worker in (m.source, m.target)
            )
        )

    def sender(self, message: int) -> Send:
        """Return a function that copies the tensor and starts sending the copy."""
        form = self._messages[message]
        staged: torch.Tensor | None = None
        stride: tuple[int, ...] = ()

        def send(tensor: torch.Tensor, turn: int) -> None:
            nonlocal staged, stride
            if staged is None:
                stride = form.find_strides(tensor)
                staged = torch.empty(span(form.shape, stride), dtype=form.dtype)
                header = torch.zeros(ROW, dtype=torch.int64)
                header[: len(stride)] = torch.tensor(stride, dtype=torch.int64)
                header[-1] = shift(tensor)
                self._post(header, form.target, 2 * message + 1)
            stage(staged, tensor, stride)
            self._post(staged.view(torch.uint8), form.target, 2 * message)

        return send

    def _post(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        with self.reaching(target):
            work = dist.isend(tensor, target, tag=tag)
        if work is not None:
            self._pending.append(work)

    def receiver(self, message: int) -> Receive:
        """Return a function that waits for the message and returns its buffer, with its strides."""
        form = self._messages[message]
        state = self._worker * STRIDE + WAITING
        room: torch.Tensor | None = None
        received: torch.Tensor | None = None

        def receive(turn: int) -> torch.Tensor:
            nonlocal room, received
            self._board.words[state] = message + 1
            if room is None or received is None:
                header = torch.zeros(ROW, dtype=torch.int64)
                with self.reaching(form.source):
                    dist.recv(header, form.source, tag=2 * message + 1)
                stride = tuple(header[: len(form.shape)].tolist())
                size = span(form.shape, stride)
                at = int(header[-1])
                vector = torch.empty(
                    size + LINE // form.dtype.itemsize, dtype=form.dtype
                )
                room = vector[at : at + size].view(torch.uint8)
                received = vector.as_strided(form.shape, stride, at)
            with self.reaching(form.source):
                dist.recv(room, form.source, tag=2 * message)
            self._board.words[state] = 0
            if self._device.type == "cpu":
                return received
            return received.to(self._device)

        return receive

    def finish_round(self) -> None:
        """Wait for the sends of this worker."""
        with self.reaching():
            for work in self._pending:
                work.wait()
        self._pending.clear()

    @contextmanager
    def reaching(self, worker: int | None = None) -> Iterator[None]:
        """Wait inside for another worker, or for any of them."""
        yield


class GlooTransport(GlooMessages):
    """Those between workers that were forked here; arguments as of `GlooMessages`."""

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        super().__init__(messages, board)
        self._meeting = os.memfd_create("gnnplace gloo store")

    def open(self, worker: int, device: torch.device) -> None:
        """Meet the other workers through a file store, in memory that has no name."""
        self._worker = worker
        self._device = device
        join_group(self._meeting, worker, self._board.num_workers, LONG)

    def barrier(self, worker: int, meeting: int) -> None:
        """Wait at the board."""
        self._board.barrier(worker, meeting)

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def dispose(self) -> None:
        """Close the file store."""
        os.close(self._meeting)


def stage(room: torch.Tensor, tensor: torch.Tensor, stride: tuple[int, ...]) -> None:
    """Copy a tensor into a vector so that it lies there with `stride`."""
    shape = tuple(tensor.shape)
    if overlaps(shape, stride):
        room.copy_(flat(tensor))
    else:
        room.as_strided(shape, stride).copy_(tensor)


TRANSPORTS = {"shm": SharedMemoryTransport, "gloo": GlooTransport}


def make_transport(name: str, messages: tuple[Message, ...], board: Board) -> Transport:
    """Return the transport called `name` for `messages`, before the workers are forked.

    Raises:
        UnsupportedError: shared memory on a machine whose cores see stores out of order.
    """
    if name == "shm" and not has_ordered_stores():
        raise UnsupportedError(
            "transport 'shm': flags in shared memory need a machine that shows stores in order "
            "(x86); use transport='gloo'"
        )
    return TRANSPORTS[name](messages, board)
