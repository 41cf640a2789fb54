"""Cells that place: a placer searches, and the simulator predicts the step time that counts.

The clock of a cell contains everything that a placer computes, so every cell begins with a problem
without cached properties.
"""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.bench.rows import STEPS
from gnnplace.bench.suite import Cell, ProblemEntry
from gnnplace.errors import UnsupportedError
from gnnplace.placers import Result, parse_name
from gnnplace.placing import place
from gnnplace.problem import Problem, compute_digest, write_placement, write_problem
from gnnplace.simulation import count_budget_steps

Data = dict[str, Any]
TIMED = ("exact",)  # placers whose solver has a limit in seconds and none in steps


@dataclass(frozen=True)
class PlacedProblem:
    """A problem in memory that placers place."""

    problem: Problem

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that describes the problem."""
        return {
            "num_ops": self.problem.num_ops,
            "num_devices": self.problem.num_devices,
            "microbatches": self.problem.microbatches,
            "digest": compute_digest(self.problem),
            "estimated": float(np.mean(self.problem.estimated)),
            "clock": "predicted",
            **entry.labels,
        }

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Place the problem and return the outcome; see ``kinds.Loaded``."""
        return self.searched(cell, keep)[1]

    def searched(self, cell: Cell, keep: str) -> tuple[Result, Data]:
        """Place the problem. Return the result, and the part of a row that describes it."""
        begin = time.perf_counter()
        problem = make_fresh_problem(self.problem)
        with count_budget_steps() if cell.unit == STEPS else nullcontext():
            check_unit(cell)
            result = place(
                problem, placer=cell.placer, budget=cell.budget, seed=cell.seed
            )
        outcome = _describe_result(result) | {"seconds": time.perf_counter() - begin}
        if keep:
            outcome |= _write_files(Path(keep), cell, self.problem, result)
        return result, outcome


def check_unit(cell: Cell) -> None:
    """Refuse a budget in simulated steps for a placer whose solver counts seconds.

    Raises:
        UnsupportedError: The placer is one of ``TIMED``.
    """
    name = parse_name(cell.placer)[0]
    if cell.unit == STEPS and name in TIMED:
        raise UnsupportedError(
            f"placer {name!r}: its solver is limited by seconds, not by steps; give budgets"
        )


def make_fresh_problem(problem: Problem) -> Problem:
    """Return a copy of a problem without the cached properties that earlier placers computed."""
    return replace(
        problem, graph=replace(problem.graph), cluster=replace(problem.cluster)
    )


def _describe_result(result: Result) -> Data:
    """Return the part of a row that describes a placer's result."""
    return {
        "step_time": result.step_time,
        "lower_bound": result.lower_bound,
        "feasible": True,
        "peak_memory": result.peak_memory.tolist(),
        "note": result.note,
    }


def _write_files(folder: Path, cell: Cell, problem: Problem, result: Result) -> Data:
    """Write the files that ``gnnplace simulate`` takes, and return the entry of a row.

    The problem is written once for all of its placements.
    """
    folder.mkdir(parents=True, exist_ok=True)
    problem_digest = compute_digest(problem).replace(":", "-")
    path = folder / f"{problem_digest}.json"
    if not path.exists():
        write_problem(path, problem)
    unit = "steps" if cell.unit == STEPS else ""
    placer = re.sub(r"[^\w.-]+", "-", cell.placer)  # a placer may be a class's path
    name = f"{problem_digest}-{placer}-{cell.budget:g}{unit}-{cell.seed}.json"
    write_placement(folder / name, result.placement, problem)
    return {"kept": name}
