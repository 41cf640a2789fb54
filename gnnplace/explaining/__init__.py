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
    from gnnplace.explaining.causes import SlowdownCause
    from gnnplace.explaining.chain_variants import without_launches
    from gnnplace.explaining.changes import (
        PlanChange,
        WordChoices,
        list_choices,
        single_changes,
    )
    from gnnplace.explaining.in_words import SpecStep
    from gnnplace.explaining.measured_steps import MeasuredSteps
    from gnnplace.explaining.placements.advice import WORTH, Advice, advise
    from gnnplace.explaining.placements.alternatives import Alternative
    from gnnplace.explaining.placements.causes import Cause, Causes
    from gnnplace.explaining.placements.critical_path import (
        COMPUTING,
        find_critical_path,
    )
    from gnnplace.explaining.placements.critical_path import KINDS as PIECE_KINDS
    from gnnplace.explaining.placements.difference import (
        Move,
        PlacementDifference,
        Side,
        difference,
        steps_differ,
    )
    from gnnplace.explaining.placements.explaining import (
        DeviceTime,
        Explanation,
        Loosened,
        explain,
        sum_device_times,
    )
    from gnnplace.explaining.placements.modules import module_rows
    from gnnplace.explaining.plan_explanation import (
        LaunchExplanation,
        PlanExplanation,
        StepExplanation,
        explain_launch_plan,
        explain_plan,
        explain_step,
    )
    from gnnplace.explaining.steps import PARTS, ExplainedStep, step_causes, step_parts

__all__ = [
    "COMPUTING",
    "PARTS",
    "PIECE_KINDS",
    "WORTH",
    "Advice",
    "Alternative",
    "Cause",
    "Causes",
    "DeviceTime",
    "ExplainedStep",
    "Explanation",
    "LaunchExplanation",
    "Loosened",
    "MeasuredSteps",
    "Move",
    "PlacementDifference",
    "PlanChange",
    "PlanExplanation",
    "Side",
    "SlowdownCause",
    "SpecStep",
    "StepExplanation",
    "WordChoices",
    "advise",
    "difference",
    "explain",
    "explain_launch_plan",
    "explain_plan",
    "explain_step",
    "find_critical_path",
    "list_choices",
    "module_rows",
    "single_changes",
    "step_causes",
    "step_parts",
    "steps_differ",
    "sum_device_times",
    "without_launches",
]

__getattr__, __dir__ = lazy_names(__name__)
