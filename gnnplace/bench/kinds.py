"""The kinds of suites: what a problem is in memory, what a cell of it does, what a row then says.

* ``place``: a placer searches; ``step_time`` is predicted seconds.
* ``execute``: a placer searches, then the placement runs on workers and is checked against one
  process, three times; ``step_time`` is measured (or emulated: the suite's ``mode``), the shortest
  step; ``typical`` is the median, ``predicted`` what was predicted.
* ``shard``: a method splits a network's layers; ``step_time`` is seconds of the sharding cost
  model. Methods: ``SHARDERS``.

``clock`` says which of these a row's step time is. Times of different clocks never meet: the
digests of executed and sharded problems are not those of placed ones.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.bench.best_known import RUN_SUFFIX
from gnnplace.bench.rows import digest
from gnnplace.bench.suite import EXECUTE, SHARD, Cell, ProblemEntry
from gnnplace.errors import ExecutionError
from gnnplace.execution.running import execute_placement
from gnnplace.placement import write_placement
from gnnplace.placers import Result
from gnnplace.policy.placing import place
from gnnplace.policy.roster import placer_names
from gnnplace.policy.warming import warm as warm_placers
from gnnplace.problem import Problem, write_problem
from gnnplace.profiling.problems import profile_model
from gnnplace.sharding import ShardingProblem, best_strategy, warm
from gnnplace.sharding.configurations import Space
from gnnplace.sharding.costs import Machine, sharding_problem
from gnnplace.sharding.markov_chain import random_search
from gnnplace.sharding.networks.registry import build_network
from gnnplace.sharding.rivals import expert, greedy
from gnnplace.sharding.strategy import Setting
from gnnplace.tracing.models import capture_model

if TYPE_CHECKING:
    from gnnplace.execution import Execution
    from gnnplace.tracing import Program

Data = dict[str, Any]
STEPS, RUNS = 7, 3  # of an execution: steps of a run, runs
PROPOSALS = 1_000_000  # of a random search for a split without a budget: less than a second


@dataclass(frozen=True)
class Executable:
    """A captured model and its problem."""

    program: Program
    problem: Problem


@dataclass(frozen=True)
class Split:
    """A network's sharding tables, and what they were made for."""

    setting: Setting
    tables: ShardingProblem


Loaded = Problem | Executable | Split
Sharder = Callable[[Split, Cell], tuple[int, ...]]


def load(kind: str, entry: ProblemEntry, folder: Path) -> Loaded:
    """What a cell works on; files are relative to ``folder``.

    Raises:
        GnnplaceError: whatever is wrong with the problem.
    """
    if kind == SHARD:
        setting = Setting(build_network(str(entry.network)), entry.ways, Machine(), Space())
        tables = sharding_problem(setting.network, entry.ways, setting.machine, space=Space())
        return Split(setting, tables)
    if kind != EXECUTE:
        return entry.load(folder)
    options = entry.capture_options()
    program = capture_model(str(entry.model), options=options)
    return Executable(program, profile_model(program, entry.cluster or "auto", options=options))


def described(entry: ProblemEntry, loaded: Loaded) -> Data:
    """The part of a row that tells of the problem."""
    if isinstance(loaded, Split):
        return _described_split(loaded) | {"seen": entry.seen, "clock": "modelled"}
    problem = loaded.problem if isinstance(loaded, Executable) else loaded
    executed = isinstance(loaded, Executable)
    return {
        "num_ops": problem.num_ops,
        "num_devices": problem.num_devices,
        "microbatches": problem.microbatches,
        "seen": entry.seen,
        "digest": f"{problem.fingerprint[:12]}{RUN_SUFFIX}" if executed else digest(problem),
        "estimated": float(np.mean(problem.estimated)),
        "clock": "measured" if executed else "predicted",
        **entry.labels,
    }


def _described_split(loaded: Split) -> Data:
    hashed = hashlib.sha256()
    for array in (*loaded.tables.cost, *(np.asarray(edge.cost) for edge in loaded.tables.edges)):
        hashed.update(np.ascontiguousarray(array).tobytes())
    return {
        "num_ops": len(loaded.tables.names),
        "num_devices": loaded.setting.devices,
        "microbatches": 1,
        "digest": f"{hashed.hexdigest()[:12]}-split",
        "family": loaded.setting.network.name,
        "cluster": f"{loaded.setting.devices} devices",
    }


