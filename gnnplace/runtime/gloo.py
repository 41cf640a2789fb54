"""Messages through `torch.distributed` with gloo: between workers of one host here, over TCP.

The sender copies a tensor (the program may change it later) and hands the copy to gloo's own
thread; the round ends when all of its sends have completed.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from gnnplace.runtime.board import STRIDE, WAITING, Board
from gnnplace.runtime.meeting import join_group
from gnnplace.runtime.memory import LINE, span
from gnnplace.runtime.transport import Layouts, Message, Receive, Send, Transport, flat, overlaps

SETUP_TIMEOUT = timedelta(seconds=60)
"""For the first meeting; later waits are the supervisor's to end."""


class GlooTransport(Transport):
    """Point-to-point messages, tagged by their number.

    Args:
        messages: All messages of the run.
        board: Says how many workers meet, and what each waits for.
    """

    rereadable = False
    sender_copies = False

    def __init__(self, messages: tuple[Message, ...], board: Board) -> None:
        self._messages = messages
        self._board = board
        self._layouts = Layouts(messages)
        self._meeting = os.memfd_create("gnnplace gloo store")
        self._pending: list[dist.Work] = []
        self._worker = -1
        self._device = torch.device("cpu")

    def open(self, worker: int, device: torch.device) -> None:
        """Meets the other workers through a file store, in memory that has no name."""
        self._worker, self._device = worker, device
        join_group(self._meeting, worker, self._board.num_workers, SETUP_TIMEOUT)

    def barrier(self, worker: int, meeting: int) -> None:
        """Waits at the board."""
        self._board.barrier(worker, meeting)

    def held(self, worker: int) -> float:
        """A buffer at both ends of each message."""
        mine = [m for m in self._messages if worker in (m.source, m.target)]
        return float(sum(m.capacity * m.dtype.itemsize for m in mine))

    def sender(self, message: int) -> Send:
        """A function that copies the tensor and starts sending the copy."""
        form = self._messages[message]
        staged: torch.Tensor | None = None

        def send(tensor: torch.Tensor, turn: int) -> None:
            nonlocal staged
            if staged is None:
                stride = self._layouts.publish(message, tensor)
                staged = torch.empty(span(form.shape, stride), dtype=form.dtype)
            stage(staged, tensor, self._layouts.read(message))
            work = dist.isend(staged.view(torch.uint8), form.target, tag=message)
            if work is not None:
                self._pending.append(work)

        return send

    def receiver(self, message: int) -> Receive:
        """A function that waits for the message and returns its buffer, with its strides."""
        form = self._messages[message]
        room = torch.empty(form.capacity + LINE // form.dtype.itemsize, dtype=form.dtype)
        state = self._worker * STRIDE + WAITING

        def receive(turn: int) -> torch.Tensor:
            self._board.words[state] = message + 1
            size, at = self._arriving(message), self._layouts.shift(message)
            dist.recv(room[at : at + size].view(torch.uint8), form.source, tag=message)
            self._board.words[state] = 0
            tensor = room.as_strided(form.shape, self._layouts.read(message), at)
            return tensor if self._device.type == "cpu" else tensor.to(self._device)

        return receive

    def _arriving(self, message: int) -> int:
        """Elements on their way; waits in the first round until the sender has said so."""
        self._board.wait(self._layouts.words, self._layouts.ready(message), 1)
        return span(self._messages[message].shape, self._layouts.read(message))

    def finish_round(self) -> None:
        """Waits for the sends of this worker."""
        for work in self._pending:
            work.wait()
        self._pending.clear()

    def close(self) -> None:
        """Leaves the process group."""
        dist.destroy_process_group()

    def dispose(self) -> None:
        """Closes the file store."""
        os.close(self._meeting)


def stage(room: torch.Tensor, tensor: torch.Tensor, stride: tuple[int, ...]) -> None:
    """Copies a tensor into a vector so that it lies there with `stride`."""
    shape = tuple(tensor.shape)
    if overlaps(shape, stride):
        room.copy_(flat(tensor))
    else:
        room.as_strided(shape, stride).copy_(tensor)
