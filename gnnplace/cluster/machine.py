"""What the processor of this machine is called."""

from __future__ import annotations

import platform
from pathlib import Path

INFO = Path("/proc/cpuinfo")


def processor_name(info: Path = INFO) -> str:
    """The kernel's name for it (proc(5)); Python's or "unknown" where there is none.

    Args:
        info: Where the kernel tells it.
    """
    try:
        lines = info.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown"
