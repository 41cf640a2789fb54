"""The verbs as functions with plain arguments: whatever a command does can be called from here.

The rooms that need torch are imported when a verb that needs them is called: simulating, converting
and placing problems with classical placers do not wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnplace.costs.profiling.targets import is_problem_file as is_problem_file
from gnnplace.costs.profiling.targets import on_cluster as on_cluster
from gnnplace.costs.profiling.targets import read_on_cluster as read_on_cluster
from gnnplace.costs.profiling.targets import resolve_cluster as resolve_cluster
from gnnplace.errors import InputError
from gnnplace.placers import Result as Result
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.placers.throughput.comparison import intervals
from gnnplace.policy.placing import DEFAULT_BUDGET as DEFAULT_BUDGET
from gnnplace.policy.placing import THROUGHPUT as THROUGHPUT
from gnnplace.policy.placing import TIME as TIME
from gnnplace.policy.placing import Failure as Failure
from gnnplace.policy.placing import check_budget as check_budget
from gnnplace.policy.placing import compare as compare
from gnnplace.policy.placing import place as place
from gnnplace.policy.placing import placer_for as placer_for
from gnnplace.policy.roster import ROSTER as ROSTER
from gnnplace.policy.roster import make_placer as make_placer
from gnnplace.policy.roster import placer_names as placer_names
from gnnplace.policy.roster import placer_options as placer_options
from gnnplace.policy.roster import shown_placers as shown_placers
from gnnplace.policy.warming import is_warm as is_warm
from gnnplace.policy.warming import warm as warm
from gnnplace.problem import Problem
from gnnplace.problem.cluster.caches import Cache
from gnnplace.problem.cluster.machine import machine, versions
from gnnplace.problem.constraints import Constraints as Constraints
from gnnplace.problem.constraints import as_constraints as as_constraints
from gnnplace.problem.constraints import constrained as constrained
from gnnplace.problem.constraints import limited as limited
from gnnplace.problem.constraints import read_constraints as read_constraints
from gnnplace.problem.constraints.constraints import Given
from gnnplace.problem.constraints.headroom import check_headroom as check_headroom
from gnnplace.problem.constraints.headroom import with_headroom as with_headroom
from gnnplace.problem.formats import convert as convert
from gnnplace.problem.placement import Placement
from gnnplace.problem.placement import placed_microbatches as placed_microbatches
from gnnplace.problem.placement import read_placement_for as read_placement_for
from gnnplace.report.explanation.difference import Difference
from gnnplace.report.explanation.difference import difference as _difference
from gnnplace.simulation import simulate as simulate
from gnnplace.tracing.options import CaptureOptions as CaptureOptions

if TYPE_CHECKING:
    from gnnplace.bench import run_suite as run_suite
    from gnnplace.bench import summarise as summarise
    from gnnplace.costs.profiling.cache import measured_anew as measured_anew
    from gnnplace.costs.profiling.problems import capture_for as capture_for
    from gnnplace.costs.profiling.problems import estimated_problem as estimated_problem
    from gnnplace.costs.profiling.problems import profile_model as profile
    from gnnplace.costs.profiling.problems import read_or_profile as read_or_profile
    from gnnplace.execution.devicemap.mapping import device_map as device_map
    from gnnplace.execution.devicemap.walking import check_device_map as check_device_map
    from gnnplace.execution.fidelity import check_fidelity as check_fidelity
    from gnnplace.execution.running import Executed as Executed
    from gnnplace.execution.running import dry_run_placement as dry_run
    from gnnplace.execution.running import eager_times as eager_times
    from gnnplace.execution.running import execute_placement as execute
    from gnnplace.execution.setting import execution_mode as execution_mode
    from gnnplace.measurements.fitting import calibrate as calibrate
    from gnnplace.plans.hybrid.run import execute_hybrid as execute_hybrid
    from gnnplace.plans.hybrid.study import study_hybrid as study_hybrid
    from gnnplace.plans.plans import compare_plans as compare_plans
    from gnnplace.plans.plans import plan_model as plan
    from gnnplace.plans.run.workers import run_plan as run_plan
    from gnnplace.policy.sizes import choose_microbatches as choose_microbatches
    from gnnplace.report.explanation.advice import advise as advise
    from gnnplace.report.explanation.explaining import explain as explain
    from gnnplace.report.files import write_report as write_report
    from gnnplace.report.placements import write_page as write_page
    from gnnplace.report.road import walk_road as walk_road
    from gnnplace.sharding.answers import plan_shard as plan_shard
    from gnnplace.sharding.answers import shard_frontier as shard_frontier
    from gnnplace.sharding.answers import shard_network as shard_network
    from gnnplace.sharding.answers import shard_tables as shard_tables
    from gnnplace.sharding.run.planning import plan_model as shard
    from gnnplace.sharding.run.sharded import run_sharded as run_shard
    from gnnplace.tracing.models import capture_model as capture
    from gnnplace.tracing.models import say_batch as say_batch
    from gnnplace.train.data.build import build_data as build_data
    from gnnplace.train.data.datasets import verify as verify_data

KERNELS = "compiled kernels"
ENVIRONMENT = (
    "gnnplace",
    "torch",
    "numpy",
    "numba",
    "lightning",
    "torch-geometric",
    "transformers",
    "ortools",
)
# Verb: module and name there. Imported when first used.
LATE = {
    "advise": ("gnnplace.report.explanation.advice", "advise"),
    "Executed": ("gnnplace.execution.running", "Executed"),
    "build_data": ("gnnplace.train.data.build", "build_data"),
    "calibrate": ("gnnplace.measurements.fitting", "calibrate"),
    "capture": ("gnnplace.tracing.models", "capture_model"),
    "capture_for": ("gnnplace.costs.profiling.problems", "capture_for"),
    "check_device_map": ("gnnplace.execution.devicemap.walking", "check_device_map"),
    "check_fidelity": ("gnnplace.execution.fidelity", "check_fidelity"),
    "choose_microbatches": ("gnnplace.policy.sizes", "choose_microbatches"),
    "compare_plans": ("gnnplace.plans.plans", "compare_plans"),
    "device_map": ("gnnplace.execution.devicemap.mapping", "device_map"),
    "dry_run": ("gnnplace.execution.running", "dry_run_placement"),
    "eager_times": ("gnnplace.execution.running", "eager_times"),
    "estimated_problem": ("gnnplace.costs.profiling.problems", "estimated_problem"),
    "execute": ("gnnplace.execution.running", "execute_placement"),
    "execute_hybrid": ("gnnplace.plans.hybrid.run", "execute_hybrid"),
    "explain": ("gnnplace.report.explanation.explaining", "explain"),
    "execution_mode": ("gnnplace.execution.setting", "execution_mode"),
    "profile": ("gnnplace.costs.profiling.problems", "profile_model"),
    "read_or_profile": ("gnnplace.costs.profiling.problems", "read_or_profile"),
    "say_batch": ("gnnplace.tracing.models", "say_batch"),
    "run_plan": ("gnnplace.plans.run.workers", "run_plan"),
    "run_shard": ("gnnplace.sharding.run.sharded", "run_sharded"),
    "run_suite": ("gnnplace.bench", "run_suite"),
    "shard": ("gnnplace.sharding.run.planning", "plan_model"),
    "shard_frontier": ("gnnplace.sharding.answers", "shard_frontier"),
    "measured_anew": ("gnnplace.costs.profiling.cache", "measured_anew"),
    "plan": ("gnnplace.plans.plans", "plan_model"),
    "plan_shard": ("gnnplace.sharding.answers", "plan_shard"),
    "shard_tables": ("gnnplace.sharding.answers", "shard_tables"),
    "shard_network": ("gnnplace.sharding.answers", "shard_network"),
    "study_hybrid": ("gnnplace.plans.hybrid.study", "study_hybrid"),
    "summarise": ("gnnplace.bench", "summarise"),
    "verify_data": ("gnnplace.train.data.datasets", "verify"),
    "walk_road": ("gnnplace.report.road", "walk_road"),
    "write_page": ("gnnplace.report.placements", "write_page"),
    "write_report": ("gnnplace.report.files", "write_report"),
}


__all__ = [
    "DEFAULT_BUDGET",
    "ROSTER",
    "THROUGHPUT",
    "TIME",
    "CaptureOptions",
    "Constraints",
    "Executed",
    "Failure",
    "Result",
    "advise",
    "as_constraints",
    "build_data",
    "caches",
    "calibrate",
    "capture",
    "capture_for",
    "check_budget",
    "check_device_map",
    "check_fidelity",
    "check_headroom",
    "choose_microbatches",
    "compare",
    "compare_intervals",
    "compare_plans",
    "constrained",
    "convert",
    "device_map",
    "difference",
    "dry_run",
    "eager_times",
    "environment",
    "estimated_problem",
    "execute",
    "execute_hybrid",
    "execution_mode",
    "explain",
    "is_problem_file",
    "is_warm",
    "limited",
    "make_placer",
    "measured_anew",
    "on_cluster",
    "place",
    "placed_microbatches",
    "placer_for",
    "placer_names",
    "placer_options",
    "plan",
    "plan_shard",
    "profile",
    "read_constraints",
    "read_on_cluster",
    "read_or_profile",
    "read_placement_for",
    "resolve_cluster",
    "run_plan",
    "run_shard",
    "run_suite",
    "say_batch",
    "shard",
    "shard_frontier",
    "shard_network",
    "shard_tables",
    "shown_placers",
    "simulate",
    "study_hybrid",
    "summarise",
    "verify_data",
    "walk_road",
    "warm",
    "with_headroom",
    "write_page",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module 'gnnplace.api' has no attribute {name!r}")
    module, own = LATE[name]
    return getattr(import_module(module), own)


def environment() -> dict[str, dict[str, Any]]:
    """Versions, this machine, and caches with their sizes and ages, as plain data."""
    return {
        "versions": versions(ENVIRONMENT),
        "machine": machine(),
        "caches": {name: str(cache) for name, cache in caches().items()},
    }


def caches() -> dict[str, Cache]:
    """Where measurements and compiled kernels are kept, by what they are."""
    from gnnplace.costs.profiling.cache import cache_folder
    from gnnplace.measurements import default_store

    compiled = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent
    return {
        "op and link times": Cache(cache_folder(), ("*.json",)),
        "store of measured steps": Cache(Path(default_store())),
        KERNELS: Cache(Path(compiled), ("*.nbi", "*.nbc")),
    }


def compare_intervals(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    constraints: Given | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[ThroughputResult | Failure]:
    """Intervals of pipelined steps: of searches for throughput, and what all others come to.

    Args:
        problem: what to place.
        names: the names of placers that minimise the step time; all that are shown by default.
        budget: seconds for each placer.
        seed: the seed of all randomness.
        constraints: as ``place`` has them; none on the number of devices.
        progress: called with a line before each placer.

    Raises:
        InputError: devices are limited in number.
    """
    asked = as_constraints(constraints)
    if asked.max_devices is not None:
        raise InputError("max-devices: compare it for the time of a step, not for throughput")
    problem = constrained(problem, asked)
    others = compare(problem, names, budget=budget, seed=seed, progress=progress)
    return intervals(problem, others, budget=budget, seed=seed, progress=progress)


def difference(
    problem: Problem, before: Placement, after: Placement, other: Problem | None = None
) -> Difference:
    """What two placements of a problem do differently; both are simulated.

    Args:
        problem: what was placed.
        before: a placement.
        after: another one.
        other: the same model as it was placed then, under other constraints or grouped otherwise.

    Raises:
        MismatchError: they are no placements of one model on one cluster.
        DeadlockError: sequences contradict the graph; names the ops of a cycle.
    """
    second = other or problem
    return _difference(problem, simulate(problem, before), simulate(second, after), second)
