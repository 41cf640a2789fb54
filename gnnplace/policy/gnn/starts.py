"""Decodes of the GNN beside those of the learned placer, which refines the best of all.

Formulation: the graph network is run once a problem, then its decoder walks ``1 + DRAWS`` times:
greedily for the number of devices that it chose and for each other one above one, then with Gumbel
noise, so that each further walk is a draw from the softmax of its scores, for each number in turn.
Each gets the orders that a decode of the learned placer gets. Where a problem is large a search
sees little of it, and starts of another kind than those of a list scheduler pay; on small problems
it has tried what they could tell it (docs/learned.md has the figures).
Complexity: one encoding, O(ops + edges), and ``1 + DRAWS`` decodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.placers.search.clock import now
from gnnplace.placers.search.orders import LARGE
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Decoded, Rollouts, Walked
from gnnplace.policy.gnn.network import GnnPolicy
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.problem import Problem

DRAWS = 8
TEMPERATURE = 0.7  # of draws; 0.4 and 1.0 were worse on validation families
ENCODING = 1.5e-5  # seconds an op that one encoding takes
LEAST_OPS = 1_000  # of a problem that the network is asked for; at most ``LARGE``
SEED = 0  # of the draws, which are the same whatever the seed of a search is
NAME = "graph network"


def worth_asking(problem: Problem) -> bool:
    """Whether a problem is large enough for the network, and not too large."""
    return problem.num_devices > 1 and LEAST_OPS <= problem.num_ops <= LARGE


def network_decodes(
    rollouts: Rollouts, policy: GnnPolicy, aim: Aim, deadline: float
) -> list[Decoded]:
    """Greedy decodes of the network and draws, simulated; none begins after the deadline.

    None at all where the encoding would end after it.

    Args:
        rollouts: the problem as the learned placer walks it.
        policy: the network.
        aim: whose rounds the orders of micro-batches go by.
        deadline: when to be back.
    """
    found: list[Decoded] = []
    if now() + ENCODING * rollouts.space.problem.num_ops >= deadline:
        return found
    episodes = Episodes(rollouts.space, policy.order, rollouts.graph)
    network, named = episodes.network(policy), replace(aim, order=NAME)
    draws = episodes.each(network, DRAWS, np.random.default_rng(SEED), TEMPERATURE)
    for unit_device in draws:
        found.append(rollouts.finish(named, Walked(unit_device, None), deadline))
        if now() >= deadline:
            break
    return found
