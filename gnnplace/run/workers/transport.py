"""Carries tensors between workers: the interface `Transport`, by shared memory, and by gloo.

A message is a tensor that one worker sends to another once a round. Every message has a buffer of
its own, so one barrier between two rounds is enough.

The receiver gets a tensor with the sender's strides, because kernels may round differently on
other strides. It also begins at the same position within a cache line, its `shift`, for the same
reason. In the first round the sender publishes both, and from then on both sides keep views with
them.

With gloo (`torch.distributed`, over TCP) the sender copies the tensor, because the program may
change it later, and hands the copy to gloo's own thread. The round ends when all its sends have
completed. Forked workers form gloo's process group by a file store in memory that has no name. A
`TCPStore` in the parent would have a thread, which may hold the resolver's lock at the instant of
the fork; the worker would then wait for that lock for ever.
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
    make_shared_words,
    span,
)

ROW = 32
"""Words that a message's layout takes: its strides, and as the last word its `shift`. Torch's ops
have at most 25 dimensions."""
Send = Callable[[torch.Tensor, int], None]
"""A function that sends a tensor, given the number of the round."""
Receive = Callable[[int], torch.Tensor]
"""A function that returns the tensor of a round, given its number."""
SETUP_TIMEOUT = timedelta(seconds=60)
"""How long several hosts wait for each other to begin with."""
LONG = timedelta(days=1)
"""Timeout of gloo among the workers of one host, where the supervisor ends what hangs."""


@contextmanager
def meeting_place() -> Iterator[int]:
    """Open a file in memory for gloo's file store. Forked workers inherit its descriptor.

    Yields:
        The descriptor, which is closed at the end.
    """
    place = os.memfd_create("gnnplace meeting place")
    try:
        yield place
    finally:
        os.close(place)


def join_group(place: int, rank: int, count: int, timeout: timedelta) -> None:
    """Form a gloo group with the other processes that have a meeting place.

    Args:
        place: A descriptor, as `meeting_place` yields it.
        rank: Rank of this process.
        count: Number of processes.
        timeout: How long forming the group, and each of its operations, may take.
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
        source: Number of the sending worker.
        target: Number of the receiving worker.
        shape: Sizes of the tensor.
        stride: The strides that the tensor is expected to have, in elements.
        dtype: Element type of the tensor.
    """

    source: int
    target: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def capacity(self) -> int:
        """Return the elements of the buffer: enough for the expected strides or any dense ones."""
        return max(
            span(self.shape, self.stride),
            span(self.shape, contiguous_stride(self.shape)),
        )

    def find_strides(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return a tensor's strides in the buffer: its own if they fit, else contiguous ones."""
        if span(self.shape, tensor.stride()) <= self.capacity:
            return tensor.stride()
        return contiguous_stride(self.shape)


class Transport(ABC):
    """A carrier of messages. It is made before workers are forked, and opened in each of them."""

    @abstractmethod
    def open(self, worker: int, device: torch.device) -> None:
        """Set up this worker's side. Every worker calls this once, before anything else.

        Args:
            worker: Number of this worker.
            device: The device that it receives tensors on.
        """

    @abstractmethod
    def sender(self, message: int) -> Send:
        """Return the function `send(tensor, round)` of a message; its source calls this."""

    @abstractmethod
    def receiver(self, message: int) -> Receive:
        """Return the function `receive(round) -> tensor` of a message; its target calls this."""

    @abstractmethod
    def barrier(self, worker: int, meeting: int) -> None:
        """Wait until all workers are at `meeting`, a number that rises from call to call."""

    def bring_home(self, tensors: Iterable[tuple[int, torch.Tensor]]) -> None:  # noqa: B027
        """Send tensors of all workers to the host of worker 0. Every worker calls this.

        A transport of one host does nothing: its workers share the memory.

        Args:
            tensors: For each tensor the worker that has it, and the tensor itself in the memory
                that the workers and the parent of this host share.
        """

    @abstractmethod
    def held(self, worker: int) -> float:
        """Return the bytes of the buffers that a worker has for its messages."""

    def finish_round(self) -> None:  # noqa: B027 (most transports have nothing to do)
        """Wait until the tensors that this worker sent may be changed."""

    def close(self) -> None:  # noqa: B027
        """Finish this worker's side. Every worker calls this after the last round."""

    def dispose(self) -> None:  # noqa: B027
        """Clean up. The parent calls this when all workers have ended, normally or not."""


