"""Lower bounds on the step time, one a file; ``combined`` calls them all."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.simulation.bounds.combined import LowerBounds as LowerBounds
    from gnnplace.simulation.bounds.combined import lower_bound as lower_bound
    from gnnplace.simulation.bounds.combined import lower_bounds as lower_bounds
    from gnnplace.simulation.bounds.combined import quick_bounds as quick_bounds

__getattr__, __dir__ = lazy_names(__name__)
