"""A cache on disk as one reads about it: where, how many files, how large, how old."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


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
        found = list(self._stats())
        if not found:
            return f"{self.path} (nothing)"
        times, now = [stat.st_mtime for stat in found], time.time()
        size = sum(stat.st_size for stat in found)
        many = "1 file" if len(found) == 1 else f"{len(found)} files"
        ages = f"written {age(now - max(times))} ago"
        if len(found) > 1:
            ages = f"the newest {ages}, the oldest {age(now - min(times))} ago"
        return f"{self.path} ({many}, {size} bytes, {ages})"

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


def age(seconds: float) -> str:
    """A time as a number of the largest unit that it has at least two of."""
    for unit, name in UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return "a moment"
