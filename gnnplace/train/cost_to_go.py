"""``CostToGo``: learning from what each candidate device costs in the end.

Formulation: decode a problem under an aim; at sampled decisions s, for each of the best-scored
candidate devices d that look different, finish the placement with the policy's first choices and
simulate it: seconds c(s, d). The regret is r(s, d) = log c(s, d) - min over d of log c(s, d), at
most ``most``. The loss is the expected regret, sum over d of p(d | s) r(s, d). A relative of
AggreVaTeD (Sun et al., 2017). Three things keep it from getting worse with time:

* It is linear in the costs, so that their noise averages out; cross-entropy to the cheapest
  candidate learns the noise.
* p is the softmax of the scores times ``sharpness``: close to the first choice, which is what will
  be decoded. A softer p is improved by making all scores larger, which drowns everything else.
* Decisions are sampled by how open they are, 1 - max over d of p(d | s); others teach nothing.

The base placements are drawn with little noise, mostly under one of the three best aims.
Cost: decisions * candidates decodes a problem.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Decisions, Rollouts
from gnnplace.train.data import Sample
from gnnplace.train.decisions import DecisionModule, Lesson, alike, expected_regret, take

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float64]


class CostToGo(DecisionModule):
    """Cost-to-go learning.

    Args:
        decisions: decisions sampled in each problem.
        candidates: best-scored devices that are tried at each decision.
        aims: aims that each problem is decoded under.
        sharpness: scores are multiplied by this.
        most: greatest regret, in log step time.
        noise: temperature of the noise in the base placements.
        shared: arguments of ``PolicyModule``.
    """

    def __init__(
        self,
        decisions: int = 8,
        candidates: int = 3,
        aims: int = 2,
        sharpness: float = 4.0,
        most: float = 0.3,
        noise: float = 0.2,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.decisions, self.candidates, self.aims = decisions, candidates, aims
        self.sharpness, self.most, self.noise = sharpness, most, noise

    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Expected regret in percent; ``values`` are regrets, nan where not tried."""
        return expected_regret(scores, values, self.sharpness)

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
        pools = [best if rng.random() < 0.8 else several for _ in range(self.aims)]
        chosen = [pool[int(rng.integers(len(pool)))] for pool in pools]
        return [self._under(rollouts, aim, rng) for aim in chosen]

    def _under(self, rollouts: Rollouts, aim: Aim, rng: np.random.Generator) -> Lesson:
        base = rollouts.walk(aim, noise=rollouts.noise(rng, self.noise * rng.random()))
        seen = rollouts.watch(aim, base.unit_device)
        same = alike(seen)
        # Of candidates that look the same the first stands for all.
        first = same == np.arange(same.shape[1])
        scores = np.where(first, self.scores(rollouts, aim, seen), -np.inf)
        picked = self._pick(scores, rng)
        regret = np.full((len(picked), seen.allowed.shape[1]), np.nan)
        for k, step in enumerate(picked):
            best = np.argsort(-scores[step])[: self.candidates]
            tried = best[np.isfinite(scores[step, best])]
            regret[k, tried] = self._regret(rollouts, aim, seen, int(step), tried)
        return Lesson(rollouts, aim, take(seen, picked), regret.astype(np.float32))

    def _pick(self, scores: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
        """Decisions drawn without replacement by how open they are, ascending."""
        sharp = np.exp(self.sharpness * (scores - scores.max(axis=1, keepdims=True)))
        openness = 1.0 - 1.0 / sharp.sum(axis=1)
        possible = np.flatnonzero(openness > 1e-3)
        count = min(self.decisions, len(possible))
        if count == 0:
            return possible
        share = openness[possible] / openness[possible].sum()
        return np.sort(rng.choice(possible, count, replace=False, p=share))

    def _regret(
        self, rollouts: Rollouts, aim: Aim, seen: Decisions, step: int, tried: NDArray[np.int64]
    ) -> FloatArray:
        """Log step time of each device tried above the best of them. [len(tried)]"""
        prefix = np.full(rollouts.space.problem.num_units, -1, dtype=np.int32)
        prefix[seen.unit[:step]] = seen.chosen[:step]
        cost = np.empty(len(tried))
        for k, d in enumerate(tried):
            prefix[seen.unit[step]] = d
            decoded = rollouts.finish(aim, rollouts.walk(aim, forced=prefix))
            cost[k] = np.log(np.clip(decoded.score, 1e-300, 1e300))
        return np.minimum(cost - cost.min(), self.most)
