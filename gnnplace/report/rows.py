"""``Row``: one placer's line in the comparison, for terminals, pages and JSON alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnplace.errors import GnnplaceError
from gnnplace.placers import Result
from gnnplace.units import seconds_text

if TYPE_CHECKING:
    from gnnplace.run.checking import Verification
    from gnnplace.run.placed import Execution


@dataclass(frozen=True)
class Row:
    """One placer's result on one problem, in seconds and bytes.

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

    @property
    def fullest(self) -> float | None:
        """Return the bytes of the fullest device, or None if they are unknown."""
        return max(self.peak_memory, default=None)

    @property
    def remarks(self) -> str:
        """Return why there is no placement, or other remarks on it."""
        return self.error or "; ".join(filter(None, (self.note, self.verified)))


def make_row(
    result: Result | tuple[str, GnnplaceError],
    execution: Execution | None = None,
    verification: Verification | None = None,
) -> Row:
    """Make the row of a placer's result, with its run if there was one."""
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


def with_best_bound(rows: Sequence[Row]) -> list[Row]:
    """Give all rows the largest of their lower bounds: what one placer proves holds for all."""
    bounds = [row.lower_bound for row in rows if row.lower_bound is not None]
    if not bounds or max(bounds) <= 0:
        return list(rows)
    bound = max(bounds)
    return [
        replace(
            row, lower_bound=bound, gap=max(0.0, (row.predicted or bound) / bound - 1.0)
        )
        if row.predicted is not None
        else row
        for row in rows
    ]


def _verdict(verification: Verification | None) -> str:
    if verification is None:
        return ""
    if verification.bitwise:
        return "bitwise equal"
    if verification.passed:
        return "within tolerance"
    return "DIFFERS"


WORDS = {
    "emulated": "emulated: run on a virtual clock, as if every device had a core",
    "measured": "measured: run here, wall clock",
    "virtual": "virtual: the same run by the workers' own processor time, undisturbed by others",
    "p": "p: a speed-up of predicted times, since nothing was run",
}


def legend(rows: Sequence[Row]) -> str:
    """Explain the words of a comparison's columns that are in it."""
    meanings = [
        "predicted: simulated from op and link times",
        "gap: above the lower bound",
    ]
    mode = next((row.mode for row in rows if row.executed), None)
    meanings += (
        [WORDS["emulated" if mode == "emulated" else "measured"]] if mode else []
    )
    meanings += [WORDS["virtual"]] if mode == "measured" else []
    meanings += (
        [WORDS["p"]] if any(row.predicted and not row.executed for row in rows) else []
    )
    return "; ".join(meanings)


def eager_line(times: Mapping[int, float]) -> str:
    """Format eager PyTorch's step times by number of cores in one line."""
    shown = [
        f"{seconds_text(s)} on {n} core{'s' if n > 1 else ''}" for n, s in times.items()
    ]
    return f"eager PyTorch, measured beside: {', '.join(shown)}"


def summary_lines(rows: Sequence[Row], *, may_split: bool = True) -> list[str]:
    """Lower bound, and what the best placement leaves open.

    Args:
        rows: the comparison.
        may_split: more devices than one could be used.
    """
    placed = [row for row in rows if row.predicted is not None]
    if not placed:
        return ["no placer found a feasible placement"]
    best = min(placed, key=lambda row: row.predicted or 0.0)
    lines = [
        legend(placed),
        f"lower bound {seconds_text(best.lower_bound)} (predicted, from the same op times): no "
        f"placement can be below it; the best here, {best.placer}, is within {best.gap or 0.0:.1%}",
    ]
    single = next((row for row in placed if row.placer == "single"), None)
    if single is not None and may_split:
        single_seconds = single.predicted
    else:
        single_seconds = None
    if single_seconds and best.predicted and best.predicted > 0.97 * single_seconds:
        lines.append(
            "no placer that was compared gains 3 % over one device (predicted)"
        )
    return lines
