"""Lower bounds on the step time, one a file; ``combined`` calls them all."""

from gnnplace.simulation.bounds.combined import LowerBounds as LowerBounds
from gnnplace.simulation.bounds.combined import lower_bound as lower_bound
from gnnplace.simulation.bounds.combined import lower_bounds as lower_bounds
from gnnplace.simulation.bounds.combined import quick_bounds as quick_bounds
