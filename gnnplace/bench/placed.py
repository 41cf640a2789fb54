"""Cells that place: a placer searches, and its step time is what is predicted."""

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
from gnnplace.problem import Problem, digest, write_placement, write_problem
from gnnplace.simulation import count_budget_steps

Data = dict[str, Any]
TIMED = ("exact",)  # placers whose solver looks at a clock of its own


@dataclass(frozen=True)
class PlacedProblem:
    """A problem in memory that placers place."""

    problem: Problem

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that tells of the problem."""
        return {
            "num_ops": self.problem.num_ops,
            "num_devices": self.problem.num_devices,
            "microbatches": self.problem.microbatches,
            "digest": digest(self.problem),
            "estimated": float(np.mean(self.problem.estimated)),
            "clock": "predicted",
            **entry.labels,
        }

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Return the outcome of the placer; see ``kinds.Loaded``."""
        return self.searched(cell, keep)[1]

    def searched(self, cell: Cell, keep: str) -> tuple[Result, Data]:
        """Return a placer's result, and what a row says of it."""
        begin = time.perf_counter()
        problem = anew(self.problem)
        with count_budget_steps() if cell.unit == STEPS else nullcontext():
            check_unit(cell)
            result = place(
                problem, placer=cell.placer, budget=cell.budget, seed=cell.seed
            )
        outcome = _placed(result) | {"seconds": time.perf_counter() - begin}
        if keep:
            outcome |= _kept(Path(keep), cell, self.problem, result)
        return result, outcome


def check_unit(cell: Cell) -> None:
    """Refuse a budget in simulated steps for a placer that counts seconds of its own.

    Raises:
        UnsupportedError: The placer is one of ``TIMED``.
    """
    name = parse_name(cell.placer)[0]
    if cell.unit == STEPS and name in TIMED:
        raise UnsupportedError(
            f"placer {name!r}: its solver is limited by seconds, not by steps"
        )


def anew(problem: Problem) -> Problem:
    """Return the same problem without what earlier placers have derived from it and left there."""
    return replace(
        problem, graph=replace(problem.graph), cluster=replace(problem.cluster)
    )


def _placed(result: Result) -> Data:
    return {
        "step_time": result.step_time,
        "lower_bound": result.lower_bound,
        "feasible": True,
        "peak_memory": result.peak_memory.tolist(),
        "note": result.note,
    }


def _kept(folder: Path, cell: Cell, problem: Problem, result: Result) -> Data:
    """Write the problem once, and the placement, as ``gnnplace simulate`` takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    problem_digest = digest(problem).replace(":", "-")
    path = folder / f"{problem_digest}.json"
    if not path.exists():
        write_problem(path, problem)
    unit = "steps" if cell.unit == STEPS else ""
    placer = re.sub(r"[^\w.-]+", "-", cell.placer)  # of a class's path, too
    name = f"{problem_digest}-{placer}-{cell.budget:g}{unit}-{cell.seed}.json"
    write_placement(folder / name, result.placement, problem)
    return {"kept": name}
