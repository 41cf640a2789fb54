"""Answers to questions about a model's plan, each the body of a public verb.

`plan_model` searches a plan, or prices one that is given in words, as a plan's file or as a launch
file; `compare_plans` sets it beside the baselines that people use without a search; `study_hybrid`
splits devices into groups and says when training ends, `make_study_plan` plans its answer;
`fit_plan` says what fills the fullest device and what would make the plan fit (`FitAnswer`);
`price_plans` prices a table of plans; `plan_shard` splits a model over one mesh. Answers are
`JointPlan`s, which can be applied to a model.

Called by `gnnplace`'s own face, `report`, `bench` and the command line. It searches and prices
nothing itself: `plans`, `launch` and `explaining` do, and `run.planned` runs what is tried.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.planning.fitting import FitAnswer, FitChange, fit_plan, judge_fit
    from gnnplace.planning.plans import (
        JointPlan,
        compare_plans,
        make_study_plan,
        plan_devices,
        plan_model,
        read_given,
        read_plan,
        study_hybrid,
    )
    from gnnplace.planning.rows import PricedTable, price_plans
    from gnnplace.planning.sharded import (
        ShardPlan,
        make_split_plan,
        plan_shard,
        read_shard_plan,
        shard_model,
    )

__all__ = [
    "FitAnswer",
    "FitChange",
    "JointPlan",
    "PricedTable",
    "ShardPlan",
    "compare_plans",
    "fit_plan",
    "judge_fit",
    "make_split_plan",
    "make_study_plan",
    "plan_devices",
    "plan_model",
    "plan_shard",
    "price_plans",
    "read_given",
    "read_plan",
    "read_shard_plan",
    "shard_model",
    "study_hybrid",
]

__getattr__, __dir__ = lazy_names(__name__)
