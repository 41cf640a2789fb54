"""``CostToGo``: learning from what each candidate device costs in the end.

Formulation: decode a problem under an aim; at sampled decisions s, for each candidate device d
that looks different, finish the placement with the policy's first choices and simulate it: seconds
c(s, d). The regret is r(s, d) = log c(s, d) - min over d of log c(s, d), at most ``most``. The loss
is the expected regret, sum over d of p(d | s) r(s, d): linear in the costs, so that their noise
averages out (cross-entropy to the cheapest candidate learns the noise: the policy gets worse).
A relative of AggreVaTeD (Sun et al., 2017).
The base placements are drawn with noise, half of the time under one of the best aims.
Cost: decisions * devices decodes a problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gnnplace.policy.rollouts import ORDERS, Aim, Decisions, Rollouts
from gnnplace.train.data import Sample
from gnnplace.train.policy_module import Lesson, PolicyModule, alike, take

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float64]


class CostToGo(PolicyModule):
    """Cost-to-go learning.

    Args:
        decisions: decisions sampled in each problem.
        aims: aims that each problem is decoded under.
        most: greatest regret, in log step time.
        noise: temperature of the noise in the base placements.
        hidden: size of the encoder's states.
        layers: rounds of messages; 0 leaves the graph out.
        decoder_hidden: size of the decoder's layers.
        learning_rate: of Adam, at its highest.
        steps: training steps over which the learning rate falls to a tenth.
        orders: traversal orders to decode under.
        start: folder of a policy to start from; its sizes must be those given here.
        export: folder that the policy is saved to whenever the validation improves.
    """

    def __init__(
        self,
        decisions: int = 8,
        aims: int = 2,
        most: float = 0.3,
        noise: float = 0.3,
        hidden: int = 64,
        layers: int = 3,
        decoder_hidden: int = 32,
        learning_rate: float = 1e-3,
        steps: int = 3000,
        orders: tuple[str, ...] = ORDERS,
        start: str | None = None,
        export: str | None = None,
    ) -> None:
        super().__init__(
            hidden, layers, decoder_hidden, learning_rate, steps, orders, start, export
        )
        self.decisions, self.aims = decisions, aims
        self.most, self.noise = most, noise

    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Expected regret in percent; ``values`` are regrets, 0 where not allowed."""
        return 100.0 * (functional.softmax(scores, dim=1) * values).sum(dim=1)

    def lessons(self, batch: list[Sample]) -> list[Lesson]:
        """One lesson for each problem and aim."""
        return [lesson for sample in batch for lesson in self._of_problem(sample)]

    def _of_problem(self, sample: Sample) -> list[Lesson]:
        rollouts, rng = self.rollouts(sample), self.rng(sample)
        several = [aim for aim in rollouts.aims if aim.limit > 1]
        if not several:
            return []
        ranked = [decoded.aim for decoded in rollouts.greedy() if decoded.aim.limit > 1]
        best = list(dict.fromkeys(ranked))[:3]
        pools = [best if rng.random() < 0.5 else several for _ in range(self.aims)]
        chosen = [pool[int(rng.integers(len(pool)))] for pool in pools]
        return [self._under(rollouts, aim, rng) for aim in chosen]

    def _under(self, rollouts: Rollouts, aim: Aim, rng: np.random.Generator) -> Lesson:
        base = rollouts.walk(aim, noise=rollouts.noise(rng, self.noise * rng.random()))
        seen = rollouts.watch(aim, base.unit_device)
        open_ = np.flatnonzero(seen.allowed.sum(axis=1) > 1)
        picked = np.sort(rng.permutation(open_)[: self.decisions])
        same = alike(take(seen, picked))
        regret = np.zeros((len(picked), seen.allowed.shape[1]))
        for k, step in enumerate(picked):
            regret[k] = self._regret(rollouts, aim, seen, int(step), same[k])
        return Lesson(rollouts, aim, take(seen, picked), regret.astype(np.float32))

    def _regret(
        self, rollouts: Rollouts, aim: Aim, seen: Decisions, step: int, same: NDArray[np.int64]
    ) -> FloatArray:
        """Log step time of each candidate above the best, 0 where not allowed. [D]"""
        prefix = np.full(rollouts.space.problem.num_units, -1, dtype=np.int32)
        prefix[seen.unit[:step]] = seen.chosen[:step]
        cost = np.full(len(same), np.inf)
        for d in np.unique(same[same >= 0]):
            prefix[seen.unit[step]] = d
            decoded = rollouts.finish(aim, rollouts.walk(aim, forced=prefix))
            cost[same == d] = np.log(np.clip(decoded.score, 1e-300, 1e300))
        return np.where(same >= 0, np.minimum(cost - cost.min(), self.most), 0.0)
