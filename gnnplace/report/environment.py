"""Versions, this machine and the caches, for a report of a fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gnnplace.costs.profiling.cache import cache_folder
from gnnplace.measurements import default_store
from gnnplace.problem.cluster.caches import Cache
from gnnplace.problem.cluster.machine import machine, versions

KERNELS = "compiled kernels"
PACKAGES = (
    "gnnplace",
    "torch",
    "numpy",
    "numba",
    "lightning",
    "torch-geometric",
    "transformers",
    "ortools",
)


def environment() -> dict[str, dict[str, Any]]:
    """Versions, this machine, and caches with their sizes and ages, as plain data."""
    return {
        "versions": versions(PACKAGES),
        "machine": machine(),
        "caches": {name: str(cache) for name, cache in caches().items()},
    }


def caches() -> dict[str, Cache]:
    """Where measurements and compiled kernels are kept, by what they are."""
    compiled = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1]
    return {
        "op and link times": Cache(cache_folder(), ("*.json",)),
        "store of measured steps": Cache(Path(default_store())),
        KERNELS: Cache(Path(compiled), ("*.nbi", "*.nbc")),
    }
