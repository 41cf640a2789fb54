"""The joint plan: how a model is trained on a cluster; searched, checked, run.

`docs/plan.md` says what is searched, how, and what is proven.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.plans.job import SearchOptions as SearchOptions
    from gnnplace.plans.job import TrainingJob as TrainingJob
    from gnnplace.plans.spec import PlanSpec as PlanSpec

__getattr__, __dir__ = lazy_names(__name__)
