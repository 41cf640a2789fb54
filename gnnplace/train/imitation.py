"""``Imitation``: learning to make the decisions of good placements.

Formulation: the policy follows a label (``labels.Label``) under the aim that it was made for and
under some others, with as many devices as the label uses, and learns each decision by
cross-entropy, shared equally among candidates that look the same, so that which of two equal
devices the label took is nothing to learn. Cost: one decode an aim.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gnnplace.errors import InputError
from gnnplace.policy.decode.aims import Aim, device_limits
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.train.data import Sample
from gnnplace.train.decisions import DecisionModule, Lesson, alike, take

IntArray = NDArray[np.int32]


class Imitation(DecisionModule):
    """Imitation of labels; the data must have some.

    Args:
        aims: aims that each label is followed under.
        shared: arguments of ``PolicyModule``.
    """

    def __init__(
        self,
        aims: int = 3,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.aims = aims

    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy in nats; ``values`` are the label's shares."""
        logs = functional.log_softmax(scores, dim=1).masked_fill(scores == -torch.inf, 0.0)
        return -(values * logs).sum(dim=1)

    def lessons(self, batch: list[Sample]) -> list[Lesson]:
        """One lesson for each label and aim.

        Raises:
            InputError: the data has no labels.
        """
        return [lesson for sample in batch for lesson in self._of_problem(sample)]

    def _of_problem(self, sample: Sample) -> list[Lesson]:
        if sample.label is None:
            raise InputError("data.labels: Imitation needs problems with labels; give their number")
        rollouts, label, rng = self.rollouts(sample), sample.label, self.rng(sample)
        used = len(np.unique(label.unit_device))
        limit = next(k for k in device_limits(sample.space.problem.num_devices) if k >= used)
        if used == 1:
            return []
        others = [aim for aim in rollouts.aims if aim.limit == limit]
        picked = [others[i] for i in rng.permutation(len(others))[: self.aims]]
        lessons = [_lesson(rollouts, aim, label.unit_device) for aim in picked]
        return [lesson for lesson in lessons if lesson is not None]


def _lesson(rollouts: Rollouts, aim: Aim, unit_device: IntArray) -> Lesson | None:
    seen = rollouts.watch(aim, unit_device)
    rows = np.arange(len(seen.chosen))
    open_ = (seen.allowed.sum(axis=1) > 1) & seen.allowed[rows, seen.chosen]
    if not open_.any():
        return None
    seen = take(seen, np.flatnonzero(open_))
    same = alike(seen)
    target = (same == same[np.arange(len(same)), seen.chosen][:, None]).astype(np.float32)
    target /= target.sum(axis=1, keepdims=True)
    return Lesson(rollouts, aim, seen, target)
