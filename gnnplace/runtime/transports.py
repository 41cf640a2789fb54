"""The transports by name."""

from __future__ import annotations

from gnnplace.runtime.transport import SharedMemoryTransport

TRANSPORTS = {"shm": SharedMemoryTransport}
