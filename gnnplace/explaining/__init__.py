"""Explanations: what bounds a step, what slows a run down, and which single change would help.

`explain_plan` and `explain_launch_plan` explain a plan: seconds by what they go to (they add up to
the step), the causes that would explain a measured step (`SlowdownCause`), and single changes of
the plan's words, each priced. `explain`, `advise` and `difference` explain placements of single
operations: the critical path, why devices idle, what alternatives cost.

Called by `planning` (what would make a plan fit), `report` and the command line. It searches no
plan, renders nothing, and has no prices of its own: every figure is one of the pricer that priced
the plan, or of the simulator that timed the placement.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.explaining.captured import without_host
    from gnnplace.explaining.causes import SlowdownCause
    from gnnplace.explaining.in_words import ROW_PARTS, single_changes
    from gnnplace.explaining.measured_steps import MeasuredSteps
    from gnnplace.explaining.placements.advice import WORTH, Advice, advise
    from gnnplace.explaining.placements.causes import Cause, Causes
    from gnnplace.explaining.placements.critical_path import (
        COMPUTING,
        critical_path,
    )
    from gnnplace.explaining.placements.critical_path import KINDS as PIECE_KINDS
    from gnnplace.explaining.placements.difference import (
        PlacementDifference,
        Side,
        difference,
        steps_differ,
    )
    from gnnplace.explaining.placements.explaining import (
        Explanation,
        device_times,
        explain,
    )
    from gnnplace.explaining.placements.modules import module_rows
    from gnnplace.explaining.plan_explanation import (
        PARTS,
        LaunchExplanation,
        PlanExplanation,
        explain_launch_plan,
        explain_plan,
    )

__all__ = [
    "COMPUTING",
    "PARTS",
    "PIECE_KINDS",
    "ROW_PARTS",
    "WORTH",
    "Advice",
    "Cause",
    "Causes",
    "Explanation",
    "LaunchExplanation",
    "MeasuredSteps",
    "PlacementDifference",
    "PlanExplanation",
    "Side",
    "SlowdownCause",
    "advise",
    "critical_path",
    "device_times",
    "difference",
    "explain",
    "explain_launch_plan",
    "explain_plan",
    "module_rows",
    "single_changes",
    "steps_differ",
    "without_host",
]

__getattr__, __dir__ = lazy_names(__name__)
