"""What the refiner sees: the candidates' features at every decision of one pass.

A problem is placed by the current policy and improved by a random number of moves; the refiner then
walks over that placement once, forwards or backwards, and its decisions are recorded. Cost: one
pass, and the moves before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.refine.passes import Passes
from gnnplace.policy.refine.refining import NUM_REFINING, walk_again
from gnnplace.policy.refine.refining_state import Placed, read_previous
from gnnplace.train.placements import a_placement

UNTOUCHED = 0.4  # share of placements that are refined as they were decoded
MOST_MOVES, OP_MOVES = 1_000, 300_000  # of an improvement; the latter over ops
STAYS = (0.3, 5.0)  # percent, drawn evenly in the logarithm
NOISES = (0.0, 0.0, 1.0, 3.0)  # percent


@dataclass(frozen=True, eq=False)
class Seen:
    """Decisions of one pass. S decisions

    Attributes:
        features: [S, D, F]
        allowed: the candidates. [S, D]
    """

    features: NDArray[np.float32]
    allowed: NDArray[np.bool_]


def watch_pass(rollouts: Rollouts, rng: np.random.Generator) -> Seen | None:
    """Walks over a placement that is drawn at random; None where the refiner decides nothing.

    Args:
        rollouts: the problem and the policy.
        rng: all randomness.
    """
    space, passes = rollouts.space, Passes(rollouts)
    placed = _drawn(rollouts, rng)
    if not np.isfinite(placed.score[0]):
        return None
    ground = passes.ground
    back, stay = int(rng.integers(2)), float(np.exp(rng.uniform(*np.log(STAYS))))
    previous = read_previous(ground, placed, back)
    num_units, num_devices = space.problem.num_units, space.problem.num_devices
    features = np.zeros((num_units, num_devices, NUM_REFINING), np.float32)
    allowed, decided = np.zeros((num_units, num_devices), np.bool_), np.zeros(num_units, np.int32)
    forced = np.full(num_units, -1, np.int32)
    graph = ground.r if back else ground.c
    policy = (ground.units, ground.weights)
    noise = float(rng.choice(NOISES))
    outputs = (forced, features, allowed, decided)
    count = walk_again(graph, *policy, previous, stay, noise, *outputs)[1]
    return Seen(features[:count], allowed[:count]) if count else None


def _drawn(rollouts: Rollouts, rng: np.random.Generator) -> Placed:
    untouched = rng.random() < UNTOUCHED
    moves = 0 if untouched else int(min(MOST_MOVES, OP_MOVES / rollouts.space.problem.num_ops))
    state = a_placement(rollouts, rng, int(moves * rng.random() ** 2))
    return Placed(state.device, state.order, state.score[:1])
