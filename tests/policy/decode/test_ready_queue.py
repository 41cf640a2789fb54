from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.graph.jit import kernel
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode import decoder_state
from gnnplace.policy.decode.decoder_state import start_state
from gnnplace.policy.decode.ready_queue import (
    EARLY,
    IN_TIME,
    approach,
    earliest_start,
    next_op,
    release,
    start_queue,
)
from gnnplace.policy.decode.rollouts import Rollouts
from tests.policy.problems import constrained_problem, trained_like
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
    inputs = [
        set(walk.before_op[walk.before_offset[i] : walk.before_offset[i + 1]])
        for i in left
    ]
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
        release(queue, op, state.booked.finish[op])
        left.remove(op)
        done.add(op)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_early_takes_the_ready_op_that_can_start_first(seed):
    for walk, state, rank, ready, op in steps(seed, EARLY):
        starts = {i: (earliest_start(walk, state, i), rank[i]) for i in ready}
        assert op in ready
        assert starts[op] == min(starts.values())


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_in_time_takes_the_op_whose_inputs_are_finished_first(seed):
    for walk, state, rank, ready, op in steps(seed, IN_TIME):
        inputs = {
            i: walk.before_op[walk.before_offset[i] : walk.before_offset[i + 1]]
            for i in ready
        }
        known = {
            i: (max(state.booked.finish[inputs[i]], default=0.0), rank[i])
            for i in ready
        }
        assert known[op] == min(known.values())


@kernel
def approached(walk, order, by_time):
    """What a walk knows at its beginning, when all that comes has been asked for."""
    state, queue = start_state(walk), start_queue(walk, order, by_time)
    queue.spare[1] = min(3, queue.size[0])
    for k in range(queue.spare[1]):
        queue.due[k] = queue.waiting[k]
    for k in range(len(order)):
        approach(walk, state, queue, order, k, by_time)
    return state.booked.finish, state.device, queue.missing


@pytest.mark.parametrize("by_time", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_asked_for_changes_nothing(seed, by_time):
    rollouts = Rollouts(SearchSpace(constrained_problem(seed)), trained_like())
    walk, order = rollouts.graph.forward, rollouts.order("upward-rank")
    finish, device, missing = approached(walk, order, by_time)
    assert (finish == -1.0).all()
    assert (device == -1).all()
    inputs = np.diff(walk.before_offset)
    assert missing.tolist() == (inputs.tolist() if by_time else [])
