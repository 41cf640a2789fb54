"""gnnplace: finds which device should run each operation, runs the answer, bounds the gap.

The verbs are functions here; they are imported when first used, so that ``import gnnplace`` and the
rooms that need no torch stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnplace.api import CaptureOptions as CaptureOptions
    from gnnplace.api import Constraints as Constraints
    from gnnplace.api import build_data as build_data
    from gnnplace.api import calibrate as calibrate
    from gnnplace.api import capture as capture
    from gnnplace.api import check_device_map as check_device_map
    from gnnplace.api import check_fidelity as check_fidelity
    from gnnplace.api import choose_microbatches as choose_microbatches
    from gnnplace.api import compare as compare
    from gnnplace.api import compare_intervals as compare_intervals
    from gnnplace.api import constrained as constrained
    from gnnplace.api import convert as convert
    from gnnplace.api import device_map as device_map
    from gnnplace.api import difference as difference
    from gnnplace.api import environment as environment
    from gnnplace.api import execute as execute
    from gnnplace.api import execute_hybrid as execute_hybrid
    from gnnplace.api import explain as explain
    from gnnplace.api import make_placer as make_placer
    from gnnplace.api import measured_anew as measured_anew
    from gnnplace.api import place as place
    from gnnplace.api import placer_names as placer_names
    from gnnplace.api import plan as plan
    from gnnplace.api import plan_shard as plan_shard
    from gnnplace.api import profile as profile
    from gnnplace.api import read_constraints as read_constraints
    from gnnplace.api import run_plan as run_plan
    from gnnplace.api import run_shard as run_shard
    from gnnplace.api import run_suite as run_suite
    from gnnplace.api import shard as shard
    from gnnplace.api import shard_frontier as shard_frontier
    from gnnplace.api import shard_network as shard_network
    from gnnplace.api import shard_tables as shard_tables
    from gnnplace.api import simulate as simulate
    from gnnplace.api import study_hybrid as study_hybrid
    from gnnplace.api import summarise as summarise
    from gnnplace.api import verify_data as verify_data
    from gnnplace.api import walk_road as walk_road
    from gnnplace.api import write_page as write_page
    from gnnplace.api import write_report as write_report
    from gnnplace.execution import TrainingStep as TrainingStep
    from gnnplace.execution import compile as compile
    from gnnplace.plans.plan import Plan as Plan
    from gnnplace.plans.plans import JointPlan as JointPlan
    from gnnplace.plans.plans import read_plan as read_plan
    from gnnplace.problem import Problem as Problem
    from gnnplace.problem import read_problem as read_problem
    from gnnplace.problem import write_problem as write_problem
    from gnnplace.problem.microbatching import with_microbatches as with_microbatches
    from gnnplace.problem.placement import Placement as Placement
    from gnnplace.problem.placement import read_placement as read_placement
    from gnnplace.problem.placement import write_placement as write_placement
    from gnnplace.sharding.captured.costs import MeshMachine as MeshMachine
    from gnnplace.sharding.run.plan import ShardPlan as ShardPlan
    from gnnplace.sharding.run.plan import read_shard_plan as read_shard_plan

VERBS = (
    "CaptureOptions",
    "Constraints",
    "build_data",
    "calibrate",
    "capture",
    "check_device_map",
    "check_fidelity",
    "choose_microbatches",
    "compare",
    "compare_intervals",
    "constrained",
    "convert",
    "device_map",
    "difference",
    "environment",
    "execute",
    "execute_hybrid",
    "explain",
    "make_placer",
    "measured_anew",
    "place",
    "placer_names",
    "plan",
    "plan_shard",
    "profile",
    "read_constraints",
    "run_plan",
    "run_shard",
    "run_suite",
    "shard",
    "shard_frontier",
    "shard_network",
    "shard_tables",
    "simulate",
    "study_hybrid",
    "summarise",
    "verify_data",
    "walk_road",
    "write_page",
    "write_report",
)
HOMES = {
    "gnnplace.api": VERBS,
    "gnnplace.execution": ("TrainingStep", "compile"),
    "gnnplace.problem.microbatching": ("with_microbatches",),
    "gnnplace.problem.placement": ("Placement", "read_placement", "write_placement"),
    "gnnplace.plans.plans": ("JointPlan", "read_plan"),
    "gnnplace.plans.plan": ("Plan",),
    "gnnplace.problem": ("Problem", "read_problem", "write_problem"),
    "gnnplace.sharding.run.plan": ("ShardPlan", "read_shard_plan"),
    "gnnplace.sharding.captured.costs": ("MeshMachine",),
}
ROOMS = ("lightning",)
"""Rooms that are imported when somebody asks for them."""
HOME = {name: module for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ROOMS:
        return import_module(f"gnnplace.{name}")
    if name not in HOME:
        raise AttributeError(f"module 'gnnplace' has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME, *ROOMS})
