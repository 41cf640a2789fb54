"""The predicted step of a placement: seconds, memory, list schedules and lower bounds.

The cost model is that of the problem: every op takes its seconds on its device, one op at a time;
tensors are sent over links that serve one message at a time. From the top:

* `simulator`: `Simulator` predicts placements of one problem; a `Simulation` has the timeline,
  transfers, peak memory and reasons why a placement cannot run.
* `bounds`: lower bounds on the step time of any placement (`lower_bounds`).
* `list_scheduling`: the order of ops for given devices, by priority.
* `memory`: peak bytes of each device.
* `kernels`: the simulator itself, compiled by numba.
* `transfer`: what messages cost (`Links`), by the LogGP terms of a cluster's links.
* `compiled`: a problem as arrays (`Compiled`), which all kernels read.
* `step_count`: a budget in simulated steps in place of seconds.

Callers are `placers`, `policy`, `plans`, `report` and the verbs `simulate` and `place`; they import
from this file alone, kernels too, since a kernel that calls another has it compiled into it. The
room never searches: it answers what a placement takes.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.simulation.bounds import LowerBounds as LowerBounds
    from gnnplace.simulation.bounds import lower_bound as lower_bound
    from gnnplace.simulation.bounds import lower_bounds as lower_bounds
    from gnnplace.simulation.bounds import quick_bounds as quick_bounds
    from gnnplace.simulation.compiled import Compiled as Compiled
    from gnnplace.simulation.compiled import compile_problem as compile_problem
    from gnnplace.simulation.compiled import compute_least_times as compute_least_times
    from gnnplace.simulation.compiled import (
        compute_longest_path as compute_longest_path,
    )
    from gnnplace.simulation.compiled import make_lean as make_lean
    from gnnplace.simulation.compiled import mean_times as mean_times
    from gnnplace.simulation.kernels import ROUNDING as ROUNDING
    from gnnplace.simulation.kernels import run_kernel as run_kernel
    from gnnplace.simulation.kernels import step_time_kernel as step_time_kernel
    from gnnplace.simulation.list_scheduling import (
        compute_distances as compute_distances,
    )
    from gnnplace.simulation.list_scheduling import find_times as find_times
    from gnnplace.simulation.list_scheduling import justify as justify
    from gnnplace.simulation.list_scheduling import list_priorities as list_priorities
    from gnnplace.simulation.list_scheduling import list_schedule as list_schedule
    from gnnplace.simulation.list_scheduling import (
        list_schedule_in_kernel as list_schedule_in_kernel,
    )
    from gnnplace.simulation.list_scheduling import (
        mean_transfer_times as mean_transfer_times,
    )
    from gnnplace.simulation.list_scheduling import mean_upward_rank as mean_upward_rank
    from gnnplace.simulation.list_scheduling import reverse_problem as reverse_problem
    from gnnplace.simulation.list_scheduling import (
        time_list_schedule as time_list_schedule,
    )
    from gnnplace.simulation.list_scheduling import turn_order as turn_order
    from gnnplace.simulation.memory import compute_total_memory as compute_total_memory
    from gnnplace.simulation.memory import excess_kernel as excess_kernel
    from gnnplace.simulation.memory import peak_memory as peak_memory
    from gnnplace.simulation.simulator import Simulation as Simulation
    from gnnplace.simulation.simulator import Simulator as Simulator
    from gnnplace.simulation.simulator import Transfers as Transfers
    from gnnplace.simulation.simulator import finish_placement as finish_placement
    from gnnplace.simulation.simulator import merge_sequences as merge_sequences
    from gnnplace.simulation.simulator import simulate as simulate
    from gnnplace.simulation.step_count import count_budget_steps as count_budget_steps
    from gnnplace.simulation.step_count import count_steps as count_steps
    from gnnplace.simulation.step_count import steps_so_far as steps_so_far
    from gnnplace.simulation.transfer import BUSY as BUSY
    from gnnplace.simulation.transfer import DELAY as DELAY
    from gnnplace.simulation.transfer import LATENCY as LATENCY
    from gnnplace.simulation.transfer import PACE as PACE
    from gnnplace.simulation.transfer import RECEIVES as RECEIVES
    from gnnplace.simulation.transfer import SENDS as SENDS
    from gnnplace.simulation.transfer import Links as Links
    from gnnplace.simulation.transfer import Number as Number
    from gnnplace.simulation.transfer import SendQueues as SendQueues
    from gnnplace.simulation.transfer import compute_arrival as compute_arrival
    from gnnplace.simulation.transfer import (
        compute_most_seconds as compute_most_seconds,
    )
    from gnnplace.simulation.transfer import fetch as fetch
    from gnnplace.simulation.transfer import fetch_begin as fetch_begin
    from gnnplace.simulation.transfer import find_free_time as find_free_time
    from gnnplace.simulation.transfer import has_link as has_link
    from gnnplace.simulation.transfer import hold_channels as hold_channels
    from gnnplace.simulation.transfer import list_durations as list_durations
    from gnnplace.simulation.transfer import message_seconds as message_seconds
    from gnnplace.simulation.transfer import pay_overheads as pay_overheads
    from gnnplace.simulation.transfer import receive_time as receive_time
    from gnnplace.simulation.transfer import restore_links as restore_links
    from gnnplace.simulation.transfer import reverse_links as reverse_links
    from gnnplace.simulation.transfer import seconds_between as seconds_between
    from gnnplace.simulation.transfer import send_time as send_time
    from gnnplace.simulation.transfer import sender_seconds as sender_seconds
    from gnnplace.simulation.transfer import service_time as service_time
    from gnnplace.simulation.transfer import (
        split_message_seconds as split_message_seconds,
    )
    from gnnplace.simulation.transfer import with_messages as with_messages
    from gnnplace.simulation.transfer import with_overheads as with_overheads
    from gnnplace.simulation.transfer import without_gaps as without_gaps

__getattr__, __dir__ = lazy_names(__name__)
