"""The graph room: computation graphs, traversal orders, ranks and coarsening."""

from gnnplace.graph.computation_graph import ComputationGraph as ComputationGraph
from gnnplace.graph.computation_graph import describe_cycle as describe_cycle
