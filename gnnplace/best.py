"""``best``: the default placer. The portfolio's constructions and the learned placer, then
annealing.

Half of the budget goes to the learned placer's samples, what is left of the other half after the
constructions to annealing from the best of all. It keeps the best by simulated step time and says
who found it; ``single`` is among the constructions, so nobody gets worse than one device.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.graph.orders import ORDERS
from gnnplace.placers import PLACERS, Found, Placer, SearchSpace
from gnnplace.placers.annealing import anneal
from gnnplace.placers.portfolio import Portfolio, run_member

if TYPE_CHECKING:
    from gnnplace.policy import LearnedPlacer


class Best(Placer):
    """Portfolio and learned placer within one budget.

    Args:
        learned: the learned placer to include.
    """

    name = "best"

    def __init__(self, learned: LearnedPlacer) -> None:
        self.learned = learned

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        begin = time.perf_counter()
        found = self._constructions(space, rng)
        middle = begin + max(0.0, deadline - begin) / 2
        sampled = run_member(self.learned, space, rng, middle)
        found += [sampled] if sampled is not None else []
        if not found:
            raise InfeasibleError("placer 'best' found no placement that runs and fits")
        best = min(found, key=lambda f: space.score(f.device, f.order))
        if time.perf_counter() < deadline:
            improved = anneal(space, best, rng, deadline)
            if space.score(improved.device, improved.order) < space.score(best.device, best.order):
                return Found(improved.device, improved.order, f"{best.note}; then annealing")
        return best

    def _constructions(self, space: SearchSpace, rng: np.random.Generator) -> list[Found]:
        try:
            return [Portfolio().best_of_all(space, rng)]
        except InfeasibleError:
            return []


def placer_names() -> tuple[str, ...]:
    """Names of all placers: those of the placers room, ``learned`` and ``best``."""
    return (*PLACERS, "learned", "best")


def make_placer(name: str, order: str | None = None) -> Placer:
    """A placer by its name.

    Args:
        name: one of ``placer_names()``.
        order: traversal order of the policy in ``learned`` and ``best``; None lets it choose.

    Raises:
        InputError: an unknown placer or order, or an order for a placer that has none.
    """
    if order in (None, "auto"):
        orders = None
    elif order in ORDERS:
        orders = (str(order),)
    else:
        raise InputError(f"order {order!r}: unknown; orders: auto, {', '.join(ORDERS)}")
    if name in ("learned", "best"):
        # Imported late: other placers need no torch.
        from gnnplace.policy import LearnedPlacer

        learned = LearnedPlacer(orders=orders)
        return learned if name == "learned" else Best(learned)
    if orders is not None:
        raise InputError(f"order {order!r}: only placers 'learned' and 'best' walk in an order")
    if name not in PLACERS:
        raise InputError(f"placer {name!r}: unknown; placers: {', '.join(placer_names())}")
    return PLACERS[name]()
