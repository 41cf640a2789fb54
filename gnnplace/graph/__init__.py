"""Computation graphs, traversal orders, ranks and coarsening, and how kernels are compiled.

A `ComputationGraph` has ops, tensors and their consumers as arrays. `kernel` and `inner` compile
functions over such arrays; `zero_floats`, `heap_push`, `Index`, ... are what kernels are written
with. The room knows neither devices nor seconds.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.graph.coarsening import coarsen as coarsen
    from gnnplace.graph.computation_graph import ComputationGraph as ComputationGraph
    from gnnplace.graph.computation_graph import describe_cycle as describe_cycle
    from gnnplace.graph.computation_graph import quotient as quotient
    from gnnplace.graph.computation_graph import unite_groups as unite_groups
    from gnnplace.graph.jit import KERNELS as KERNELS
    from gnnplace.graph.jit import ahead as ahead
    from gnnplace.graph.jit import inner as inner
    from gnnplace.graph.jit import kernel as kernel
    from gnnplace.graph.kernel_arrays import ONE as ONE
    from gnnplace.graph.kernel_arrays import Index as Index
    from gnnplace.graph.kernel_arrays import ascending as ascending
    from gnnplace.graph.kernel_arrays import copy_rows as copy_rows
    from gnnplace.graph.kernel_arrays import copy_to as copy_to
    from gnnplace.graph.kernel_arrays import empty_floats as empty_floats
    from gnnplace.graph.kernel_arrays import empty_indices as empty_indices
    from gnnplace.graph.kernel_arrays import empty_int_table as empty_int_table
    from gnnplace.graph.kernel_arrays import empty_ints as empty_ints
    from gnnplace.graph.kernel_arrays import empty_longs as empty_longs
    from gnnplace.graph.kernel_arrays import empty_table as empty_table
    from gnnplace.graph.kernel_arrays import full_floats as full_floats
    from gnnplace.graph.kernel_arrays import full_indices as full_indices
    from gnnplace.graph.kernel_arrays import full_ints as full_ints
    from gnnplace.graph.kernel_arrays import full_table as full_table
    from gnnplace.graph.kernel_arrays import greatest as greatest
    from gnnplace.graph.kernel_arrays import heap_pop as heap_pop
    from gnnplace.graph.kernel_arrays import heap_push as heap_push
    from gnnplace.graph.kernel_arrays import sort_by_merging as sort_by_merging
    from gnnplace.graph.kernel_arrays import zero_flag_table as zero_flag_table
    from gnnplace.graph.kernel_arrays import zero_flags as zero_flags
    from gnnplace.graph.kernel_arrays import zero_floats as zero_floats
    from gnnplace.graph.kernel_arrays import zero_int_table as zero_int_table
    from gnnplace.graph.kernel_arrays import zero_ints as zero_ints
    from gnnplace.graph.kernel_arrays import zero_longs as zero_longs
    from gnnplace.graph.kernel_arrays import zero_single_table as zero_single_table
    from gnnplace.graph.kernel_arrays import zero_singles as zero_singles
    from gnnplace.graph.kernel_arrays import zero_table as zero_table
    from gnnplace.graph.kernels import average_finite as average_finite
    from gnnplace.graph.kernels import components as components
    from gnnplace.graph.kernels import first_ready_first as first_ready_first
    from gnnplace.graph.kernels import flows_between as flows_between
    from gnnplace.graph.kernels import follow_forward as follow_forward
    from gnnplace.graph.kernels import group_entries as group_entries
    from gnnplace.graph.kernels import order_producers_first as order_producers_first
    from gnnplace.graph.kernels import sum_finite as sum_finite
    from gnnplace.graph.kernels import sum_op_flows as sum_op_flows
    from gnnplace.graph.narrow import bundle_tensors as bundle_tensors
    from gnnplace.graph.narrow import compute_crossing_bytes as compute_crossing_bytes
    from gnnplace.graph.narrow import cut_line as cut_line
    from gnnplace.graph.narrow import find_leading_elsewhere as find_leading_elsewhere
    from gnnplace.graph.narrow import move_behind_followers as move_behind_followers
    from gnnplace.graph.narrow import move_to_consumers as move_to_consumers
    from gnnplace.graph.narrow import split_cycles as split_cycles
    from gnnplace.graph.orders import COORDINATE as COORDINATE
    from gnnplace.graph.orders import EARLY as EARLY
    from gnnplace.graph.orders import FIXED_ORDERS as FIXED_ORDERS
    from gnnplace.graph.orders import IN_TIME as IN_TIME
    from gnnplace.graph.orders import ORDERS as ORDERS
    from gnnplace.graph.orders import WALKED as WALKED
    from gnnplace.graph.orders import Direction as Direction
    from gnnplace.graph.orders import breadth_first as breadth_first
    from gnnplace.graph.orders import check_network_order as check_network_order
    from gnnplace.graph.orders import check_order as check_order
    from gnnplace.graph.orders import direction as direction
    from gnnplace.graph.orders import downward_rank as downward_rank
    from gnnplace.graph.orders import get_base_order as get_base_order
    from gnnplace.graph.orders import levels as levels
    from gnnplace.graph.orders import levels_from_sinks as levels_from_sinks
    from gnnplace.graph.orders import random_order as random_order
    from gnnplace.graph.orders import rank_after as rank_after
    from gnnplace.graph.orders import topological as topological
    from gnnplace.graph.orders import traversal as traversal
    from gnnplace.graph.orders import upward_rank as upward_rank

__getattr__, __dir__ = lazy_names(__name__)
