"""``gnn``: the network decides every device, one after the other in a traversal order.

Wang et al. (2022, arXiv 2201.09676) also decide in a traversal order, but improve an existing
placement; this network constructs one. Without a budget the answer is one greedy decode, without
comparison or refinement. With a budget there is a first answer: one greedy decode for each number
of devices and a few draws from the softmax of the same scores, of which the best three are refined
by the passes of the learned placer (``policy.refine.passes``). Then placements are drawn until the
time is up, for each number of devices in turn, some with noise that is shared within clusters; the
best by simulation is kept. Devices are not candidates if they lack memory, a link or the op's kind,
or if pins exclude them. Sequences come from justification (``policy.decode.ordering``).
Complexity: O(D * decisions * H^2 + D * edges) a decode.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np

from gnnplace.errors import InputError
from gnnplace.graph import get_base_order
from gnnplace.placers import NO_BUDGET, Found, Placer, SearchSpace, is_expired
from gnnplace.policy.decode.aims import Aim, list_device_limits
from gnnplace.policy.decode.rollouts import SCORE, Decoded, Rollouts
from gnnplace.policy.gnn.decodes import NetworkDecodes
from gnnplace.policy.gnn.network import GnnPolicy, load_gnn
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.policy.learned import load_policy
from gnnplace.policy.refine.passes import RefiningPasses


class GnnPlacer(Placer):
    """The trained network.

    Args:
        policy: a network, or None for the one that comes with the package.
        order: the traversal order, or None for the one that the network was trained under.
    """

    name = "gnn"

    def __init__(
        self, policy: GnnPolicy | None = None, order: str | None = None
    ) -> None:
        self.policy = policy
        self.order = order

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        policy = self.policy or load_gnn()
        if (
            self.order
            and get_base_order(self.order) is not None
            and policy.priority is None
        ):
            raise InputError(
                f"order {self.order!r}: this network learned none; train one with "
                f"--model.order={self.order}"
            )
        rollouts = Rollouts(space, load_policy())
        episodes = Episodes(space, self.order or policy.order, rollouts.graph)
        network = episodes.network(policy)
        number = f"up to {network.limit} of {space.problem.num_devices} devices"
        if deadline <= NO_BUDGET:
            unit_device = episodes.greedy(network)
            order = episodes.sequence(unit_device)[1]
            note = f"{episodes.name}, {number}, one decode"
            return Found(space.spread(unit_device), order, note)
        decodes = NetworkDecodes(
            rollouts=rollouts,
            episodes=episodes,
            network=network,
            aim=Aim(episodes.name, network.limit),
        )
        return _search_on(decodes, rng, deadline)


def _search_on(
    decodes: NetworkDecodes, rng: np.random.Generator, deadline: float
) -> Found:
    """Return the refined first answer, or the best draw from there until the deadline."""
    episodes = decodes.episodes
    rollouts = decodes.rollouts
    network = decodes.network
    ranked = sorted(decodes.first_answers(deadline), key=SCORE)
    best: Decoded = RefiningPasses(rollouts).best(ranked, deadline)
    count = len(ranked)
    note = f"{episodes.name}, the best of {count} decodes, refined"
    for limit in cycle(list_device_limits(rollouts.space.problem.num_devices)):
        if is_expired(deadline):
            break
        for unit_device in episodes.draws(
            network, 1, rng, shared=1, limit=limit
        ).unit_device:
            count += 1
            score, order = episodes.sequence(unit_device)
            if score < best.score:
                best = rollouts.decode_once(score, unit_device, order, decodes.aim)
                note = f"{episodes.name}, one of {count} decodes"
    return Found(rollouts.space.spread(best.unit_device), best.order, note)
