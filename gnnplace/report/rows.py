"""``Row``: one placer's line in the comparison, for terminals, pages and JSON alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnplace.errors import GnnplaceError
from gnnplace.placers import Result

if TYPE_CHECKING:
    from gnnplace.execution.result import Execution
    from gnnplace.execution.verification import Verification


@dataclass(frozen=True)
class Row:
    """What is known of one placer on one problem; seconds and bytes.

    Attributes:
        executed: step time of a run, None if it was not run.
        virtual: step time of that run by the virtual clock, which other processes do not disturb.
        mode: ``measured`` or ``emulated`` if it was run.
        verified: whether the run computed what one device computes, and how exactly.
        error: why there is no placement.
    """

    placer: str
    predicted: float | None = None
    executed: float | None = None
    virtual: float | None = None
    mode: str | None = None
    peak_memory: tuple[float, ...] = ()
    lower_bound: float | None = None
    gap: float | None = None
    seconds: float | None = None
    note: str = ""
    verified: str = ""
    error: str = ""

    def data(self) -> dict[str, Any]:
        """The row as plain data, without what is not known."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in self.__dict__.items()
            if value not in (None, "", ())
        }


def make_row(
    result: Result | tuple[str, GnnplaceError],
    execution: Execution | None = None,
    verification: Verification | None = None,
) -> Row:
    """The row of a placer's result, with its run if there was one."""
    if isinstance(result, tuple):
        return Row(result[0], error=str(result[1]))
    return Row(
        placer=result.placer,
        predicted=result.step_time,
        executed=execution.step_time if execution else None,
        virtual=execution.virtual_step_time if execution else None,
        mode=execution.mode if execution else None,
        peak_memory=tuple(result.peak_memory.tolist()),
        lower_bound=result.lower_bound,
        gap=result.gap,
        seconds=result.seconds,
        note=result.note,
        verified=_verdict(verification),
    )


def _verdict(verification: Verification | None) -> str:
    if verification is None:
        return ""
    if verification.bitwise:
        return "bitwise equal"
    return "within tolerance" if verification.passed else "DIFFERS"
