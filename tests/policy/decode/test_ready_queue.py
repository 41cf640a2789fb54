from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode import decoder_state
from gnnplace.policy.decode.ready_queue import (
    EARLY,
    IN_TIME,
    earliest_start,
    next_op,
    release,
    start_queue,
)
from gnnplace.policy.decode.rollouts import Rollouts
from tests.policy.problems import trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = trained_like()


def steps(seed, rule):
    """Walks a random problem on random devices; ops ready and the op taken at each step."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(3, 20)), int(rng.integers(2, 5)))
    rollouts = Rollouts(SearchSpace(problem), POLICY)
    walk, order = rollouts.graph.forward, rollouts.order("upward-rank")
    state, queue = decoder_state.start_state(walk), start_queue(walk, order, True)
    left, done = set(range(len(order))), set()
    inputs = [set(walk.before[walk.before_offset[i] : walk.before_offset[i + 1]]) for i in left]
    rank = np.argsort(order)
    while left:
        ready = sorted(i for i in left if inputs[i] <= done)
        op = int(next_op(walk, state, queue, order, rule))
        yield walk, state, rank, ready, op
        unit = walk.unit[op]
        if state.device[unit] < 0:
            choices = np.flatnonzero(np.isfinite(walk.unit_time[unit]))
            decoder_state.decide(walk, state, unit, int(rng.choice(choices)))
        decoder_state.book(walk, state, op)
        release(queue, op, state.finish[op])
        left.remove(op)
        done.add(op)


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_early_takes_the_ready_op_that_can_start_first(seed):
    for walk, state, rank, ready, op in steps(seed, EARLY):
        starts = {i: (earliest_start(walk, state, i), rank[i]) for i in ready}
        assert op in ready
        assert starts[op] == min(starts.values())


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_in_time_takes_the_op_whose_inputs_are_finished_first(seed):
    for walk, state, rank, ready, op in steps(seed, IN_TIME):
        inputs = {i: walk.before[walk.before_offset[i] : walk.before_offset[i + 1]] for i in ready}
        known = {i: (max(state.finish[inputs[i]], default=0.0), rank[i]) for i in ready}
        assert known[op] == min(known.values())
