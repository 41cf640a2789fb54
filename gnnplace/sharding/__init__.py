"""The sharding room: which way every layer is split, exactly."""

from gnnplace.sharding.frontier import Frontier as Frontier
from gnnplace.sharding.frontier import cheapest_within as cheapest_within
from gnnplace.sharding.frontier import pareto_frontier as pareto_frontier
from gnnplace.sharding.frontier import warm_frontier as warm_frontier
from gnnplace.sharding.problem import Edge as Edge
from gnnplace.sharding.problem import ShardingProblem as ShardingProblem
from gnnplace.sharding.problem import read_sharding as read_sharding
from gnnplace.sharding.search import ShardingResult as ShardingResult
from gnnplace.sharding.search import best_strategy as best_strategy
from gnnplace.sharding.search import warm as warm
