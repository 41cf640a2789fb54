"""The graph room: computation graphs, traversal orders, ranks and coarsening."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.graph.computation_graph import ComputationGraph as ComputationGraph
    from gnnplace.graph.computation_graph import describe_cycle as describe_cycle
    from gnnplace.graph.kernels import components as components

__getattr__, __dir__ = lazy_names(__name__)
