"""The critical path, against a longest path over all chains of waiting."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from hypothesis import given, settings

from gnnplace.explaining.placements.causes import Causes
from gnnplace.explaining.placements.critical_path import (
    COMPUTING,
    TRANSFER,
    find_critical_path,
)
from tests.explaining.placements.steps import random_step
from tests.random_problems import seeds


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_pieces_lie_end_to_end(seed):
    """From zero to the step time, and each piece is what the simulation did then."""
    problem, step = random_step(seed)
    pieces = find_critical_path(Causes(problem, step))
    assert pieces[0].begin == 0.0
    assert pieces[-1].end == step.step_time
    assert all(a.end == b.begin for a, b in pairwise(pieces))
    sent = {
        (int(problem.graph.producer[k]), int(a), int(b), float(s))
        for k, a, b, s in zip(
            step.transfers.tensor,
            step.transfers.source,
            step.transfers.target,
            step.transfers.start,
            strict=True,
        )
    }
    for piece in pieces:
        if piece.kind == COMPUTING:
            assert (piece.begin, piece.end) == (
                step.start[piece.op],
                step.finish[piece.op],
            )
        if piece.kind == TRANSFER:
            assert (piece.op, piece.device, piece.target, piece.begin) in sent


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_no_chain_is_longer(seed):
    """With links that never queue it is as long as the longest of all chains, tried one by one."""
    problem, step = random_step(seed, num_ops=8, plain=True)
    graph, moved = problem.graph, step.transfers
    if (
        len(moved.start)
        and (moved.start > step.finish[graph.producer[moved.tensor]]).any()
    ):
        return  # some message waits for a link
    seconds = step.finish - step.start
    placed = step.device[step.order]

    @cache
    def longest(op: int) -> float:
        ways = [0.0]
        mine = step.order[placed == step.device[op]].tolist()
        ways += [longest(other) for other in mine[: mine.index(op)]]
        for k in range(graph.num_tensors):
            if op in graph.consumers(k):
                source = int(graph.producer[k])
                ends = step.device[source], step.device[op]
                apart = ends[0] != ends[1]
                carried = (
                    problem.cluster.latency[ends]
                    + graph.size[k] / problem.cluster.bandwidth[ends]
                )
                ways.append(longest(source) + (carried if apart else 0.0))
        return max(ways) + seconds[op]

    pieces = find_critical_path(Causes(problem, step))
    assert np.isclose(
        sum(p.seconds for p in pieces), max(map(longest, range(graph.num_ops)))
    )
