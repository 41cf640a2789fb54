"""Versions, this machine and the caches (where, how large, how old), for a report of a fault."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from os import stat_result
from pathlib import Path
from typing import Any

from gnnplace.files import cache_folder
from gnnplace.measurements import store_url
from gnnplace.problem import describe_machine, list_versions
from gnnplace.report.answer import Answer, Column, Table
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


class Environment(dict[str, dict[str, Any]]):
    """Versions, this machine and caches, as plain data by part and name."""


def collect_environment() -> Environment:
    """Return versions, this machine, and caches with sizes and ages, as plain data."""
    return Environment(
        versions=list_versions(PACKAGES), machine=describe_machine(), caches=caches()
    )


def describe_environment(environment: Environment) -> Answer:
    """Describe versions, this machine and caches."""
    rows = []
    for part, values in environment.items():
        for name, value in values.items():
            rows.append((f"{part}: {name}", str(value)))
    columns: list[Column[tuple[str, str]]] = [
        Column("what", itemgetter(0), words=True),
        Column("value", itemgetter(1), words=True),
    ]
    return Answer("Environment", [Table(columns, rows)], environment)


def caches() -> dict[str, str]:
    """Return where measurements and compiled kernels are kept, how many and how old, by name."""
    compiled = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1]
    store = store_url()
    return {
        "op and link times": str(Cache(cache_folder(), ("*.json",))),
        "store of measured steps": "none" if store is None else str(Cache(Path(store))),
        KERNELS: str(Cache(Path(compiled), ("*.nbi", "*.nbc"))),
    }
