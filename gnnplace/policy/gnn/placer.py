"""``gnn``: the network alone decides every device, one after the other in a traversal order.

After Wang et al. (2022, arXiv 2201.09676). Without a budget this is one greedy decode: no other
placement is compared with it and nothing is refined. With a budget further placements are drawn
until the time is up, for each number of devices in turn, from the softmax of the same scores and
with noise that clusters share; the best by simulation stays. Devices that lack memory, a link or a
kind, or that pins exclude, are no candidates. Sequences are by
justification (``policy.decode.ordering``).
Complexity: O(D * decisions * H^2 + D * edges) a decode.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np

from gnnplace.errors import InputError
from gnnplace.graph.orders import base_of
from gnnplace.placers import Found, Placer, SearchSpace
from gnnplace.placers.search.space import NO_BUDGET, expired
from gnnplace.policy.decode.aims import device_limits
from gnnplace.policy.gnn.kernels import DecoderNetwork
from gnnplace.policy.gnn.network import GnnPolicy, load_gnn
from gnnplace.policy.gnn.rollouts import Episodes


class GnnPlacer(Placer):
    """The trained network.

    Args:
        policy: a network, or None for the one that comes with the package.
        order: the traversal order, or None for the one that the network was trained under.
    """

    name = "gnn"

    def __init__(self, policy: GnnPolicy | None = None, order: str | None = None) -> None:
        self.policy, self.order = policy, order

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        policy = self.policy or load_gnn()
        if self.order and base_of(self.order) is not None and policy.priority is None:
            raise InputError(
                f"order {self.order!r}: this network learned none; train one with "
                f"--model.order={self.order}"
            )
        episodes = Episodes(space, self.order or policy.order)
        network = episodes.network(policy)
        unit_device = episodes.greedy(network)
        seconds, order = episodes.sequence(unit_device)
        number = f"up to {network.limit} of {space.problem.num_devices} devices"
        device = space.spread(unit_device)
        found = Found(device, order, f"{episodes.name}, {number}, one decode")
        if deadline <= NO_BUDGET:
            return found
        return _drawn(episodes, network, found, seconds, rng, deadline)


def _drawn(
    episodes: Episodes,
    network: DecoderNetwork,
    found: Found,
    seconds: float,
    rng: np.random.Generator,
    deadline: float,
) -> Found:
    """The best of ``found``, which takes so many seconds, and of draws until the deadline."""
    space, count = episodes.space, 0
    for limit in cycle(device_limits(space.problem.num_devices)):
        if expired(deadline):
            break
        for drawn in episodes.draws(network, 1, rng, shared=1, limit=limit).unit_device:
            score, order = episodes.sequence(drawn)
            count += 1
            if score < seconds:
                seconds, found = score, Found(space.spread(drawn), order)
    return Found(found.device, found.order, f"{episodes.name}, the best of {count + 1} decodes")
