"""``Refinement``: learning the decisions of a pass over a finished placement.

Formulation: a problem is placed by the current policy and improved by a random number of moves; the
refiner walks over the placement. At some of its decisions each candidate device is tried: the pass
is completed after it with the refiner's own decisions, and simulated. The regret of a candidate is
100 log(score with it / least score), at most ``most`` percent; the loss of a decision is the
expected regret under the softmax of the scores, as in ``CostToGo``, of which this is the same
for passes. Simulating the candidate with all else as it is (as ``Flips`` does) would be cheaper,
and was tried first: a refiner that learns from that never begins what only pays when others follow,
and refines half as well as its own prior.
Cost: decisions * devices passes a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnplace.policy.passes import Passes
from gnnplace.policy.refining import NUM_REFINING, completed, walk_again
from gnnplace.policy.refining_state import Placed, read_previous
from gnnplace.policy.rollouts import Rollouts
from gnnplace.policy.walk import WalkGraph
from gnnplace.train.data import Sample
from gnnplace.train.decisions import expected_regret
from gnnplace.train.placements import a_placement
from gnnplace.train.policy_module import PolicyModule

UNTOUCHED = 0.4  # share of placements that are refined as they were decoded
MOST_MOVES, OP_MOVES = 1_000, 300_000  # of an improvement; the latter over ops
STAYS = (0.3, 5.0)  # percent, drawn evenly in the logarithm
NOISES = (0.0, 0.0, 1.0, 3.0)  # percent


@dataclass(frozen=True, eq=False)
class Tried:
    """Decisions of one pass and what each candidate leads to. S decisions

    Attributes:
        graph: the problem.
        features: [S, D, F]
        allowed: the candidates. [S, D]
        unit: [S]
        regret: in log score, nan where not a candidate. [S, D]
    """

    graph: WalkGraph
    features: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    unit: NDArray[np.int32]
    regret: NDArray[np.float32]


def try_decisions(
    rollouts: Rollouts,
    rng: np.random.Generator,
    decisions: int,
    most: float,
    *,
    labels: bool = True,
) -> Tried | None:
    """Walks over a placement and tries the candidates of some decisions; None without any.

    Args:
        rollouts: the problem and the policy.
        rng: all randomness.
        decisions: how many are tried.
        most: greatest regret, in log score.
        labels: whether candidates are tried; otherwise all regrets are nan.
    """
    space, passes = rollouts.space, Passes(rollouts)
    untouched = rng.random() < UNTOUCHED
    moves = 0 if untouched else int(min(MOST_MOVES, OP_MOVES / space.problem.num_ops))
    state = a_placement(rollouts, rng, int(moves * rng.random() ** 2))
    placed = Placed(state.device, state.order, state.score[:1])
    if not np.isfinite(placed.score[0]):
        return None
    ground = passes.ground
    back, stay = int(rng.integers(2)), float(np.exp(rng.uniform(*np.log(STAYS))))
    previous = read_previous(ground, placed, back)
    num_units, num_devices = space.problem.num_units, space.problem.num_devices
    features = np.zeros((num_units, num_devices, NUM_REFINING), np.float32)
    masks, decided = np.zeros((num_units, num_devices), np.bool_), np.zeros(num_units, np.int32)
    forced = np.full(num_units, -1, np.int32)
    c, shared = ground.r if back else ground.c, (ground.units, ground.weights, ground.context)
    given = (c, *shared, previous, stay, float(rng.choice(NOISES)))
    walked, count = walk_again(*given, forced, features, masks, decided)
    picked = np.sort(rng.permutation(count)[:decisions])
    costs, done = np.full((len(picked), num_devices), np.nan), 0
    for k, step in enumerate(picked if labels else []):
        forced[decided[done:step]] = walked.device[decided[done:step]]
        done = int(step)
        unit = int(decided[step])
        costs[k] = completed(ground, previous, placed, stay, forced, unit, masks[step])
    if count == 0:
        return None
    least = np.nanmin(costs, axis=1, keepdims=True) if labels else np.nan
    regret = np.log(costs / least).clip(max=most)
    seen = (features[picked], masks[picked], decided[picked])
    return Tried(rollouts.graph, *seen, regret.astype(np.float32))


class Refinement(PolicyModule):
    """Learns the refiner, and the encoder with it unless that is frozen.

    Args:
        decisions: decisions of a pass that are tried.
        most: greatest regret, in log step time.
        sharpness: scores are multiplied by this.
        shared: arguments of ``PolicyModule``.
    """

    def __init__(
        self, decisions: int = 32, most: float = 0.05, sharpness: float = 1.0, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.decisions, self.most, self.sharpness = decisions, most, sharpness

    def batch_loss(self, batch: list[Sample]) -> Tensor | None:
        """Mean expected regret of the decisions tried on each problem, in percent."""
        tried = [self._tried(sample) for sample in batch if sample.space.problem.num_devices > 1]
        kept = [t for t in tried if t is not None]
        if not kept:
            return None
        states = self.policy.states([t.graph for t in kept])
        parts = states.split([len(t.graph.ops) for t in kept])
        return torch.cat([self._loss(t, part) for t, part in zip(kept, parts, strict=True)]).mean()

    def _tried(self, sample: Sample) -> Tried | None:
        return try_decisions(self.rollouts(sample), self.rng(sample), self.decisions, self.most)

    def _loss(self, tried: Tried, states: Tensor) -> Tensor:
        contexts = self.policy.refining_contexts(tried.graph, states)
        scores = self.policy.refiner(
            contexts[torch.from_numpy(tried.unit).long()],
            torch.from_numpy(tried.features),
            torch.from_numpy(tried.allowed),
        )
        return expected_regret(scores, torch.from_numpy(tried.regret), self.sharpness)
