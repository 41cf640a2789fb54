"""Where a measurement was made: the machine and the versions that times depend on."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gnnplace.cluster.machine import processor_name

PACKAGES = ("gnnplace", "torch", "numpy", "numba")


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


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that times depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
