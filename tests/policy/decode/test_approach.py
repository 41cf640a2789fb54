from __future__ import annotations

import numpy as np
import pytest

from gnnplace.graph.jit import kernel
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.approach import approach
from gnnplace.policy.decode.decoder_state import start_state
from gnnplace.policy.decode.ready_queue import start_queue
from gnnplace.policy.decode.rollouts import Rollouts
from tests.policy.problems import constrained_problem, trained_like


@kernel
def approached(walk, order, by_time):
    """What a walk knows at its beginning, when all that comes has been asked for."""
    state, queue = start_state(walk), start_queue(walk, order, by_time)
    queue.spare[1] = min(3, queue.size[0])
    for k in range(queue.spare[1]):
        queue.due[k] = queue.waiting[k]
    for k in range(len(order)):
        approach(walk, state, queue, order, k, by_time)
    return state.finish, state.device, queue.missing


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
