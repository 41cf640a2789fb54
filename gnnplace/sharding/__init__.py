"""The sharding room: which way every layer is split, exactly."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.sharding.answers import FEWEST as FEWEST
    from gnnplace.sharding.answers import MEMORY as MEMORY
    from gnnplace.sharding.answers import TIME as TIME
    from gnnplace.sharding.answers import AnswerTables as AnswerTables
    from gnnplace.sharding.answers import GoalAnswer as GoalAnswer
    from gnnplace.sharding.answers import SplitGoal as SplitGoal
    from gnnplace.sharding.answers import SplitOptions as SplitOptions
    from gnnplace.sharding.answers import limited_split as limited_split
    from gnnplace.sharding.answers import shard_for as shard_for
    from gnnplace.sharding.answers import shard_frontier as shard_frontier
    from gnnplace.sharding.answers import shard_tables as shard_tables
    from gnnplace.sharding.problem import Edge as Edge
    from gnnplace.sharding.problem import ShardingProblem as ShardingProblem
    from gnnplace.sharding.problem import read_sharding as read_sharding
    from gnnplace.sharding.solver.frontier import Frontier as Frontier
    from gnnplace.sharding.solver.frontier import cheapest_within as cheapest_within
    from gnnplace.sharding.solver.frontier import pareto_frontier as pareto_frontier
    from gnnplace.sharding.solver.frontier import smallest_within as smallest_within
    from gnnplace.sharding.solver.frontier import warm_frontier as warm_frontier
    from gnnplace.sharding.solver.search import ShardingResult as ShardingResult
    from gnnplace.sharding.solver.search import best_strategy as best_strategy
    from gnnplace.sharding.solver.search import warm as warm

__getattr__, __dir__ = lazy_names(__name__)
