"""``MoveValues``: learning which moves of a placement make the step faster, from trying them.

Formulation: a problem is placed by the current policy and improved by a random number of moves, so
that the states are those that the search meets; random moves of that state are then tried and taken
back. ``MoveNet`` learns by cross-entropy how much of a percent each made the step faster (nothing
for a slower one, all of it from a percent on), and by absolute error how much the step time
changed. This is supervised learning with exact labels: nothing is imitated,
and nothing depends on what a search would have done later.

Validation, on held-out families: ``val/better`` is the mean gain of the moves that the network
values most of ``CHOSEN_OF`` random ones, ``val/ratio`` that of all moves over it, so that lower is
better as for the other algorithms.
Cost: two simulations and a list schedule a move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.network.move_net import SAMPLED
from gnnplace.policy.search.guided import try_moves
from gnnplace.policy.search.moves import NUM_MOVE_FEATURES
from gnnplace.search.moves import neighbourhood
from gnnplace.train.data import Sample
from gnnplace.train.placements import a_placement
from gnnplace.train.policy_module import PolicyModule

FULL_GAIN = 0.01  # relative gain from which a move counts whole; less counts in proportion
CHANGES = (-0.1, 0.3)  # changes are cut off here
WEIGHT = 5.0  # of the error of the change
CHOSEN_OF = 16
MOST_MOVES, OP_MOVES = 3_000, 1_000_000  # moves before a state is looked at; the latter over ops


@dataclass(frozen=True, eq=False)
class Tried:
    """Moves that were tried on one state. K moves

    Attributes:
        graph: the problem.
        features: [K, F]
        units: some of the units moved, -1 beyond. [K, SAMPLED]
        change: relative change of the step time. [K]
    """

    graph: WalkGraph
    features: NDArray[np.float32]
    units: NDArray[np.int32]
    change: NDArray[np.float64]


def try_random_moves(rollouts: Rollouts, rng: np.random.Generator, count: int) -> Tried:
    """Tries ``count`` random moves of a state that a search would meet."""
    space = rollouts.space
    moves = int(min(MOST_MOVES, OP_MOVES / space.problem.num_ops) * rng.random() ** 2)
    h, s = neighbourhood(space), a_placement(rollouts, rng, moves)
    features = np.zeros((count, NUM_MOVE_FEATURES), np.float32)
    units, change = np.full((count, SAMPLED), -1, np.int32), np.zeros(count)
    done = try_moves(space.compiled, h, s, features, units, change)
    return Tried(rollouts.graph, features[:done], units[:done], change[:done])


class MoveValues(PolicyModule):
    """Learns ``MoveNet``, and the encoder with it unless that is frozen.

    Args:
        moves: moves tried on each problem.
        shared: arguments of ``PolicyModule``.
    """

    def __init__(self, moves: int = 256, **shared: Any) -> None:
        super().__init__(**shared)
        self.moves = moves
        self.hits: list[tuple[float, float]] = []

    def batch_loss(self, batch: list[Sample]) -> Tensor | None:
        """The loss of moves tried on each problem."""
        tried = [self._tried(sample, self.policy) for sample in batch]
        tried = [t for t in tried if len(t.change)]
        if not tried:
            return None
        if self.global_step == 0:
            self._standardise(np.concatenate([t.features for t in tried]))
        out = self._values(tried)
        change = torch.from_numpy(np.concatenate([t.change for t in tried])).float()
        gain = (-change / FULL_GAIN).clamp(0.0, 1.0)
        error = (out[:, 1] - change.clamp(*CHANGES)).abs().mean()
        return functional.binary_cross_entropy_with_logits(out[:, 0], gain) + WEIGHT * error

    def _standardise(self, features: NDArray[np.float32]) -> None:
        for policy in (self.policy, self.average):
            policy.moves.mean.copy_(torch.from_numpy(features.mean(axis=0)))
            policy.moves.spread.copy_(torch.from_numpy(features.std(axis=0) + 0.05))

    def _tried(self, sample: Sample, policy: Any) -> Tried:
        rollouts = Rollouts(sample.space, policy, self.orders)
        return try_random_moves(rollouts, self.rng(sample), self.moves)

    def _values(self, tried: list[Tried], policy: Any = None) -> Tensor:
        """Outputs of the network for all moves. [sum of K, 2]"""
        policy = policy or self.policy
        states = policy.states([t.graph for t in tried])
        parts = states.split([len(t.graph.ops) for t in tried])
        outs = []
        for t, part in zip(tried, parts, strict=True):
            units = torch.from_numpy(t.units).long()
            there = (units >= 0).float()[..., None]
            context = policy.unit_contexts(t.graph, part)[units.clamp(min=0)]
            mean = (context * there).sum(dim=1) / there.sum(dim=1)
            outs.append(policy.moves(torch.from_numpy(t.features), mean))
        return torch.cat(outs)

    def on_validation_epoch_start(self) -> None:
        """Forgets the last validation."""
        self.hits = []

    def validation_step(self, batch: list[Sample], batch_index: int) -> None:
        """Values random moves of each problem and looks at the chosen ones."""
        for sample in batch:
            if sample.space.problem.num_devices < 2:
                continue
            tried = self._tried(sample, self.average)
            if len(tried.change) >= CHOSEN_OF:
                values = self._values([tried], self.average)[:, 0].numpy()
                self.hits.append(hits(values, tried.change, self.rng(sample)))

    def quality(self) -> tuple[float, float]:
        """Mean gain of all moves over that of the chosen ones, and the latter."""
        total = np.array(self.hits or [(np.nan, np.nan)]).sum(axis=0)
        here = torch.tensor([*total, len(self.hits)], dtype=torch.float64, device=self.device)
        chosen, blind, count = self.trainer.strategy.reduce(here, reduce_op="sum").tolist()
        return blind / max(chosen, 1e-12), chosen / max(count, 1.0)


def hits(
    values: NDArray[np.float32], change: NDArray[np.float64], rng: np.random.Generator
) -> tuple[float, float]:
    """Mean gain, cut off at ``FULL_GAIN``, of the most valued of ``CHOSEN_OF``, and of all."""
    draws = np.stack([rng.permutation(len(values))[:CHOSEN_OF] for _ in range(100)])
    best = np.take_along_axis(draws, values[draws].argmax(axis=1)[:, None], axis=1)[:, 0]
    gain = (-change / FULL_GAIN).clip(0.0, 1.0)
    return float(gain[best].mean()), float(gain.mean())
