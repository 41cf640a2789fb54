"""Splits of layers over devices: the best one, exactly, by PaSE's elimination (arXiv 2407.04001).

The room answers one question: which dimension of each layer should be split over which devices, so
that a training step takes the least time or memory. A question goes through it from the top:

* `answers`: the verbs (`shard_tables`, `shard_network`, `shard_for`, `shard_frontier`) and their
  options. They take a model or a file of cost tables.
* `captured`: the layers of an `nn.Module` (`LayerGraph`), recorded call by call, as tables over
  the configurations on a mesh (`CapturedProblem`). These splits can be run.
* `problem`: `ShardingProblem`, the cost tables that the solver reads, and their file.
* `solver`: the best strategy of cost tables (`best_strategy`), and all that no other strategy
  beats in both time and memory (`pareto_frontier`).

Callers are `plans` (joint plans split their stages), `run.planned` (which executes them), `report`,
`bench` and the command `shard`; they import from this file alone. Names are imported when they are
first used, so that tables of a file are solved without torch. The room never chooses which layer
stands on which device: layers that are split are on all devices.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.sharding.answers import AnswerTables as AnswerTables
    from gnnplace.sharding.answers import GoalAnswer as GoalAnswer
    from gnnplace.sharding.answers import SplitGoal as SplitGoal
    from gnnplace.sharding.answers import SplitOptions as SplitOptions
    from gnnplace.sharding.answers import find_fastest_split as find_fastest_split
    from gnnplace.sharding.answers import is_file as is_file
    from gnnplace.sharding.answers import limit_split as limit_split
    from gnnplace.sharding.answers import load_layers as load_layers
    from gnnplace.sharding.answers import mesh_machine as mesh_machine
    from gnnplace.sharding.answers import shard_for as shard_for
    from gnnplace.sharding.answers import shard_frontier as shard_frontier
    from gnnplace.sharding.answers import shard_network as shard_network
    from gnnplace.sharding.answers import shard_tables as shard_tables
    from gnnplace.sharding.captured.costs import CostParts as CostParts
    from gnnplace.sharding.captured.costs import MeshMachine as MeshMachine
    from gnnplace.sharding.captured.costs import move as move
    from gnnplace.sharding.captured.costs import pending_layout as pending_layout
    from gnnplace.sharding.captured.graph import split_graph as split_graph
    from gnnplace.sharding.captured.layout import CALL as CALL
    from gnnplace.sharding.captured.layout import PARTIAL as PARTIAL
    from gnnplace.sharding.captured.layout import REPLICATED as REPLICATED
    from gnnplace.sharding.captured.layout import Configuration as Configuration
    from gnnplace.sharding.captured.layout import Layout as Layout
    from gnnplace.sharding.captured.layout import Mesh as Mesh
    from gnnplace.sharding.captured.layout import Place as Place
    from gnnplace.sharding.captured.layout import Shape as Shape
    from gnnplace.sharding.captured.layout import SplitGraph as SplitGraph
    from gnnplace.sharding.captured.layout import SplitOp as SplitOp
    from gnnplace.sharding.captured.layout import (
        count_layout_parts as count_layout_parts,
    )
    from gnnplace.sharding.captured.layout import count_parts as count_parts
    from gnnplace.sharding.captured.layout import default_mesh as default_mesh
    from gnnplace.sharding.captured.layout import get_result_layout as get_result_layout
    from gnnplace.sharding.captured.layout import gradient_layout as gradient_layout
    from gnnplace.sharding.captured.layout import is_gathered as is_gathered
    from gnnplace.sharding.captured.layout import read_layout as read_layout
    from gnnplace.sharding.captured.layout import settle_sums as settle_sums
    from gnnplace.sharding.captured.problem import CapturedProblem as CapturedProblem
    from gnnplace.sharding.captured.problem import (
        build_captured_tables as build_captured_tables,
    )
    from gnnplace.sharding.captured.problem import (
        complete_strategy as complete_strategy,
    )
    from gnnplace.sharding.captured.problem import (
        price_captured_parts as price_captured_parts,
    )
    from gnnplace.sharding.captured.split import LayerGraph as LayerGraph
    from gnnplace.sharding.captured.split import LayerSplit as LayerSplit
    from gnnplace.sharding.captured.split import layer_graph as layer_graph
    from gnnplace.sharding.captured.split import layer_tables as layer_tables
    from gnnplace.sharding.problem import Edge as Edge
    from gnnplace.sharding.problem import ShardingProblem as ShardingProblem
    from gnnplace.sharding.problem import read_sharding as read_sharding
    from gnnplace.sharding.problem import write_sharding as write_sharding
    from gnnplace.sharding.solver.frontier import Frontier as Frontier
    from gnnplace.sharding.solver.frontier import cheapest_within as cheapest_within
    from gnnplace.sharding.solver.frontier import pareto_frontier as pareto_frontier
    from gnnplace.sharding.solver.frontier import smallest_within as smallest_within
    from gnnplace.sharding.solver.frontier import warm_frontier as warm_frontier
    from gnnplace.sharding.solver.search import ShardingResult as ShardingResult
    from gnnplace.sharding.solver.search import best_strategy as best_strategy
    from gnnplace.sharding.solver.search import warm as warm

__getattr__, __dir__ = lazy_names(__name__)
