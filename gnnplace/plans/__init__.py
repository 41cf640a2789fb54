"""The joint plan: how a model is trained on a cluster; searched, checked, run.

`docs/plan.md` says what is searched, how, and what is proven.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.plans.causes import SlowdownCause as SlowdownCause
    from gnnplace.plans.decoders.adapters import parse_adapters as parse_adapters
    from gnnplace.plans.fitting import FitAnswer as FitAnswer
    from gnnplace.plans.fitting import FitChange as FitChange
    from gnnplace.plans.fitting import fit_of as fit_of
    from gnnplace.plans.fitting import fit_plan as fit_plan
    from gnnplace.plans.hybrid.batches import BatchPlan as BatchPlan
    from gnnplace.plans.hybrid.batches import plan_batches as plan_batches
    from gnnplace.plans.hybrid.convergence import (
        ConvergenceOptions as ConvergenceOptions,
    )
    from gnnplace.plans.hybrid.convergence import Training as Training
    from gnnplace.plans.hybrid.convergence import preset_of as preset_of
    from gnnplace.plans.hybrid.convergence import token_preset as token_preset
    from gnnplace.plans.hybrid.convergence import training_of as training_of
    from gnnplace.plans.job import SearchOptions as SearchOptions
    from gnnplace.plans.job import TrainingJob as TrainingJob
    from gnnplace.plans.launch.importing import with_missing as with_missing
    from gnnplace.plans.launch.launch_plan import READ_NAMES as READ_NAMES
    from gnnplace.plans.launch.launch_plan import LaunchPlan as LaunchPlan
    from gnnplace.plans.launch.searching import LaunchAnswer as LaunchAnswer
    from gnnplace.plans.launch.searching import LaunchExplanation as LaunchExplanation
    from gnnplace.plans.launch.searching import priced_spec as priced_spec
    from gnnplace.plans.launch.side_by_side import start_command as start_command
    from gnnplace.plans.launch.words import words_data as words_data
    from gnnplace.plans.launch.words import words_lines as words_lines
    from gnnplace.plans.launch.writing import LaunchFile as LaunchFile
    from gnnplace.plans.launch.writing import convert_launch_file as convert_launch_file
    from gnnplace.plans.launch.writing import write_nearest as write_nearest
    from gnnplace.plans.measured_steps import MeasuredSteps as MeasuredSteps
    from gnnplace.plans.plan import OWN as OWN
    from gnnplace.plans.plan import MemoryParts as MemoryParts
    from gnnplace.plans.plan import Plan as Plan
    from gnnplace.plans.plan import PlanFile as PlanFile
    from gnnplace.plans.plans import plan_devices as plan_devices
    from gnnplace.plans.plans import read_given as read_given
    from gnnplace.plans.reading import is_plan as is_plan
    from gnnplace.plans.reading import read_plan as read_plan
    from gnnplace.plans.rows import PricedTable as PricedTable
    from gnnplace.plans.spec import PlanSpec as PlanSpec
    from gnnplace.plans.spec import parse_spec as parse_spec
    from gnnplace.plans.spec_answers import device_peaks as device_peaks

__getattr__, __dir__ = lazy_names(__name__)
