"""The interface of an objective that measures placements, for optimisers and for training.

Training depends only on this interface; `run.measuring` implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnnplace.problem import Placement, Problem


@dataclass(frozen=True)
class Measured:
    """The measurement of one placement.

    Attributes:
        seconds: The seconds of a step; None if it failed.
        error: Why it failed; empty where it did not.
        stored: Whether it was known already and not run.
        disturbed: Whether other programs had the cores in all of its steps, so that `seconds` are
            the workers' own (the virtual clock) and not the wall clock's.
        ops: Median seconds that each op's worker computed for it, by the op's name; empty if that
            is not known.
    """

    seconds: float | None
    error: str = ""
    stored: bool = False
    disturbed: bool = False
    ops: Mapping[str, float] = field(default_factory=dict, repr=False)


class StepObjective(ABC):
    """Measures placements of one problem; nothing happens before it is asked."""

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """Return the problem as it was profiled. It is made at the first call."""

    @abstractmethod
    def measure(self, placements: Sequence[Placement]) -> list[Measured]:
        """Measure placements, as many at a time as fit on the machine, and return them in order.

        A failure is a result. A placement that was measured before is not measured again.
        """

    @abstractmethod
    def keep(self, path: str, placement: Placement) -> None:
        """Write a placement as a file that ``execute`` takes."""
