"""The most memory that a CPU worker takes beyond what it was forked with.

Linux keeps the greatest resident set of a process (`VmHWM` in `/proc/self/status`) and forgets it
when "5" is written to `/proc/self/clear_refs` (proc(5)). A worker resets it before it makes its
tensors; what it has grown by at the end is its peak. That is more than the tensors alive at a time:
holes in the heap, libraries' work space, buffers of messages; what the parent had freed and the
worker takes up again is not seen.
"""

from __future__ import annotations

from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
KIB = 1024.0


class PeakMemory:
    """Peak of this process from now on.

    Args:
        status: Where the kernel tells it.
        clear: Where it is told to forget it.
    """

    def __init__(self, status: Path = STATUS, clear: Path = CLEAR) -> None:
        self._status, self._before = status, None
        try:
            clear.write_text(FORGET_PEAK, encoding="ascii")
        except OSError:
            return
        self._before = self._read("VmRSS")

    def bytes(self) -> float | None:
        """Bytes that the resident set has grown by at most; None where the kernel does not say."""
        peak = self._read("VmHWM")
        if self._before is None or peak is None:
            return None
        return max(peak - self._before, 0.0)

    def _read(self, key: str) -> float | None:
        try:
            lines = self._status.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        found = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
        return KIB * float(found[0]) if found else None
