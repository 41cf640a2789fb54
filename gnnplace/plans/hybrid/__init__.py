"""The hybrid room: data-parallel groups of model-parallel devices, and when they pay.

Numbers in, numbers out: steps are placed by whoever calls (``Splitter``'s ``place_on``).
"""

from gnnplace.plans.hybrid.advice import Advice as Advice
from gnnplace.plans.hybrid.advice import advise as advise
from gnnplace.plans.hybrid.advice import best_data_parallel as best_data_parallel
from gnnplace.plans.hybrid.advice import gain_at_scale as gain_at_scale
from gnnplace.plans.hybrid.advice import hours as hours
from gnnplace.plans.hybrid.advice import sentence as sentence
from gnnplace.plans.hybrid.convergence import Convergence as Convergence
from gnnplace.plans.hybrid.convergence import CriticalBatch as CriticalBatch
from gnnplace.plans.hybrid.convergence import EpochTable as EpochTable
from gnnplace.plans.hybrid.convergence import preset_of as preset_of
from gnnplace.plans.hybrid.convergence import published_gain as published_gain
from gnnplace.plans.hybrid.convergence import read_epochs as read_epochs
from gnnplace.plans.hybrid.fabric import Fabric as Fabric
from gnnplace.plans.hybrid.fabric import Ring as Ring
from gnnplace.plans.hybrid.gradients import PlacedStep as PlacedStep
from gnnplace.plans.hybrid.gradients import StepParts as StepParts
from gnnplace.plans.hybrid.gradients import placed_step as placed_step
from gnnplace.plans.hybrid.gradients import with_all_reduce as with_all_reduce
from gnnplace.plans.hybrid.splits import Row as Row
from gnnplace.plans.hybrid.splits import Splitter as Splitter
from gnnplace.plans.hybrid.splits import Training as Training
from gnnplace.plans.hybrid.splits import device_counts as device_counts
from gnnplace.plans.hybrid.splits import group_sizes as group_sizes
