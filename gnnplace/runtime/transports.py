"""The transports by name."""

from __future__ import annotations

from gnnplace.errors import UnsupportedError
from gnnplace.runtime.board import Board, ordered_stores
from gnnplace.runtime.gloo import GlooTransport
from gnnplace.runtime.transport import Message, SharedMemoryTransport, Transport

TRANSPORTS = {"shm": SharedMemoryTransport, "gloo": GlooTransport}


def make_transport(name: str, messages: tuple[Message, ...], board: Board) -> Transport:
    """The transport called `name` for `messages`, before the workers are forked.

    Raises:
        UnsupportedError: shared memory on a machine whose cores see stores out of order.
    """
    if name == "shm" and not ordered_stores():
        raise UnsupportedError(
            "transport 'shm': flags in shared memory need a machine that shows stores in order "
            "(x86); use transport='gloo'"
        )
    return TRANSPORTS[name](messages, board)
