"""What an op computes, as seconds on a kind of device: kernels, repetitions and branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gnnplace.problem.cluster.gpus import get_figures
from gnnplace.problem.formats.attributed import roofline


class Work(Protocol):
    """Something that takes seconds on a device."""

    def seconds(self, kind: str) -> float:
        """Return the seconds on a kind of device."""
        ...


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
        flops: Floating-point operations.
        bytes: Read and written.
    """

    flops: float = 0.0
    bytes: float = 0.0

    def seconds(self, kind: str) -> float:
        """Return what the kind's roofline says."""
        return roofline(get_figures(kind), self.flops, self.bytes)


@dataclass(frozen=True)
class Repetition:
    """Works one after the other, `count` times over."""

    count: int
    works: Sequence[Work]

    def seconds(self, kind: str) -> float:
        """Return the sum of all passes."""
        return self.count * sum(work.seconds(kind) for work in self.works)


@dataclass(frozen=True)
class Dearest:
    """Branches of which one runs: the one that takes longest counts."""

    branches: Sequence[Work]

    def seconds(self, kind: str) -> float:
        """Return the seconds of the longest branch."""
        return max((branch.seconds(kind) for branch in self.branches), default=0.0)
