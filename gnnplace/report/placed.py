"""What ``place`` says of its answer: devices used and idle, one device beside, what to try next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gnnplace.placers import Result
from gnnplace.report.explanation.advice import ONE_DEVICE, Advice
from gnnplace.report.units import seconds_text

CLOSE = 0.02  # of the bound: nothing is left to gain
OPTIMAL = 1e-9


def advice_lines(advice: Advice, result: Result) -> Iterator[str]:
    """Lines about a result."""
    count = len(advice.used) + sum(len(idle.devices) for idle in advice.idle)
    yield (
        f"devices used: {len(advice.used)} of {count} ({', '.join(advice.used)}); "
        f"{_beside_one(advice)}"
    )
    for idle in advice.idle:
        yield f"idle: {_names(idle.devices)}: {idle.reason}"
    yield f"next: {_next(advice, result)}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _beside_one(advice: Advice) -> str:
    if advice.single is None or advice.speedup is None:
        return "no one device can have all of it"
    return f"{advice.speedup:.2f}x over one device ({seconds_text(advice.single)}), predicted"


def _next(advice: Advice, result: Result) -> str:
    """The one thing that is most worth trying."""
    if advice.tries:
        best = advice.tries[0]
        return (
            f"{best.option}: about {best.speedup:.1f}x ({seconds_text(best.step_time)}, simulated "
            "without profiling; --microbatches auto profiles each number)"
        )
    if result.gap <= OPTIMAL:
        return "nothing: no placement of this problem is shorter (predicted)"
    if advice.alone_is_best and len(advice.used) + len(advice.idle) > 1:
        return f"{ONE_DEVICE} (simulated)"
    if result.gap <= CLOSE:
        return f"nothing: no placement of this problem is more than {result.gap:.1%} shorter"
    return (
        f"--budget {_more_budget(result)}: up to {result.gap:.0%} is open between this and the "
        "lower bound; explain says what bounds it"
    )


def _more_budget(result: Result) -> str:
    return f"{max(10.0, 4 * result.seconds):.0f}"


def advice_data(advice: Advice) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "used": list(advice.used),
        "single": advice.single,
        "speedup": advice.speedup,
        "idle": [{"devices": list(idle.devices), "reason": idle.reason} for idle in advice.idle],
        "tries": [dict(one.__dict__) for one in advice.tries],
    }
