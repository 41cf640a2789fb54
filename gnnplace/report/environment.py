"""Versions, this machine and the caches (where, how large, how old), for a report of a fault."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import stat_result
from pathlib import Path
from typing import Any

from gnnplace.files import cache_folder
from gnnplace.measurements import store_url
from gnnplace.problem import machine, versions
from gnnplace.units import age_text

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


@dataclass(frozen=True)
class Cache:
    """A file, or files below a folder.

    Attributes:
        path: the path of the file or the folder.
        patterns: the patterns of the names of files below the folder.
    """

    path: Path
    patterns: tuple[str, ...] = ("*",)

    def __str__(self) -> str:
        stats = list(self._stats())
        if not stats:
            return f"{self.path} (nothing)"
        times = [stat.st_mtime for stat in stats]
        current = time.time()
        size = sum(stat.st_size for stat in stats)
        if len(stats) == 1:
            count = "1 file"
        else:
            count = f"{len(stats)} files"
        ages = f"written {age_text(current - max(times))} ago"
        if len(stats) > 1:
            ages = f"the newest {ages}, the oldest {age_text(current - min(times))} ago"
        return f"{self.path} ({count}, {size} bytes, {ages})"

    def _stats(self) -> Iterator[stat_result]:
        if self.path.is_file():
            yield self.path.stat()
            return
        for pattern in self.patterns:
            for path in self.path.rglob(pattern):
                try:
                    if path.is_file():
                        yield path.stat()
                except OSError:  # gone meanwhile
                    continue


def describe_environment() -> dict[str, dict[str, Any]]:
    """Return versions, this machine, and caches with sizes and ages, as plain data."""
    return {
        "versions": versions(PACKAGES),
        "machine": machine(),
        "caches": caches(),
    }


def caches() -> dict[str, str]:
    """Return where measurements and compiled kernels are kept, how many and how old, by name."""
    compiled = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1]
    store = store_url()
    return {
        "op and link times": str(Cache(cache_folder(), ("*.json",))),
        "store of measured steps": "none" if store is None else str(Cache(Path(store))),
        KERNELS: str(Cache(Path(compiled), ("*.nbi", "*.nbc"))),
    }
