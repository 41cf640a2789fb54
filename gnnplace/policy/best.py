"""``best``: the default placer. The portfolio's constructions and the learned placer, then
annealing.

The constructions may use a quarter of the budget, the learned placer half of what they leave;
annealing from the best of all has the rest. It keeps the best by simulated step time and says
who found it; ``single`` is among the constructions, so nobody gets worse than one device.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.errors import InputError
from gnnplace.graph.orders import ORDERS
from gnnplace.placers import PLACERS, Found, Placer, SearchSpace
from gnnplace.placers.annealing import anneal
from gnnplace.placers.constructions import best_construction, run_member
from gnnplace.search.clock import share_of

if TYPE_CHECKING:
    from gnnplace.policy import LearnedPlacer

UNTRAINED = "learned-untrained"
POLICIES = ("learned", UNTRAINED)
CONSTRUCTION_SHARE, LEARNED_SHARE = 1 / 4, 1 / 2  # of what is left of a budget


class Best(Placer):
    """Portfolio and learned placer within one budget.

    Args:
        learned: the learned placer to include.
    """

    name = "best"

    def __init__(self, learned: LearnedPlacer) -> None:
        self.learned = learned

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        found = [best_construction(space, rng, share_of(deadline, CONSTRUCTION_SHARE))]
        sampled = run_member(self.learned, space, rng, share_of(deadline, LEARNED_SHARE))
        found += [sampled] if sampled is not None else []
        best = min(found, key=lambda f: space.score(f.device, f.order))
        if time.perf_counter() < deadline:
            improved = anneal(space, best, rng, deadline)
            if space.score(improved.device, improved.order) < space.score(best.device, best.order):
                return Found(improved.device, improved.order, f"{best.note}; then annealing")
        return best


def placer_names() -> tuple[str, ...]:
    """Names of all placers: those of the placers room and those with a policy."""
    return (*PLACERS, *POLICIES, "best")


def shown_placers() -> tuple[str, ...]:
    """Names of the placers that a comparison shows unasked: all but the untrained control."""
    return tuple(name for name in placer_names() if name != UNTRAINED)


def make_placer(name: str, order: str | None = None, checkpoint: str | None = None) -> Placer:
    """A placer by its name.

    Args:
        name: one of ``placer_names()``.
        order: traversal order of the policy in those that have one; None lets it choose.
        checkpoint: folder of the policy; None takes the one that comes with the package.

    Raises:
        InputError: an unknown placer or order, or an order or a policy for one that has none.
        FormatError, MismatchError: the checkpoint is missing, malformed or of another version.
    """
    if order in (None, "auto"):
        orders = None
    elif order in ORDERS:
        orders = (str(order),)
    else:
        raise InputError(f"order {order!r}: unknown; orders: auto, {', '.join(ORDERS)}")
    if checkpoint is not None and name not in ("learned", "best"):
        raise InputError(f"checkpoint: placer {name!r} has no policy to load; use learned or best")
    if name == UNTRAINED:
        return _untrained(orders)
    if name in ("learned", "best"):
        # Imported late: other placers need no torch.
        from gnnplace.policy import LearnedPlacer
        from gnnplace.policy.learned import load_policy

        learned = LearnedPlacer(None if checkpoint is None else load_policy(checkpoint), orders)
        return learned if name == "learned" else Best(learned)
    if orders is not None:
        walking = ", ".join((*POLICIES, "best"))
        raise InputError(f"order {order!r}: only the placers {walking} walk in an order")
    if name not in PLACERS:
        raise InputError(f"placer {name!r}: unknown; placers: {', '.join(placer_names())}")
    return PLACERS[name]()


def _untrained(orders: tuple[str, ...] | None) -> Placer:
    """``learned`` with the parameters that training begins with: what training is measured by."""
    import torch

    from gnnplace.policy import LearnedPlacer, PlacementPolicy

    class Untrained(LearnedPlacer):
        """The learned placer's control."""

        name = UNTRAINED

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = PlacementPolicy().eval()
    return Untrained(policy, orders)
