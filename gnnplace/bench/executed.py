"""Cells that execute: a placement runs on workers, checked against one process, several times.

The step time is that of the shortest step of several runs, each with workers of its own: other
processes make steps longer and never shorter. Seconds stay those of the search, and the bound is of
predictions alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from gnnplace.bench.placed import PlacedProblem
from gnnplace.bench.standings import RUN_SUFFIX
from gnnplace.bench.suite import Cell, ProblemEntry
from gnnplace.costs import profile_model
from gnnplace.errors import ExecutionError
from gnnplace.placers import Result
from gnnplace.problem import prefix_rule_version
from gnnplace.run.measuring import execute_placement
from gnnplace.run.placed import Execution, ExecutionOptions
from gnnplace.tracing import Program, capture_model

Data = dict[str, Any]
STEPS, RUNS = 7, 3  # Steps of a run, and runs of an execution


@dataclass(frozen=True)
class Executable(PlacedProblem):
    """A captured model and its problem."""

    program: Program

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that tells of the problem."""
        run_digest = prefix_rule_version(f"{self.problem.fingerprint[:12]}{RUN_SUFFIX}")
        return super().described(entry) | {"digest": run_digest, "clock": "measured"}

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Return the outcome of a placer and of its runs; see ``kinds.Loaded``."""
        result, outcome = self.searched(cell, keep)
        runs = [_run(self, result, mode) for _ in range(RUNS)]
        return outcome | {
            "step_time": min(run.fastest for run in runs),
            "typical": median(run.step_time for run in runs),
            "lower_bound": None,
            "predicted": result.step_time,
            "clock": runs[0].mode,
        }


def load_executable(entry: ProblemEntry) -> Executable:
    """Capture a model and return it with its problem.

    Raises:
        GnnplaceError: The model cannot be captured.
    """
    options = entry.capture_options()
    program = capture_model(str(entry.model), options=options)
    problem = profile_model(program, entry.cluster or "auto", options=options)
    return Executable(problem, program)


def _run(loaded: Executable, result: Result, mode: str) -> Execution:
    """Run a placement once and return the execution, checked.

    Raises:
        ExecutionError: It failed, or computed something else than one process.
    """
    run = execute_placement(
        loaded.program,
        loaded.problem,
        result.placement,
        run=ExecutionOptions(steps=STEPS, mode=mode),
    )
    if not run.passed:
        raise ExecutionError(f"the run computed something else: {run.summary()}")
    return run.execution
