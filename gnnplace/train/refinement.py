"""``Refinement``: learning what it is worth to move a unit, in the middle of a pass over a placement.

Formulation: a problem is placed by the current policy and improved by a random number of moves; the
refiner then walks over the placement. At some of its decisions, with all units decided so far where
the pass put them and all others where they were, each candidate device d of the unit is simulated:
the gain g(d) = 100 log(c(previous device) / c(d)), at most ``most`` percent either way. The score
differences to the previous device learn g by a Huber loss, and the choice by expected regret, since
what counts is that the best is chosen. Labels are exact and depend on nothing that comes later, as
in ``Flips``; states are those that the refiner's own passes meet.
Cost: decisions * devices simulations and list schedules a problem.

Validation places held-out problems by decodes and passes, as ``LearnedPlacer`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gnnplace.placers.annealing import neighbourhood, seed_kernel
from gnnplace.policy.guided import (
    Habit,
    State,
    flip_scores,
    in_either_order,
    search_kernel,
    start_state,
)
from gnnplace.policy.passes import Passes
from gnnplace.policy.refining import NUM_REFINING, Placed, Previous, read_previous, completed, walk_again
from gnnplace.policy.rollouts import Decoded, Rollouts
from gnnplace.policy.walk import WalkGraph
from gnnplace.train.data import Sample
from gnnplace.train.policy_module import Lesson, PolicyModule

STARTS = 4  # best decodes that a state starts from
UNTOUCHED = 0.4  # share of placements that are refined as they were decoded
MOST_MOVES, OP_MOVES = 1_000, 300_000  # moves before a state is looked at; the latter over ops
STAYS = (0.3, 5.0)  # percent, drawn evenly in the logarithm
NOISES = (0.0, 0.0, 1.0, 3.0)  # percent
SLOPE = 1.0  # percent up to which the Huber loss is quadratic
SOFT = 0.5  # percent of score by which the odds of a choice fall by e


@dataclass(frozen=True, eq=False)
class Seen:
    """Decisions of one pass and what the candidates are worth. S decisions

    Attributes:
        graph: the problem.
        features: [S, D, F]
        allowed: the candidates. [S, D]
        unit: [S]
        gain: percent above the previous device, nan where not a candidate. [S, D]
    """

    graph: WalkGraph
    features: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    unit: NDArray[np.int32]
    gain: NDArray[np.float32]


def a_placement(rollouts: Rollouts, rng: np.random.Generator) -> State:
    """A placement such as passes meet: a decode, mostly after some guided moves."""
    space, policy = rollouts.space, rollouts.policy
    decoded = rollouts.greedy()[:STARTS]
    start = decoded[int(rng.integers(len(decoded)))]
    state = start_state(space, start.unit_device, start.order)
    if rng.random() < UNTOUCHED:
        return state
    seed_kernel(int(rng.integers(2**31)))
    moves = int(min(MOST_MOVES, OP_MOVES / space.problem.num_ops) * rng.random() ** 2)
    habit = Habit(candidates=8, proposed=0.5, shifts=0.1, loose=0.05)
    heat = state.score[0] * 10.0 ** rng.uniform(-4, -2)
    weights, context = policy.moves.weights(), rollouts.unit_contexts
    h = neighbourhood(space)
    search_kernel(space.compiled, space.reversed, h, weights, context, habit, state, heat, moves)
    return state


def see_pass(
    rollouts: Rollouts, rng: np.random.Generator, decisions: int, most: float
) -> Seen | None:
    """Walks over a placement and tries the candidates of some decisions; None without any."""
    space, num_units = rollouts.space, rollouts.space.problem.num_units
    state, passes = a_placement(rollouts, rng), Passes(rollouts)
    placed = Placed(state.device, state.order, state.score[:1])
    back = int(rng.integers(2))
    c, r = space.compiled, space.reversed
    previous = read_previous(c, r, passes.neighbourhood, placed, back)
    num_devices = space.problem.num_devices
    features = np.zeros((num_units, num_devices, NUM_REFINING), np.float32)
    masks, decided = np.zeros((num_units, num_devices), np.bool_), np.zeros(num_units, np.int32)
    stay = float(np.exp(rng.uniform(*np.log(STAYS))))
    net = (passes.weights, rollouts.refining_contexts)
    nothing = np.full(num_units, -1, np.int32)
    walked, count = walk_again(
        r if back else c,
        passes.units,
        previous,
        *net,
        stay,
        float(rng.choice(NOISES)),
        nothing,
        features,
        masks,
        decided,
    )
    if count == 0:
        return None
    picked = np.sort(rng.permutation(count)[:decisions])
    gain, forced, done = np.empty((len(picked), num_devices)), nothing, 0
    for k, step in enumerate(picked):
        forced[decided[done:step]] = walked.device[decided[done:step]]
        done = int(step)
        costs = completed(
            c, r, passes.neighbourhood, passes.units, *net, previous, placed, stay,
            forced, int(decided[step]), masks[step],
        )
        gain[k] = (100.0 * np.log(placed.score[0] / costs)).clip(-most, most)
    return Seen(
        rollouts.graph, features[picked], masks[picked], decided[picked], gain.astype(np.float32)
    )


class Refinement(PolicyModule):
    """Learns the refiner, and the encoder with it unless that is frozen.

    Args:
        decisions: decisions of a pass that are tried.
        most: greatest gain or loss, in percent.
        weight: of the Huber loss beside the expected regret.
        shared: arguments of ``PolicyModule``.
    """

    def __init__(
        self, decisions: int = 48, most: float = 10.0, weight: float = 0.3, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.decisions, self.most, self.weight = decisions, most, weight

    def lessons(self, batch: list[Sample]) -> list[Lesson]:
        """None: what is learned here are no decisions of a decode."""
        return []

    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Loss of each decision; ``values`` are gains in percent, nan where not allowed. [S]"""
        tried = torch.isfinite(values)
        gain = values.nan_to_num(0.0)
        best = gain.max(dim=1, keepdim=True).values
        odds = functional.softmax((scores / SOFT).masked_fill(~tried, -torch.inf), dim=1)
        regret = (odds * (best - gain)).sum(dim=1)
        previous = (scores * self._previous).sum(dim=1, keepdim=True)
        error = functional.smooth_l1_loss(
            (scores - previous).masked_fill(~tried, 0.0), gain, reduction="none", beta=SLOPE
        )
        return regret + self.weight * error.sum(dim=1)