def outcome(cell: Cell, loaded: Loaded, mode: str, keep: str = "") -> Data:
    """The part of a row that tells what was found.

    Args:
        cell: what to run.
        loaded: its problem.
        mode: the mode of executions.
        keep: folder for problem and placement; empty: they are not kept.

    Raises:
        GnnplaceError: nothing was found, or it did not run.
    """
    begin = time.perf_counter()
    if isinstance(loaded, Split):
        return _sharded(cell, loaded) | {"seconds": time.perf_counter() - begin}
    problem = loaded.problem if isinstance(loaded, Executable) else loaded
    result = place(anew(problem), placer=cell.placer, budget=cell.budget, seed=cell.seed)
    found = _placed(result) | {"seconds": time.perf_counter() - begin}
    if keep:
        found |= _kept(Path(keep), cell, problem, result)
    return found | _executed(loaded, result, mode) if isinstance(loaded, Executable) else found


def _kept(folder: Path, cell: Cell, problem: Problem, result: Result) -> Data:
    """Writes what ``gnnplace simulate`` takes: the problem once, and the placement."""
    folder.mkdir(parents=True, exist_ok=True)
    told = digest(problem)
    path = folder / f"{told}.json"
    if not path.exists():
        write_problem(path, problem)
    name = f"{told}-{cell.placer}-{cell.budget:g}-{cell.seed}.json"
    write_placement(folder / name, result.placement, problem)
    return {"kept": name}


def anew(problem: Problem) -> Problem:
    """The same problem without what earlier placers have derived from it and left there."""
    return replace(problem, graph=replace(problem.graph), cluster=replace(problem.cluster))


def _placed(result: Result) -> Data:
    return {
        "step_time": result.step_time,
        "lower_bound": result.lower_bound,
        "feasible": True,
        "peak_memory": result.peak_memory.tolist(),
        "note": result.note,
    }


def _executed(loaded: Executable, result: Result, mode: str) -> Data:
    """What runs add; seconds stay those of the search, the bound is of predictions alone.

    The step time is that of the shortest step of several runs, each with workers of its own: other
    processes make steps longer and never shorter.
    """
    runs = [_run(loaded, result, mode) for _ in range(RUNS)]
    return {
        "step_time": min(run.fastest for run in runs),
        "typical": median(run.step_time for run in runs),
        "lower_bound": None,
        "predicted": result.step_time,
        "clock": runs[0].mode,
    }


def _run(loaded: Executable, result: Result, mode: str) -> Execution:
    """One run, checked.

    Raises:
        ExecutionError: it failed, or computed something else than one process.
    """
    run = execute_placement(
        loaded.program, loaded.problem, result.placement, steps=STEPS, mode=mode
    )
    if not run.passed:
        raise ExecutionError(f"the run computed something else: {run.summary()}")
    return run.execution


def _sharded(cell: Cell, loaded: Split) -> Data:
    if cell.placer == EXACT_SHARDER:
        found = best_strategy(loaded.tables, bounded=True)
        bound = found.cost if found.exact else found.bound
        configuration: tuple[int, ...] = found.configuration
    else:
        bound, configuration = None, SHARDERS[cell.placer](loaded, cell)
    parts = loaded.setting.parts(configuration)
    told = {"step_time": parts.total, "lower_bound": bound, "feasible": True}
    return told | {"peak_memory": [parts.memory]}


def _random(loaded: Split, cell: Cell) -> tuple[int, ...]:
    start = loaded.setting.data_parallel()
    limit = {"seconds": cell.budget} if cell.budget > 0 else {}
    most = PROPOSALS if cell.budget <= 0 else 10**9
    return random_search(loaded.tables, start, seed=cell.seed, proposals=most, **limit)


EXACT_SHARDER = "elimination"
SHARDERS: dict[str, Sharder] = {
    "data-parallel": lambda loaded, cell: loaded.setting.data_parallel(),
    "expert": lambda loaded, cell: expert(loaded.setting, loaded.tables),
    "greedy": lambda loaded, cell: greedy(loaded.tables),
    "random-chain": _random,
}


def known_names(kind: str) -> tuple[str, ...]:
    """Names of those who can be named as placers of a suite."""
    return (EXACT_SHARDER, *SHARDERS) if kind == SHARD else placer_names()


def warm_up(kind: str, names: list[str], progress: Callable[[str], None] | None = None) -> None:
    """Compiles what cells run, so that no cell's seconds contain it.

    Errors are ignored here: the cell itself raises them again and records them.

    Args:
        kind: the kind of the suite.
        names: the names of its placers.
        progress: called with a line now and then while placers' kernels are compiled.
    """
    if kind == SHARD:
        warm()
        return
    for name in names:
        with suppress(Exception):
            warm_placers([name], progress=progress)
