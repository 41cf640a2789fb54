"""The hybrid room: data-parallel groups of model-parallel devices, and when they pay.

Numbers in, numbers out: steps are placed by whoever calls (``Splitter``'s ``place_on``).
"""

from gnnplace.hybrid.advice import Advice as Advice
from gnnplace.hybrid.advice import advise as advise
from gnnplace.hybrid.advice import best_data_parallel as best_data_parallel
from gnnplace.hybrid.advice import gain_at_scale as gain_at_scale
from gnnplace.hybrid.advice import hours as hours
from gnnplace.hybrid.advice import sentence as sentence
from gnnplace.hybrid.convergence import Convergence as Convergence
from gnnplace.hybrid.convergence import CriticalBatch as CriticalBatch
from gnnplace.hybrid.convergence import EpochTable as EpochTable
from gnnplace.hybrid.convergence import read_epochs as read_epochs
from gnnplace.hybrid.fabric import Fabric as Fabric
from gnnplace.hybrid.fabric import Ring as Ring
from gnnplace.hybrid.gradients import PlacedStep as PlacedStep
from gnnplace.hybrid.gradients import StepParts as StepParts
from gnnplace.hybrid.gradients import placed_step as placed_step
from gnnplace.hybrid.gradients import with_all_reduce as with_all_reduce
from gnnplace.hybrid.presets import preset_of as preset_of
from gnnplace.hybrid.published import published_gain as published_gain
from gnnplace.hybrid.splits import Row as Row
from gnnplace.hybrid.splits import Splitter as Splitter
from gnnplace.hybrid.splits import Training as Training
from gnnplace.hybrid.splits import device_counts as device_counts
from gnnplace.hybrid.splits import group_sizes as group_sizes
