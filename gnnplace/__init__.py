"""gnnplace: finds which device should run each operation, runs the answer, bounds the gap.

The verbs are functions here; they are imported when first used, so that ``import gnnplace`` and the
rooms that need no torch stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnplace.api import CaptureOptions as CaptureOptions
    from gnnplace.api import capture as capture
    from gnnplace.api import compare as compare
    from gnnplace.api import convert as convert
    from gnnplace.api import execute as execute
    from gnnplace.api import place as place
    from gnnplace.api import profile as profile
    from gnnplace.api import shard as shard
    from gnnplace.api import simulate as simulate
    from gnnplace.execution import TrainingStep as TrainingStep
    from gnnplace.execution import compile as compile
    from gnnplace.microbatching import with_microbatches as with_microbatches
    from gnnplace.placement import Placement as Placement
    from gnnplace.placement import read_placement as read_placement
    from gnnplace.placement import write_placement as write_placement
    from gnnplace.problem import Problem as Problem
    from gnnplace.problem import read_problem as read_problem
    from gnnplace.problem import write_problem as write_problem
    from gnnplace.splitting.run.plan import ShardPlan as ShardPlan
    from gnnplace.splitting.run.plan import read_shard_plan as read_shard_plan
    from gnnplace.splitting.tables.costs import MeshMachine as MeshMachine

HOMES = {
    "gnnplace.api": (
        "CaptureOptions",
        "capture",
        "compare",
        "convert",
        "execute",
        "place",
        "profile",
        "shard",
        "simulate",
    ),
    "gnnplace.execution": ("TrainingStep", "compile"),
    "gnnplace.microbatching": ("with_microbatches",),
    "gnnplace.placement": ("Placement", "read_placement", "write_placement"),
    "gnnplace.splitting.run.plan": ("ShardPlan", "read_shard_plan"),
    "gnnplace.splitting.tables.costs": ("MeshMachine",),
    "gnnplace.problem": ("Problem", "read_problem", "write_problem"),
}
HOME = {name: module for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'gnnplace' has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *HOME])
