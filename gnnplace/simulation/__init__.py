"""The simulation room: step time, memory, list scheduling, lower bounds."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.simulation.bounds import LowerBounds as LowerBounds
    from gnnplace.simulation.bounds import lower_bound as lower_bound
    from gnnplace.simulation.bounds import lower_bounds as lower_bounds
    from gnnplace.simulation.compiled import Compiled as Compiled
    from gnnplace.simulation.compiled import compile_problem as compile_problem
    from gnnplace.simulation.list_scheduling import list_schedule as list_schedule
    from gnnplace.simulation.simulator import Simulation as Simulation
    from gnnplace.simulation.simulator import Simulator as Simulator
    from gnnplace.simulation.simulator import Transfers as Transfers
    from gnnplace.simulation.simulator import finished_placement as finished_placement
    from gnnplace.simulation.simulator import merge_sequences as merge_sequences
    from gnnplace.simulation.simulator import simulate as simulate
    from gnnplace.simulation.step_count import count_steps as count_steps
    from gnnplace.simulation.step_count import counted_steps as counted_steps
    from gnnplace.simulation.step_count import steps_so_far as steps_so_far

__getattr__, __dir__ = lazy_names(__name__)
