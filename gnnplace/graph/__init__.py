"""The graph room: computation graphs, traversal orders, ranks and coarsening."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.graph.computation_graph import ComputationGraph as ComputationGraph
    from gnnplace.graph.computation_graph import describe_cycle as describe_cycle
    from gnnplace.graph.kernels import components as components
    from gnnplace.graph.orders import COORDINATE as COORDINATE
    from gnnplace.graph.orders import EARLY as EARLY
    from gnnplace.graph.orders import FIXED_ORDERS as FIXED_ORDERS
    from gnnplace.graph.orders import IN_TIME as IN_TIME
    from gnnplace.graph.orders import ORDERS as ORDERS
    from gnnplace.graph.orders import WALKED as WALKED
    from gnnplace.graph.orders import Direction as Direction
    from gnnplace.graph.orders import base_of as base_of
    from gnnplace.graph.orders import check_network_order as check_network_order
    from gnnplace.graph.orders import check_order as check_order
    from gnnplace.graph.orders import direction as direction
    from gnnplace.graph.orders import downward_rank as downward_rank
    from gnnplace.graph.orders import levels as levels
    from gnnplace.graph.orders import levels_from_sinks as levels_from_sinks
    from gnnplace.graph.orders import traversal as traversal
    from gnnplace.graph.orders import upward_rank as upward_rank

__getattr__, __dir__ = lazy_names(__name__)
