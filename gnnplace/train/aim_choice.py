"""``AimChoice``: learning which aims to decode a problem under.

Formulation: a problem is decoded under all its aims by the current policy; an aim that is d worse
than the best (in log step time) is right with weight exp(-d / ``TOLERANCE``), normalised over the
aims. ``AimNet`` learns by cross-entropy with those weights. Labels are exact and new on every
problem. Nothing else of the policy changes, so that other stages may come before or after.

Validation, on held-out families: ``val/ratio`` is the geometric mean of the best of the first few
aims over the best of all: what it costs not to try the others.
Cost: a decode an aim.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnplace.policy.network import aim_features, global_features
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.learner import BETTER, PolicyModule, check_least

TOLERANCE = 0.01  # log step time that makes an aim e times less right
WEIGHT_DECAY = 1e-2


class AimChoice(PolicyModule):
    """Learns ``AimNet``.

    Args:
        tried: number of aims that validation tries.
        shared: the arguments of ``PolicyModule``.
    """

    def __init__(self, tried: int = 6, **shared: Any) -> None:
        super().__init__(**shared)
        check_least(tried=(tried, 1))
        self.tried = tried
        self.policy.requires_grad_(False)
        self.policy.aims.requires_grad_(True)

    def configure_optimizers(self) -> Any:
        """Adam with weight decay and a cosine schedule down to a tenth."""
        parameters = self.policy.aims.parameters()
        optimizer = torch.optim.AdamW(parameters, self.learning_rate, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def batch_loss(self, batch: list[ProblemSample]) -> Tensor | None:
        """Cross-entropy of the problems with several devices; None without any."""
        decoded = [self._decoded(s) for s in batch if s.space.problem.num_devices > 1]
        if not decoded:
            return None
        if self.global_step == 0:
            self._standardise(torch.stack([problem for problem, _, _ in decoded]))
        return self.loss(decoded)

    def loss(self, decoded: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Mean cross-entropy of what ``_decoded`` gives of some problems."""
        losses = []
        for problem, aims, worse in decoded:
            right = torch.softmax(-worse / TOLERANCE, dim=0)
            losses.append(-(right * torch.log_softmax(self.policy.aims(problem, aims), 0)).sum())
        return torch.stack(losses).mean()

    def _decoded(self, sample: ProblemSample) -> tuple[Tensor, Tensor, Tensor]:
        """What ``AimNet`` sees of a problem and its aims, and how much worse each aim is."""
        rollouts = self.rollouts(sample)
        scores = [min(d.score for d in rollouts.widened(aim)) for aim in rollouts.aims]
        worse = np.log(np.array(scores) / min(scores)).astype(np.float32)
        aims = aim_features(rollouts.aims, sample.space.problem.num_devices)
        known = global_features(rollouts.graph)
        return torch.from_numpy(known), torch.from_numpy(aims), torch.from_numpy(worse)

    def _standardise(self, problems: Tensor) -> None:
        for policy in (self.policy, self.average):
            policy.aims.mean.copy_(problems.mean(dim=0))
            policy.aims.spread.copy_(problems.std(dim=0) + 0.05)

    def validation_step(self, batch: list[ProblemSample], batch_index: int) -> None:
        """Tries the first few aims of each problem, and all."""
        for sample in batch:
            if sample.space.problem.num_devices > 1:
                problem, aims, worse = self._decoded(sample)
                ranked = (-self.average.aims(problem, aims)).argsort(stable=True)
                self.ratios.append(float(worse[ranked[: self.tried]].min()))

    def quality(self) -> tuple[float, float]:
        """Geometric mean of the ratios, and the share where nothing was lost."""
        lost = np.array(self.ratios or [np.nan])
        sums = [lost.sum(), float((lost < -BETTER).sum()), len(lost)]
        here = torch.tensor(sums, dtype=torch.float64, device=self.device)
        total, same, count = self.trainer.strategy.reduce(here, reduce_op="sum").tolist()
        return float(np.exp(total / count)), same / max(count, 1.0)
