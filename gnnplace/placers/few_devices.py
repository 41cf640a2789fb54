"""Placing on at most k devices of a cluster.

Every placement on at most k devices uses some sub-cluster of k devices. Sub-clusters that differ
only in names (same kinds, memory, links and channels, and no op that is forbidden to only one of
them) are tried once. A cluster with more than ``MOST_SETS`` different sub-clusters is searched
only among runs of neighbouring devices, as they are listed, and the fastest devices.
Complexity: O(sets k^2).

Each sub-cluster is first placed without a budget. The one with the shortest step is placed again
with the whole remaining budget. The choice does not depend on the budget, so a larger budget is
never worse. If all sub-clusters were looked at, the lower bound is the least of theirs; otherwise
it is that of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.placers.base import Placer, Result
from gnnplace.placers.search.space import read_clock
from gnnplace.problem import Cluster, Placement, Problem
from gnnplace.simulation import lower_bound, simulate

MOST_SETS = 4096
MOST = 12  # sub-clusters that are tried
Devices = tuple[int, ...]


@dataclass(frozen=True)
class Subclusters:
    """Sets of devices.

    Attributes:
        sets: the devices of each, ascending; the fastest first.
        complete: whether every set of so many devices is like one of these.
    """

    sets: tuple[Devices, ...]
    complete: bool


def subclusters(problem: Problem, count: int) -> Subclusters:
    """Return sets of ``count`` devices that differ, and on which every unit has a device.

    Raises:
        InfeasibleError: pins and forbids need more devices.
    """
    num_devices = problem.num_devices
    if count >= num_devices:
        return Subclusters((tuple(range(num_devices)),), True)
    tries_all = comb(num_devices, count) <= MOST_SETS
    by_signature: dict[bytes, Devices] = {}
    types = _types(problem)
    speed = _speeds(problem)
    for devices in (
        combinations(range(num_devices), count)
        if tries_all
        else _iterate_neighbours(speed, count)
    ):
        if problem.unit_allowed[:, list(devices)].any(axis=1).all():
            by_signature.setdefault(
                _signature(problem.cluster, types, devices), devices
            )
    if not by_signature:
        raise InfeasibleError(
            f"max-devices {count}: no {count} devices may have all ops; pins, forbids and kinds "
            "need more"
        )
    ranked = sorted(
        by_signature.values(),
        key=lambda devices: (-speed[list(devices)].sum(), devices),
    )
    return Subclusters(tuple(ranked[:MOST]), tries_all and len(ranked) <= MOST)


def _iterate_neighbours(speed: FloatArray, count: int) -> Iterator[Devices]:
    """Yield neighbours as they are listed, and the fastest."""
    for first in range(len(speed) - count + 1):
        yield tuple(range(first, first + count))
    yield tuple(sorted(np.argsort(-speed, kind="stable")[:count].tolist()))


def _types(problem: Problem) -> list[int]:
    """Return a number for each device; devices of one number are alike but for their links. [D]"""
    type_of: dict[tuple[object, ...], int] = {}
    memory = problem.cluster.memory.tolist()
    return [
        type_of.setdefault(
            (device.kind, memory[d], problem.allowed[:, d].tobytes()), len(type_of)
        )
        for d, device in enumerate(problem.cluster.devices)
    ]


def _speeds(problem: Problem) -> FloatArray:
    """Return the work a second of each device, over the ops that it may have. [D]"""
    times = np.where(problem.allowed, problem.times, np.inf)
    fastest = times.min(axis=1, keepdims=True)
    runs_on = np.isfinite(times) & np.isfinite(fastest)
    share = np.where(runs_on, np.where(runs_on, fastest, 0.0), 0.0).sum(axis=0)
    return np.asarray(
        share / np.maximum(np.where(runs_on, times, 0.0).sum(axis=0), 1e-300)
    )


def _signature(cluster: Cluster, types: list[int], devices: Devices) -> bytes:
    """Return a key that is equal for sets that are the same but for names."""
    ordered = sorted(devices, key=lambda d: (types[d], d))
    return str([types[d] for d in ordered]).encode() + cluster.pattern(ordered)


def make_subproblem(problem: Problem, devices: Devices) -> Problem:
    """Return the problem on some of its devices."""
    if len(devices) == problem.num_devices:
        return problem
    columns = list(devices)
    # The last entry is for ops without a pin.
    place = np.full(problem.num_devices + 1, -1, dtype=np.int32)
    place[columns] = np.arange(len(columns))
    if problem.forbid is None:
        forbid = None
    else:
        forbid = np.ascontiguousarray(problem.forbid[:, columns])
    part = problem.cluster.part(devices)
    return replace(problem, cluster=part, pin=place[problem.pin], forbid=forbid)


def widen_placement(
    placement: Placement, problem: Problem, devices: Devices
) -> Placement:
    """Return a placement on some devices of a problem as one of the problem."""
    sequence = [np.empty(0, dtype=np.int32) for _ in range(problem.num_devices)]
    for d, ops in zip(devices, placement.sequence or (), strict=False):
        sequence[d] = ops
    device = np.array(devices, dtype=np.int32)[placement.device]
    if placement.sequence is None:
        whole_sequence = None
    else:
        whole_sequence = tuple(sequence)
    return replace(placement, device=device, sequence=whole_sequence)


def place_on_few(
    problem: Problem, placer: Placer, count: int, *, budget: float = 0.0, seed: int = 0
) -> Result:
    """Return the best placement found on at most ``count`` devices.

    Args:
        problem: the problem on its whole cluster.
        placer: the placer that each sub-cluster is handed to.
        count: the number of devices at most.
        budget: seconds to search, all sub-clusters together.
        seed: the seed of all randomness.

    Raises:
        InfeasibleError: no sub-cluster has a placement.
        UnsupportedError: the placer cannot handle the problem; see ``Placer.place``.
    """
    begin = read_clock()
    candidates = subclusters(problem, count)
    if len(candidates.sets) == 1:
        devices = candidates.sets[0]
        result = placer.place(
            make_subproblem(problem, devices), budget=budget, seed=seed
        )
        return _widen_result(
            problem=problem,
            result=result,
            devices=devices,
            tried=1,
            bounded=candidates.complete,
            begin=begin,
        )

    # 1. One construction on each sub-cluster.
    tried: list[tuple[float, int, Result]] = []
    failed: list[GnnplaceError] = []
    for k, devices in enumerate(candidates.sets):
        try:
            first = placer.place(make_subproblem(problem, devices), seed=seed)
            tried.append((first.step_time, k, first))
        except GnnplaceError as error:
            failed.append(error)
    if not tried:
        raise failed[0]

    # 2. A search on the one that is best so far, in the time that is left.
    _, k, result = min(tried, key=lambda entry: entry[:2])
    seconds_left = budget - (read_clock() - begin)
    if seconds_left > 0:
        longer = placer.place(
            make_subproblem(problem, candidates.sets[k]), budget=seconds_left, seed=seed
        )
        result = min(result, longer, key=lambda one: one.step_time)

    # 3. The bound holds for the problem where every sub-cluster was tried.
    bounded = candidates.complete and not failed
    result = _widen_result(
        problem=problem,
        result=result,
        devices=candidates.sets[k],
        tried=len(candidates.sets),
        bounded=bounded,
        begin=begin,
    )
    if bounded:
        bound = min(one.lower_bound for _, _, one in tried)
        result = _with_bound(result, min(bound, result.step_time))
    return result


def _widen_result(
    problem: Problem,
    result: Result,
    devices: Devices,
    tried: int,
    bounded: bool,
    begin: float,
) -> Result:
    """Return the result as one of the whole problem, with what was tried in its note."""
    names = ", ".join(problem.cluster.devices[d].name for d in devices)
    devices_note = f"on {names}" + (
        f", the best of {tried} sets of devices" if tried > 1 else ""
    )
    note = "; ".join(part for part in (result.note, devices_note) if part)
    seconds = read_clock() - begin
    placement = widen_placement(result.placement, problem, devices)
    simulation = simulate(problem, placement)
    placed = replace(
        result,
        placement=replace(placement, seconds=seconds),
        simulation=simulation,
        note=note,
        seconds=seconds,
    )
    if bounded:
        return placed
    return _with_bound(placed, min(lower_bound(problem), placed.step_time))


def _with_bound(result: Result, bound: float) -> Result:
    return replace(
        result,
        placement=replace(result.placement, lower_bound=bound),
        lower_bound=bound,
    )
