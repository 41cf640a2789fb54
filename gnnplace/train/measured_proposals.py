"""Placements worth measuring: what a policy makes of a problem, and of the problem as it might be.

Of each problem: the policy's first choices under all its aims, the best refined by its passes,
samples of its decisions, and a search from the best of these. A number of
moves bounds the search, not a time, so that the same policy and seed propose the same again: what a
run that was stopped had measured is found in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnplace.placers import SearchSpace
from gnnplace.placers.search.moves import neighbourhood, seed_kernel
from gnnplace.policy.decode.rollouts import Decoded, Rollouts
from gnnplace.policy.network.model import PlacementPolicy
from gnnplace.policy.refine.passes import Passes
from gnnplace.policy.search.moves import Habit, State, search_kernel, start_state
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement
from gnnplace.simulation import Simulator, finished_placement

HABITS = (Habit(0.1, 0.1), Habit(0.2, 0.1), Habit(0.3, 0.0))
"""Those of `gnnplace.policy.search.anytime`: cold with new orders, warm, hot in a fixed order."""
HOTTEST, COLDEST = (0.003, 0.01, 0.03), 1e-4
"""Temperatures at a search's start, by habit, and at its end; of the step time."""
STAGES = 8  # of cooling
TEMPERATURE = 1.0  # of the samples
KEPT = 3  # first choices that are proposed as they are, and refined


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        samples: The number of samples of the policy's decisions, for each problem.
        moves: The number of moves of each search.
        variants: Problems as they might be, beside the one that is believed.
    """

    samples: int = 8
    moves: int = 2000
    variants: int = 2


def proposals(
    policy: PlacementPolicy,
    orders: tuple[str, ...],
    problem: Problem,
    rng: np.random.Generator,
    effort: Effort,
) -> list[Placement]:
    """Placements of one problem by a policy; they all fit it.

    Args:
        policy: Whose choices they are.
        orders: Traversal orders to decode under.
        problem: What is placed.
        rng: The rng of samples and moves.
        effort: How much is tried.
    """
    rollouts = Rollouts(SearchSpace(problem), policy, orders)
    passes, ranked = Passes(rollouts), rollouts.greedy()
    found = ranked[:KEPT] + [passes.refined(decoded) for decoded in ranked[:KEPT]]
    found += [_sampled(rollouts, ranked, rng) for _ in range(effort.samples)]
    best = min(found, key=lambda decoded: decoded.score)
    states = [_moved(rollouts, best, k, rng, effort.moves) for k in range(len(HABITS))]
    space = rollouts.space
    made = [(space.spread(decoded.unit_device), decoded.order) for decoded in found]
    made += [(state.best_device, state.best_order) for state in states]
    placements = [finished_placement(problem, d, o, placer="learned") for d, o in made]
    return distinct([p for p in placements if _runs(space.simulator, p)])


def _sampled(rollouts: Rollouts, ranked: list[Decoded], rng: np.random.Generator) -> Decoded:
    """A draw from the policy's decisions under one of its best aims."""
    aim = ranked[int(rng.integers(min(2 * KEPT, len(ranked))))].aim
    return rollouts.finish(aim, rollouts.walk(aim, noise=rollouts.noise(rng, TEMPERATURE)))


def _moved(
    rollouts: Rollouts, start: Decoded, kind: int, rng: np.random.Generator, moves: int
) -> State:
    """Moves from a placement while it cools."""
    space = rollouts.space
    state = start_state(space, start.unit_device, start.order)
    seed_kernel(int(rng.integers(2**31)))
    around = neighbourhood(space)
    for heat in np.geomspace(HOTTEST[kind], COLDEST, STAGES):
        search_kernel(
            space.compiled,
            space.reversed,
            around,
            HABITS[kind],
            state,
            float(heat * state.score[1]),
            max(1, moves // STAGES),
        )
    return state


def distinct(placements: Sequence[Placement]) -> list[Placement]:
    """The first of each that are the same."""
    return list({key_of(placement): placement for placement in reversed(placements)}.values())[::-1]


def key_of(placement: Placement) -> bytes:
    """Devices and sequences of a placement."""
    parts = (placement.device, *(placement.sequence or ()))
    return b"|".join(part.tobytes() for part in parts)


def _runs(simulator: Simulator, placement: Placement) -> bool:
    order = simulator.order_of(placement)
    return simulator.run(placement.device, order).feasible