class MessageLayouts:
    """The strides and the shift of every message, which its sender publishes in the first round.

    Args:
        messages: All messages of the run.
    """

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages
        self.words = make_shared_words(len(messages) * ROW)

    def publish(self, message: int, tensor: torch.Tensor) -> tuple[int, ...]:
        """Publish a tensor's shift and its strides in the buffer, and return the strides."""
        strides = self._messages[message].find_strides(tensor)
        base = message * ROW
        for i, stride in enumerate(strides):
            self.words[base + i] = stride
        self.words[base + ROW - 1] = find_shift(tensor)
        return strides

    def read(self, message: int) -> tuple[int, ...]:
        """Return the published strides of a message."""
        base = message * ROW
        dimensions = len(self._messages[message].shape)
        return tuple(self.words[base + i] for i in range(dimensions))

    def shift(self, message: int) -> int:
        """Return the published shift of a message, in elements."""
        return self.words[message * ROW + ROW - 1]


def find_shift(tensor: torch.Tensor) -> int:
    """Return the elements between the start of a tensor's first cache line and the tensor."""
    return tensor.data_ptr() % LINE // tensor.element_size()


def overlaps(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether elements of a strided tensor may share memory, as if expanded or unfolded.

    From the smallest stride on, every dimension must step over all that those before it reach.
    """
    reach = 0
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False


def view_flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that a strided tensor spans, as a vector that shares it."""
    size = span(tuple(tensor.shape), tensor.stride())
    return tensor.as_strided((size,), (1,), tensor.storage_offset())


def copying(receive: Receive) -> Receive:
    """Return a `Receive` that copies what another one returns into memory that torch allocates.

    The copy has the same strides. A tensor with overlapping elements is returned as it is.
    """

    def receive_copy(turn: int) -> torch.Tensor:
        tensor = receive(turn)
        if overlaps(tuple(tensor.shape), tensor.stride()):
            return tensor
        copied = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        return copied.copy_(tensor)

    return receive_copy


class SharedMemoryTransport(Transport):
    """A transport by shared memory. The sender copies into a buffer, the receiver reads it there.

    Each message has a flag, the number of the last round whose tensor is in the buffer.

    Args:
        messages: All messages of the run.
        board: The board on which workers wait and say what they wait for.
    """

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        self._messages = messages
        self._board = board
        self._layouts = MessageLayouts(messages)
        self._flags = make_shared_words(len(messages) * STRIDE)
        self._arena = Arena()
        # A buffer has one more cache line, so that a tensor may begin anywhere in the first one.
        self._offsets = [
            self._arena.reserve(m.capacity * m.dtype.itemsize + LINE) for m in messages
        ]
        # The arena is allocated here, before the fork, so that all workers share it.
        for i in range(len(messages)):
            self._view_buffer(
                i, messages[i].shape, contiguous_stride(messages[i].shape)
            )
        self._worker = -1
        self._device = torch.device("cpu")

    def _view_buffer(
        self,
        message: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        shift: int = 0,
    ) -> torch.Tensor:
        """Return a message's buffer as a tensor that begins `shift` elements after its start."""
        dtype = self._messages[message].dtype
        offset = self._offsets[message] + shift * dtype.itemsize
        return self._arena.view(offset, shape, stride, dtype)

    def open(self, worker: int, device: torch.device) -> None:
        """Note the worker's number and device."""
        self._worker = worker
        self._device = device

    def barrier(self, worker: int, meeting: int) -> None:
        """Wait at the board."""
        self._board.barrier(worker, meeting)

    def held(self, worker: int) -> float:
        """Return the bytes of the buffers of the messages that the worker receives."""
        return float(
            sum(
                m.capacity * m.dtype.itemsize
                for m in self._messages
                if m.target == worker
            )
        )

    def sender(self, message: int) -> Send:
        """Return a function that copies a tensor into the message's buffer and sets its flag."""
        flags = self._flags
        slot = message * STRIDE
        copy: Callable[[torch.Tensor], object] | None = None

        def send(tensor: torch.Tensor, turn: int) -> None:
            nonlocal copy
            if copy is None:
                copy = self._make_copy(message, tensor)
            copy(tensor)
            flags[slot] = turn

        return send

    def _make_copy(
        self, message: int, tensor: torch.Tensor
    ) -> Callable[[torch.Tensor], object]:
        """Publish the layout of the first tensor, and return what copies such tensors."""
        shape = self._messages[message].shape
        stride = self._layouts.publish(message, tensor)
        shift = self._layouts.shift(message)
        # Torch copies into no tensor whose elements overlap, but into the memory below it.
        if overlaps(shape, stride):
            size = span(shape, stride)
            vector = self._view_buffer(message, (size,), (1,), shift)
            return lambda tensor: vector.copy_(view_flat(tensor))
        return self._view_buffer(message, shape, stride, shift).copy_

    def receiver(self, message: int) -> Receive:
        """Return a function that waits for the message's flag and returns its tensor.

        On the CPU that is the buffer itself, elsewhere a copy on the worker's device.
        """
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
                received = self._view_buffer(
                    message, shape, stride, self._layouts.shift(message)
                )
            if received.device == self._device:
                return received
            return received.to(self._device)

        return receive


class GlooMessages(Transport):
    """A transport by gloo's point-to-point messages, without the forming of the process group.

    The tag of message m is 2 m. In the first round a header with its strides and shift goes before
    it, with the tag 2 m + 1.

    Args:
        messages: All messages of the run.
        board: The board on which workers say what they wait for; it knows how many there are.
    """

    elsewhere: Container[int] = ()
    """Messages that a subclass carries in another way."""

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        self._messages = messages
        self._board = board
        self._pending: list[dist.Work] = []
        self._worker = -1
        self._device = torch.device("cpu")

    def held(self, worker: int) -> float:
        """Return the bytes of a worker's buffers: one at each end of a message."""
        return float(
            sum(
                m.capacity * m.dtype.itemsize
                for i, m in enumerate(self._messages)
                if i not in self.elsewhere and worker in (m.source, m.target)
            )
        )

    def sender(self, message: int) -> Send:
        """Return a function that copies a tensor and starts to send the copy."""
        description = self._messages[message]
        staged: torch.Tensor | None = None
        stride: tuple[int, ...] = ()

        def send(tensor: torch.Tensor, turn: int) -> None:
            nonlocal staged, stride
            if staged is None:
                stride = description.find_strides(tensor)
                size = span(description.shape, stride)
                staged = torch.empty(size, dtype=description.dtype)
                header = torch.zeros(ROW, dtype=torch.int64)
                header[: len(stride)] = torch.tensor(stride, dtype=torch.int64)
                header[-1] = find_shift(tensor)
                self._post(header, description.target, 2 * message + 1)
            stage(staged, tensor, stride)
            self._post(staged.view(torch.uint8), description.target, 2 * message)

        return send

    def _post(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        """Start to send a tensor, which `finish_round` waits for."""
        with self.reaching(target):
            work = dist.isend(tensor, target, tag=tag)
        if work is not None:
            self._pending.append(work)

    def receiver(self, message: int) -> Receive:
        """Return a function that waits for the message and returns its buffer, with its strides."""
        description = self._messages[message]
        state = self._worker * STRIDE + WAITING
        buffer: torch.Tensor | None = None
        received: torch.Tensor | None = None

        def receive(turn: int) -> torch.Tensor:
            nonlocal buffer, received
            self._board.words[state] = message + 1
            if buffer is None or received is None:
                header = torch.zeros(ROW, dtype=torch.int64)
                with self.reaching(description.source):
                    dist.recv(header, description.source, tag=2 * message + 1)
                stride = tuple(header[: len(description.shape)].tolist())
                size = span(description.shape, stride)
                # One more cache line leaves room for the shift.
                shift = int(header[-1])
                dtype = description.dtype
                vector = torch.empty(size + LINE // dtype.itemsize, dtype=dtype)
                buffer = vector[shift : shift + size].view(torch.uint8)
                received = vector.as_strided(description.shape, stride, shift)
            with self.reaching(description.source):
                dist.recv(buffer, description.source, tag=2 * message)
            self._board.words[state] = 0
            if self._device.type == "cpu":
                return received
            return received.to(self._device)

        return receive

    def finish_round(self) -> None:
        """Wait until all sends of this worker have completed."""
        with self.reaching():
            for work in self._pending:
                work.wait()
        self._pending.clear()

    @contextmanager
    def reaching(self, worker: int | None = None) -> Iterator[None]:
        """Mark code that waits for another worker, or for any of them.

        A subclass may turn errors inside into ones that name the worker.

        Args:
            worker: Number of the worker that is waited for; None: any.
        """
        yield


class GlooTransport(GlooMessages):
    """A transport by gloo between forked workers of one host.

    Args are those of `GlooMessages`.
    """

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        super().__init__(messages, board)
        self._meeting = os.memfd_create("gnnplace gloo store")

    def open(self, worker: int, device: torch.device) -> None:
        """Form the process group with the other workers, by a file store in memory."""
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


def stage(vector: torch.Tensor, tensor: torch.Tensor, stride: tuple[int, ...]) -> None:
    """Copy a tensor into a vector so that it has the strides `stride` there."""
    shape = tuple(tensor.shape)
    if overlaps(shape, stride):
        vector.copy_(view_flat(tensor))
    else:
        vector.as_strided(shape, stride).copy_(tensor)


TRANSPORTS = {"shm": SharedMemoryTransport, "gloo": GlooTransport}


def make_transport(name: str, messages: tuple[Message, ...], board: Board) -> Transport:
    """Return a transport. Call this before the workers are forked.

    Args:
        name: One of `TRANSPORTS`.
        messages: All messages of the run.
        board: The board of the workers.

    Raises:
        UnsupportedError: If the transport is shared memory, and cores of this machine may see
            stores out of order.
    """
    if name == "shm" and not has_ordered_stores():
        raise UnsupportedError(
            "transport 'shm': flags in shared memory need a machine that shows stores in order "
            "(x86); use transport='gloo'"
        )
    return TRANSPORTS[name](messages, board)
