"""Placements by the graph network: greedy decodes for each number of devices, then draws.

A draw adds Gumbel noise to the scores, so that it is one from their softmax. Each placement is
ordered by justification and simulated. Complexity: a decode and some four list schedules each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.placers import read_clock
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Decoded, Rollouts, Walked
from gnnplace.policy.gnn.kernels import DecoderNetwork
from gnnplace.policy.gnn.rollouts import Episodes

TEMPERATURE = 0.7  # Temperature of draws; 0.4 and 1.0 were worse on validation families
SEED = 0  # Draws are the same, whatever the seed of a search is
# Draws of a first answer, beside a greedy decode for each number of devices.
FIRST_DRAWS = 16


@dataclass(frozen=True, eq=False)
class NetworkDecodes:
    """The graph network as it decodes one problem.

    Attributes:
        rollouts: The problem as the learned placer walks it, which orders and simulates.
        episodes: The problem as the network walks it.
        network: The decoder's parameters, and what the encoder says of the problem.
        aim: What the decodes are called; with rounds, micro-batches are also ordered by them.
    """

    rollouts: Rollouts
    episodes: Episodes
    network: DecoderNetwork
    aim: Aim

    def decode(
        self, count: int, deadline: float, priorities: Sequence[FloatArray] = ()
    ) -> list[Decoded]:
        """Return decodes and draws as `Episodes.each` lists them; none begins after the deadline.

        The first one is always made.

        Args:
            count: How many there are at most.
            deadline: The time to be back.
            priorities: More priorities to order several micro-batches by. Each [n].
        """
        rng = np.random.default_rng(SEED)
        decodes: list[Decoded] = []
        for unit_device in self.episodes.each(
            self.network, count - 1, rng, TEMPERATURE
        ):
            walked = Walked(unit_device)
            decodes.append(self.rollouts.finish(self.aim, walked, deadline, priorities))
            if read_clock() >= deadline:
                break
        return decodes

    def first_answers(self, deadline: float) -> list[Decoded]:
        """Return a decode for every number of devices, and draws, until the deadline."""
        count = len(self.episodes.greedy_limits(self.network)) + FIRST_DRAWS
        by_rank = self.rollouts.space.priorities[:1]
        return self.decode(count, deadline, by_rank)
