"""``DecisionModule``: learning the decoder's decisions from what an algorithm says of each.

An algorithm gives lessons, decisions of the decoder on a problem with a value each, and the loss of
a decision; scores are computed anew with gradients, the encoder once a problem.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Decisions, Rollouts
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.train.data import Sample
from gnnplace.train.policy_module import PolicyModule

FloatArray = NDArray[np.float64]


class DecisionModule(PolicyModule):
    """A decoder in training."""

    @torch.no_grad()
    def scores(self, rollouts: Rollouts, aim: Aim, seen: Decisions) -> FloatArray:
        """Scores of the candidates of decisions that were made, -inf where not allowed. [S, D]"""
        backward = int(rollouts.graph.walk(aim.order) is not rollouts.graph.forward)
        contexts = self.policy.decoder.contexts(rollouts.states)[:, backward]
        scores = self.policy.decoder(
            contexts[torch.from_numpy(seen.step).long()],
            torch.from_numpy(seen.features),
            torch.from_numpy(seen.allowed),
        )
        return scores.numpy().astype(np.float64)

    @abstractmethod
    def lessons(self, batch: list[Sample]) -> list[Lesson]:
        """What to learn from a batch of problems."""

    @abstractmethod
    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Loss of each decision. [S]

        Args:
            scores: the scores of the candidates, -inf where not allowed. [S, D]
            values: the lesson's. [S, ...]
        """

    def batch_loss(self, batch: list[Sample]) -> Tensor | None:
        """The loss of a batch's lessons; None where there are none."""
        lessons = [lesson for lesson in self.lessons(batch) if len(lesson.values)]
        return self.loss(lessons) if lessons else None

    def loss(self, lessons: list[Lesson]) -> Tensor:
        """Mean loss of all decisions."""
        graphs = list({id(lesson.graph): lesson.graph for lesson in lessons}.values())
        parts = self.policy(graphs).split([len(graph.ops) for graph in graphs])
        contexts = {id(graph): part for graph, part in zip(graphs, parts, strict=True)}
        losses = []
        for lesson in lessons:
            seen = lesson.decisions
            scores = self.policy.decoder(
                contexts[id(lesson.graph)][
                    torch.from_numpy(seen.step).long(), int(lesson.backward)
                ],
                torch.from_numpy(seen.features),
                torch.from_numpy(seen.allowed),
            )
            losses.append(self.decision_loss(scores, torch.from_numpy(lesson.values)))
        return torch.cat(losses).mean()


class Lesson:
    """Decisions on one problem and what there is to learn about each of them.

    Args:
        rollouts: the problem.
        aim: what the decisions were made under.
        decisions: what the decoder saw. S decisions
        values: the values of each decision; the algorithm says what they mean. [S, ...]
    """

    def __init__(
        self, rollouts: Rollouts, aim: Aim, decisions: Decisions, values: NDArray[np.float32]
    ) -> None:
        self.graph: WalkGraph = rollouts.graph
        self.backward = rollouts.graph.walk(aim.order) is not rollouts.graph.forward
        self.decisions, self.values = decisions, values


def take(decisions: Decisions, which: NDArray[Any]) -> Decisions:
    """Some of the decisions."""
    return Decisions(
        decisions.features[which],
        decisions.allowed[which],
        decisions.step[which],
        decisions.unit[which],
        decisions.chosen[which],
    )
