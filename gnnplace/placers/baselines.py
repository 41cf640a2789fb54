"""What every other placer should beat: ``single``, ``round-robin`` and ``random``.

``single``: everything on the one device that finishes the step soonest. Identical devices are tried
once, so this takes at most D simulations. Ops that may not run on that device (pins, kinds) go
where they take the least time. In a large graph the device runs its ops in the order in which they
are listed, if they fit into memory that way: with all work on one device, no order is faster.

``round-robin``: deals units to the devices in turn, in topological order. O(n).

``random``: draws an allowed device for every unit uniformly at random, again and again until the
budget is spent, and keeps the best draw. With budget 0 it draws once. O(n) a draw.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.space import LARGE, SearchSpace, is_expired, read_clock
from gnnplace.simulation import ROUNDING


class Single(Placer):
    """One device for everything: the baseline that nobody should be worse than."""

    name = "single"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        names = [device.name for device in space.problem.cluster.devices]
        tried: list[tuple[float, int, Found]] = []
        # The first of each set of devices that run everything, equally fast, in equal memory. What
        # may not run everything stands for itself: others have to do with its links then.
        first: dict[tuple[object, ...], int] = {}
        for d, kind in enumerate(space.problem.kind_of.tolist()):
            alone = () if space.problem.unit_allowed[:, d].all() else (d,)
            first.setdefault((kind, float(space.problem.cluster.memory[d]), *alone), d)
        for d in first.values():
            if tried and is_expired(deadline):
                break
            unit_device = space.allow(
                np.full(space.problem.num_units, d, dtype=np.int32)
            )
            placed = space.spread(unit_device)
            score, order = self._score_in_order(space, d, unit_device, placed)
            tried.append((score, d, Found(placed, order, f"all on {names[d]}")))
        return min(tried, key=lambda entry: entry[:2])[2]

    def _score_in_order(
        self, space: SearchSpace, d: int, chosen: IntArray, placed: IntArray
    ) -> tuple[float, IntArray]:
        """Score and order of units as they are placed; all of them may be on ``d``."""
        seconds = float(space.work[:, d].sum())
        order = space.problem.graph.topological_order
        if space.problem.num_ops > LARGE and (chosen == d).all():
            enough = seconds * (1.0 + ROUNDING)
            if not space.memory_matters or space.score(placed, order) <= enough:
                return seconds, order
        return space.sequence(placed)


class RoundRobin(Placer):
    """Deals units out like cards."""

    name = "round-robin"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        unit_device = np.empty(space.problem.num_units, dtype=np.int32)
        unit_device[space.unit_order] = (
            np.arange(len(unit_device)) % space.problem.num_devices
        )
        device = space.spread(space.allow(unit_device))
        return Found(device, space.sequence(device)[1])


class Random(Placer):
    """Random search: the control that every search must beat at equal time."""

    name = "random"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        best = np.inf
        placement = None
        draws = 0
        while placement is None or read_clock() < deadline:
            ticket = rng.random(space.work.shape)
            unit_device = np.where(space.problem.unit_allowed, ticket, -1.0).argmax(
                axis=1
            )
            device = space.spread(unit_device.astype(np.int32))
            score, order = space.sequence(device)
            draws += 1
            if placement is None or score < best:
                best = score
                placement = Found(device, order)
        return Found(placement.device, placement.order, f"{draws} draws")
