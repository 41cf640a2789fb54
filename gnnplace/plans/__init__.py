"""The joint plan: how a model is trained on a cluster; searched, checked, run.

`docs/plan.md` says what is searched, how, and what is proven.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.plans.causes import SlowdownCause as SlowdownCause
    from gnnplace.plans.job import SearchOptions as SearchOptions
    from gnnplace.plans.job import TrainingJob as TrainingJob
    from gnnplace.plans.launch.importing import with_missing as with_missing
    from gnnplace.plans.launch.launch_plan import READ_NAMES as READ_NAMES
    from gnnplace.plans.launch.launch_plan import LaunchPlan as LaunchPlan
    from gnnplace.plans.launch.words import words_data as words_data
    from gnnplace.plans.launch.words import words_lines as words_lines
    from gnnplace.plans.launch.writing import LaunchFile as LaunchFile
    from gnnplace.plans.launch.writing import convert_launch_file as convert_launch_file
    from gnnplace.plans.launch.writing import write_nearest as write_nearest
    from gnnplace.plans.spec import PlanSpec as PlanSpec

__getattr__, __dir__ = lazy_names(__name__)
