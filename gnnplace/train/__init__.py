"""The train room: how the policy learns.

What is offered here is imported when first used: ``train.data`` needs no Lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnplace.train.data_module import ProblemDataModule as ProblemDataModule
    from gnnplace.train.evolution import Evolution as Evolution
    from gnnplace.train.measured import MeasuredTuning as MeasuredTuning
    from gnnplace.train.measured import Rounds as Rounds
    from gnnplace.train.measured_reinforce import MeasuredReinforce as MeasuredReinforce
    from gnnplace.train.one_problem import OneProblem as OneProblem
    from gnnplace.train.one_problem import ProblemFiles as ProblemFiles
    from gnnplace.train.reinforce import Reinforce as Reinforce

HOMES = {
    "data_module": ("ProblemDataModule",),
    "evolution": ("Evolution",),
    "measured": ("MeasuredTuning", "Rounds"),
    "measured_reinforce": ("MeasuredReinforce",),
    "one_problem": ("OneProblem", "ProblemFiles"),
    "reinforce": ("Reinforce",),
}
HOME = {name: f"{__name__}.{module}" for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)
