"""``learned``: the policy as a placer; on ops, no other placer's placements are in it.

With budget 0 the policy decodes once under each of a few aims (``rollouts.Aim``), refines the best
few by passes (``passes``), and the best by simulation stays. A budget goes on with a local search
whose moves the policy proposes (``anytime``). Complexity: near-linear in the graph for each decode,
pass and move.

A large problem with narrow groups is decoded and searched on those (``placers.narrow``): all of its
decodes are starts beside the constructions there, which are the one thing that is not the policy's.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from gnnplace.placers import Found, Placer, SearchSpace
from gnnplace.placers.narrow import narrow_search
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.model import CHECKPOINT, PlacementPolicy, read_policy
from gnnplace.policy.refine.passes import Passes
from gnnplace.policy.search.anytime import Anytime
from gnnplace.search.narrow_problem import narrow_problem

FINISHING = (5e-4, 1e-6)  # seconds, and seconds an op, that checking a placement takes afterwards
ENCODING = 3e-5  # seconds an op that the network takes once before the search
DECODING = 0.3  # share of the budget after which no further aim is decoded
REFINED = 0.45  # share of the budget after which no further pass over a decode begins


@lru_cache(maxsize=2)
def load_policy(folder: str | Path = CHECKPOINT) -> PlacementPolicy:
    """The policy saved in ``folder``, by default the one that comes with the package.

    Raises:
        FormatError: a file is missing or malformed.
        MismatchError: it was trained on other features than this package computes.
    """
    return read_policy(folder)


class LearnedPlacer(Placer):
    """The trained policy.

    Args:
        policy: a policy, or None for the one that comes with the package.
        orders: traversal orders to decode under, or None for the policy's choice.
        on_groups: whether large problems with narrow groups are searched on these.
    """

    name = "learned"

    def __init__(
        self,
        policy: PlacementPolicy | None = None,
        orders: tuple[str, ...] | None = None,
        on_groups: bool = True,
    ) -> None:
        self.policy = policy
        self.orders = orders
        self.on_groups = on_groups

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        policy = self.policy or load_policy()
        given = {} if self.orders is None else {"orders": self.orders}
        narrow = narrow_problem(space) if self.on_groups else None
        if narrow is not None:
            coarse = SearchSpace(narrow.problem)
            decoded = Rollouts(coarse, policy, **given).greedy()
            starts = [one.unit_device for one in decoded]
            return narrow_search(space, narrow, coarse, starts, rng, deadline)
        begin = time.perf_counter()
        rollouts = Rollouts(space, policy, **given)
        timed = deadline > begin
        ranked = rollouts.greedy(begin + DECODING * (deadline - begin) if timed else np.inf)
        passes = Passes(rollouts)
        best = passes.best(ranked, begin + REFINED * (deadline - begin) if timed else np.inf)
        note = f"{best.aim}; best of {len(ranked)} decodes, refined"
        finishing = FINISHING[0] + FINISHING[1] * space.problem.num_ops
        if time.perf_counter() + finishing + ENCODING * space.problem.num_ops >= deadline:
            return Found(space.spread(best.unit_device), best.order, note)
        state, what = Anytime(rollouts, rng, passes).search(best, deadline - finishing)
        return Found(state.best_device, state.best_order, f"{note}, then {what}")


def untrained(orders: tuple[str, ...] | None = None) -> LearnedPlacer:
    """``learned`` with the parameters that training begins with: what training is measured by."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = PlacementPolicy().eval()
    return Untrained(policy, orders)


class Untrained(LearnedPlacer):
    """The learned placer's control."""

    name = "learned-untrained"
