"""Placing on at most k devices: the sub-clusters that differ, and the whole budget for the best.

Each sub-cluster (``problem.constraints.subclusters``) is placed on without a budget; the one with
the shortest step is placed on once more with what is left of the budget. Which one that is does
not depend on the budget, so more is never worse. The lower bound is the least over all sub-clusters
where each set of k devices is like one of them, and that of the whole cluster elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

from gnnplace.errors import GnnplaceError
from gnnplace.placers.base import Placer, Result
from gnnplace.placers.search.clock import now
from gnnplace.problem import Problem
from gnnplace.problem.constraints.subclusters import (
    Devices,
    on_subcluster,
    on_whole_cluster,
    subclusters,
)
from gnnplace.simulation import lower_bound, simulate


def place_on_few(
    problem: Problem, placer: Placer, count: int, *, budget: float = 0.0, seed: int = 0
) -> Result:
    """The best placement found on at most ``count`` devices.

    Args:
        problem: what to place.
        placer: what places.
        count: devices at most.
        budget: seconds to search, all sub-clusters together.
        seed: the seed of all randomness.

    Raises:
        InfeasibleError: no sub-cluster has a placement.
        UnsupportedError: see ``Placer.place``.
    """
    begin, found = now(), subclusters(problem, count)
    if len(found.sets) == 1:
        devices = found.sets[0]
        result = placer.place(on_subcluster(problem, devices), budget=budget, seed=seed)
        return _on_whole(problem, result, devices, 1, found.complete, begin)
    tried: list[tuple[float, int, Result]] = []
    failed: list[GnnplaceError] = []
    for k, devices in enumerate(found.sets):
        try:
            first = placer.place(on_subcluster(problem, devices), seed=seed)
            tried.append((first.step_time, k, first))
        except GnnplaceError as error:
            failed.append(error)
    if not tried:
        raise failed[0]
    _, k, result = min(tried, key=lambda entry: entry[:2])
    left = budget - (now() - begin)
    if left > 0:
        more = placer.place(on_subcluster(problem, found.sets[k]), budget=left, seed=seed)
        result = min(result, more, key=lambda one: one.step_time)
    bounded = found.complete and not failed
    result = _on_whole(problem, result, found.sets[k], len(found.sets), bounded, begin)
    if bounded:
        least = min(one.lower_bound for _, _, one in tried)
        result = _bounded(result, min(least, result.step_time))
    return result


def _on_whole(
    problem: Problem, result: Result, devices: Devices, tried: int, bounded: bool, begin: float
) -> Result:
    """The result as one of the whole problem, with what was tried in its note."""
    names = ", ".join(problem.cluster.devices[d].name for d in devices)
    told = f"on {names}" + (f", the best of {tried} sets of devices" if tried > 1 else "")
    note = "; ".join(part for part in (result.note, told) if part)
    seconds = now() - begin
    placement = on_whole_cluster(result.placement, problem, devices)
    simulation = simulate(problem, placement)
    made = replace(
        result,
        placement=replace(placement, seconds=seconds),
        simulation=simulation,
        note=note,
        seconds=seconds,
    )
    return made if bounded else _bounded(made, min(lower_bound(problem), made.step_time))


def _bounded(result: Result, bound: float) -> Result:
    return replace(
        result, placement=replace(result.placement, lower_bound=bound), lower_bound=bound
    )
