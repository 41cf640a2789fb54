"""What this machine is: processor, cores, memory, system; and the versions that times depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

INFO = Path("/proc/cpuinfo")
PACKAGES = ("gnnplace", "torch", "numpy", "numba")


def processor_name() -> str:
    """Return the kernel's name of the processor (proc(5)); else Python's, or "unknown"."""
    try:
        lines = INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    if names:
        return names[0]
    return platform.processor() or platform.machine() or "unknown"


@cache
def machine() -> dict[str, Any]:
    """Host name, system, processor, cores that this process may use, bytes of memory."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of packages; ``none`` for one that is not installed."""
    return {"python": platform.python_version()} | {
        name: _version(name) for name in packages
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
