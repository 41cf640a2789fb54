"""A chain in micro-batches and its narrow groups: a small line."""

from __future__ import annotations

from dataclasses import replace

from gnnplace.microbatching import with_microbatches
from gnnplace.placers import SearchSpace, contract
from gnnplace.search.narrow_problem import NarrowProblem, narrow_groups


def chain(num_layers: int = 24, num_devices: int = 3, scale: float = 1.0) -> SearchSpace:
    """A training chain in four micro-batches; ``scale`` times as long in seconds and bytes."""
    problem = contract.training_chain(num_layers=num_layers, num_devices=num_devices)
    graph = replace(problem.graph, size=problem.graph.size * scale)
    links = tuple(
        link.model_copy(update={"latency": link.latency * scale}) for link in problem.cluster.links
    )
    cluster = replace(problem.cluster, links=links)
    time = {kind: seconds * scale for kind, seconds in problem.time.items()}
    longer = replace(problem, graph=graph, time=time, cluster=cluster)
    return SearchSpace(with_microbatches(longer, 4))


def grouped(space: SearchSpace, count: int = 12) -> tuple[SearchSpace, NarrowProblem]:
    """The space of the narrow groups, and these."""
    narrow = narrow_groups(space, count)
    return SearchSpace(narrow.problem), narrow
