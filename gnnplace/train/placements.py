"""Placements to learn from: decodes of the policy in training, with some moves after."""

from __future__ import annotations

import numpy as np

from gnnplace.placers.search.moves import neighbourhood, seed_kernel
from gnnplace.policy.decode.rollouts import Decoded, Rollouts
from gnnplace.policy.search.moves import Habit, State, search_kernel, start_state

STARTS = 4  # best decodes that one is drawn from
HABIT = Habit(shifts=0.1, loose=0.05)


def a_decode(rollouts: Rollouts, rng: np.random.Generator) -> Decoded:
    """One of the best few decodes."""
    decoded = rollouts.greedy()[:STARTS]
    return decoded[int(rng.integers(len(decoded)))]


def a_placement(rollouts: Rollouts, rng: np.random.Generator, moves: int) -> State:
    """One of the best few decodes after moves, at a temperature drawn at random."""
    space, start = rollouts.space, a_decode(rollouts, rng)
    state = start_state(space, start.unit_device, start.order)
    if moves == 0:
        return state
    seed_kernel(int(rng.integers(2**31)))
    heat = state.score[0] * 10.0 ** rng.uniform(-4, -2)
    around = neighbourhood(space)
    search_kernel(space.compiled, space.reversed, around, HABIT, state, heat, moves)
    return state
