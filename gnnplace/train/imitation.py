"""``Imitation``: learning to make the decisions of the best placement known.

Formulation: the teacher is the best of the policy's own samples under one aim and of the heuristic
constructions, by simulation. Where it is better than the policy's first choice under an aim by
more than ``margin``, the policy follows the teacher's decisions under that aim (with as many
devices as the teacher uses) and learns each by cross-entropy, shared equally among candidates that
look the same, weighted by the logarithm of the gain up to ``stake``.
Cost: ``samples`` decodes a problem, and the heuristics.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnnplace.placers import Contiguous, Etf, HeftContention, Interleaved, Placer
from gnnplace.policy.rollouts import ORDERS, Aim, Decoded, Rollouts
from gnnplace.train.data import Sample
from gnnplace.train.policy_module import Lesson, PolicyModule, alike, take

TEACHERS: tuple[type[Placer], ...] = (Contiguous, Interleaved, HeftContention, Etf)


class Imitation(PolicyModule):
    """Imitation of the best placement known.

    Args:
        samples: samples of the policy in each problem.
        noise: temperature of the samples.
        margin: log step time by which the teacher must be better.
        stake: log step time from which on a gain has full weight.
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
        samples: int = 24,
        noise: float = 0.5,
        margin: float = 0.002,
        stake: float = 0.05,
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
        self.samples, self.noise, self.margin, self.stake = samples, noise, margin, stake

    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy in nats; ``values`` are the teacher's shares times the weight."""
        logs = functional.log_softmax(scores, dim=1).masked_fill(scores == -torch.inf, 0.0)
        return -(values * logs).sum(dim=1)

    def lessons(self, batch: list[Sample]) -> list[Lesson]:
        """One lesson for each problem whose teacher is better than the policy."""
        made = [self._of_problem(sample) for sample in batch]
        return [lesson for lesson in made if lesson is not None]

    def _of_problem(self, sample: Sample) -> Lesson | None:
        rollouts, rng = self.rollouts(sample), self.rng(sample)
        ranked = [decoded for decoded in rollouts.greedy() if decoded.aim.limit > 1]
        if not ranked:
            return None
        best = ranked[: min(3, len(ranked))]
        drawn = [
            rollouts.sample(best[int(rng.integers(len(best)))].aim, rng, self.noise)
            for _ in range(self.samples)
        ]
        teacher = min(
            drawn + heuristics(rollouts, best[0].aim, rng), key=lambda decoded: decoded.score
        )
        gain = float(np.log(ranked[0].score / teacher.score))
        if gain < self.margin:
            return None
        aim = Aim(teacher.aim.order, _devices_used(teacher), teacher.aim.rounds)
        return _lesson(rollouts, aim, teacher, min(1.0, gain / self.stake))


def heuristics(rollouts: Rollouts, aim: Aim, rng: np.random.Generator) -> list[Decoded]:
    """The heuristics' placements as if decoded under ``aim``."""
    space, found = rollouts.space, []
    first = space.unit_ops[1][space.unit_ops[0][:-1]]
    for kind in TEACHERS:
        if kind().supports(space.problem) is None:
            placed = kind().search(space, rng, 0.0)
            score = space.score(placed.device, placed.order)
            found.append(Decoded(score, placed.device[first].copy(), placed.order, aim))
    return found


def _devices_used(decoded: Decoded) -> int:
    return len(np.unique(decoded.unit_device))


def _lesson(rollouts: Rollouts, aim: Aim, teacher: Decoded, weight: float) -> Lesson | None:
    seen = rollouts.watch(aim, teacher.unit_device)
    rows = np.arange(len(seen.chosen))
    open_ = (seen.allowed.sum(axis=1) > 1) & seen.allowed[rows, seen.chosen]
    if not open_.any():
        return None
    seen = take(seen, np.flatnonzero(open_))
    same = alike(seen)
    target = (same == same[np.arange(len(same)), seen.chosen][:, None]).astype(np.float32)
    target /= target.sum(axis=1, keepdims=True)
    return Lesson(rollouts, aim, seen, weight * target)
