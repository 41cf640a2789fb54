"""Rows as runs write them, for tests of what reads them."""

from __future__ import annotations

from typing import Any


def row(
    problem: str, placer: str, step_time: float | None, **more: Any
) -> dict[str, Any]:
    """A cell's row; no step time: nothing feasible was found."""
    plain = {"budget": 0.0, "seed": 0, "digest": "1:d", "commit": "c"}
    plain |= {"seconds": 0.1, "suite": "s@1"}
    told = {"problem": problem, "placer": placer, "step_time": step_time}
    return {**plain, **told, "feasible": step_time is not None, **more}
