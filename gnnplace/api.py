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

from gnnplace.cluster.caches import Cache
from gnnplace.cluster.machine import machine, versions
from gnnplace.constraints import Constraints as Constraints
from gnnplace.constraints import as_constraints as as_constraints
from gnnplace.constraints import constrained as constrained
from gnnplace.constraints import read_constraints as read_constraints
from gnnplace.constraints.constraints import Given
from gnnplace.constraints.headroom import check_headroom as check_headroom
from gnnplace.constraints.headroom import with_headroom as with_headroom
from gnnplace.errors import InputError
from gnnplace.explanation.difference import Difference
from gnnplace.explanation.difference import difference as _difference
from gnnplace.formats import convert as convert
from gnnplace.placement import Placement
from gnnplace.placement import placed_microbatches as placed_microbatches
from gnnplace.placement import read_placement_for as read_placement_for
from gnnplace.placers import Result as Result
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
from gnnplace.profiling.targets import is_problem_file as is_problem_file
from gnnplace.profiling.targets import on_cluster as on_cluster
from gnnplace.profiling.targets import read_on_cluster as read_on_cluster
from gnnplace.profiling.targets import resolve_cluster as resolve_cluster
from gnnplace.simulation import simulate as simulate
from gnnplace.throughput import ThroughputResult
from gnnplace.throughput.comparison import intervals
from gnnplace.tracing.options import CaptureOptions as CaptureOptions

if TYPE_CHECKING:
    from gnnplace.bench import run_suite as run_suite
    from gnnplace.bench import summarise as summarise
    from gnnplace.data.build import build_data as build_data
    from gnnplace.data.datasets import verify as verify_data
    from gnnplace.execution.running import Executed as Executed
    from gnnplace.execution.running import dry_run_placement as dry_run
    from gnnplace.execution.running import eager_times as eager_times
    from gnnplace.execution.running import execute_placement as execute
    from gnnplace.execution.setting import execution_mode as execution_mode
    from gnnplace.explanation.advice import advise as advise
    from gnnplace.explanation.explaining import explain as explain
    from gnnplace.fidelity.fitting import calibrate as calibrate
    from gnnplace.hybrid.run import execute_hybrid as execute_hybrid
    from gnnplace.hybrid.study import study_hybrid as study_hybrid
    from gnnplace.pipelines.plans import compare_plans as compare_plans
    from gnnplace.pipelines.plans import plan_model as plan
    from gnnplace.pipelines.run.workers import run_plan as run_plan
    from gnnplace.profiling.cache import measured_anew as measured_anew
    from gnnplace.profiling.problems import estimated_problem as estimated_problem
    from gnnplace.profiling.problems import profile_model as profile
    from gnnplace.profiling.problems import read_or_profile as read_or_profile
    from gnnplace.report.files import write_report as write_report
    from gnnplace.report.placements import write_page as write_page
    from gnnplace.sizes import choose_microbatches as choose_microbatches
    from gnnplace.splitting.answers import plan_shard as plan_shard
    from gnnplace.splitting.answers import shard_counts as shard_counts
    from gnnplace.splitting.answers import shard_frontier as shard_frontier
    from gnnplace.splitting.answers import shard_network as shard_network
    from gnnplace.splitting.answers import shard_tables as shard_tables
    from gnnplace.splitting.run.planning import plan_model as shard
    from gnnplace.splitting.run.sharded import run_sharded as run_shard
    from gnnplace.studies.costs.study import study_costs as study_costs
    from gnnplace.studies.fidelity import check_fidelity as check_fidelity
    from gnnplace.studies.orders.networks import study_network_orders as study_network_orders
    from gnnplace.studies.orders.study import study_orders as study_orders
    from gnnplace.studies.plans.study import study_plans as study_plans
    from gnnplace.studies.road import walk_road as walk_road
    from gnnplace.tracing.models import capture_model as capture
    from gnnplace.tracing.models import say_batch as say_batch

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
    "advise": ("gnnplace.explanation.advice", "advise"),
    "Executed": ("gnnplace.execution.running", "Executed"),
    "build_data": ("gnnplace.data.build", "build_data"),
    "calibrate": ("gnnplace.fidelity.fitting", "calibrate"),
    "capture": ("gnnplace.tracing.models", "capture_model"),
    "check_fidelity": ("gnnplace.studies.fidelity", "check_fidelity"),
    "choose_microbatches": ("gnnplace.sizes", "choose_microbatches"),
    "compare_plans": ("gnnplace.pipelines.plans", "compare_plans"),
    "dry_run": ("gnnplace.execution.running", "dry_run_placement"),
    "eager_times": ("gnnplace.execution.running", "eager_times"),
    "estimated_problem": ("gnnplace.profiling.problems", "estimated_problem"),
    "execute": ("gnnplace.execution.running", "execute_placement"),
    "execute_hybrid": ("gnnplace.hybrid.run", "execute_hybrid"),
    "explain": ("gnnplace.explanation.explaining", "explain"),
    "execution_mode": ("gnnplace.execution.setting", "execution_mode"),
    "profile": ("gnnplace.profiling.problems", "profile_model"),
    "read_or_profile": ("gnnplace.profiling.problems", "read_or_profile"),
    "say_batch": ("gnnplace.tracing.models", "say_batch"),
    "run_plan": ("gnnplace.pipelines.run.workers", "run_plan"),
    "run_shard": ("gnnplace.splitting.run.sharded", "run_sharded"),
    "run_suite": ("gnnplace.bench", "run_suite"),
    "shard": ("gnnplace.splitting.run.planning", "plan_model"),
    "shard_counts": ("gnnplace.splitting.answers", "shard_counts"),
    "shard_frontier": ("gnnplace.splitting.answers", "shard_frontier"),
    "measured_anew": ("gnnplace.profiling.cache", "measured_anew"),
    "plan": ("gnnplace.pipelines.plans", "plan_model"),
    "plan_shard": ("gnnplace.splitting.answers", "plan_shard"),
    "shard_tables": ("gnnplace.splitting.answers", "shard_tables"),
    "shard_network": ("gnnplace.splitting.answers", "shard_network"),
    "study_costs": ("gnnplace.studies.costs.study", "study_costs"),
    "study_hybrid": ("gnnplace.hybrid.study", "study_hybrid"),
    "study_network_orders": ("gnnplace.studies.orders.networks", "study_network_orders"),
    "study_orders": ("gnnplace.studies.orders.study", "study_orders"),
    "study_plans": ("gnnplace.studies.plans.study", "study_plans"),
    "summarise": ("gnnplace.bench", "summarise"),
    "verify_data": ("gnnplace.data.datasets", "verify"),
    "walk_road": ("gnnplace.studies.road", "walk_road"),
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
    "check_budget",
    "check_fidelity",
    "check_headroom",
    "choose_microbatches",
    "compare",
    "compare_intervals",
    "compare_plans",
    "constrained",
    "convert",
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
    "shard_counts",
    "shard_frontier",
    "shard_network",
    "shard_tables",
    "shown_placers",
    "simulate",
    "study_costs",
    "study_hybrid",
    "study_network_orders",
    "study_orders",
    "study_plans",
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
    from gnnplace.measurements import default_store
    from gnnplace.profiling.cache import cache_folder

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
