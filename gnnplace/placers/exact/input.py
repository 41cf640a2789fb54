"""The input of the constraint model of ``exact``.

Whole numbers for times (``make_scale``), tensors that travel together (``bundles``), and devices
that can be swapped (``equal_devices``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem
from gnnplace.simulation import compute_most_seconds, list_durations

RESOLUTION = 1e8  # Units in the horizon where times have no common unit.
# Relative to a duration: quotients a hair below a whole number count as it.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Scale:
    """Seconds as whole units.

    Attributes:
        unit: seconds of one unit.
        horizon: seconds that no schedule of interest exceeds.
        exact: whether all durations are whole units.
    """

    unit: float
    horizon: float
    exact: bool = False

    def down(self, seconds: object) -> Any:
        """Return seconds as integer multiples of the unit, rounded down; arrays too."""
        units = np.floor(
            np.asarray(seconds, dtype=np.float64) / self.unit * (1 + ROUNDING)
        )
        return units.astype(np.int64)

    def bound(self, units: float) -> float:
        """Return the seconds that are certain if ``units`` are a lower bound of the model."""
        return max(0.0, units * self.unit * (1 - 2 * ROUNDING))


def make_scale(problem: Problem, horizon: float) -> Scale:
    """Return a common unit of all durations where there is a decimal one, else a fine one."""
    parts = [problem.times, *list_durations(problem.cluster, problem.graph.size)]
    seconds = np.unique(
        np.concatenate([part[np.isfinite(part)].ravel() for part in parts])
    )
    for unit in (1.0, 0.5, 0.1, 0.05, 0.01, 0.001):
        count = seconds / unit
        if horizon / unit < RESOLUTION and np.allclose(
            count, np.rint(count), 1e-12, 1e-9
        ):
            return Scale(unit, horizon, True)
    return Scale(max(horizon, 1e-300) / RESOLUTION, horizon)


def serial_time(problem: Problem) -> float:
    """Return the seconds that one op or transfer at a time take at most: no schedule needs more."""
    finite_times = np.where(np.isfinite(problem.times), problem.times, 0.0)
    computing = finite_times.max(axis=1).sum()
    sending = compute_most_seconds(problem.cluster, problem.graph.size)
    return float(computing + (problem.num_devices - 1) * sending)


def equal_devices(problem: Problem) -> list[list[int]]:
    """Return the classes of devices any two of which can be swapped without changing the
    problem.
    """
    classes: list[list[int]] = []
    for d in range(problem.num_devices):
        for members in classes:
            if _swappable(problem, members[0], d):
                members.append(d)
                break
        else:
            classes.append([d])
    return classes


def _swappable(problem: Problem, one: int, other: int) -> bool:
    cluster = problem.cluster
    swap = np.arange(problem.num_devices)
    swap[[one, other]] = other, one
    allowed = np.where(problem.allowed, problem.times, np.inf)
    matrices = (
        cluster.latency,
        cluster.bandwidth,
        cluster.sender_busy,
        cluster.send_overhead,
        cluster.receive_overhead,
    )
    if (
        cluster.memory[one] != cluster.memory[other]
        or not (allowed[:, one] == allowed[:, other]).all()
    ):
        return False
    if any(not np.array_equal(m, m[swap][:, swap]) for m in matrices):
        return False
    return _sharing(cluster.channels) == _sharing(cluster.channels[swap][:, swap])


def _sharing(channels: IntArray) -> Counter[bytes]:
    """Return which pairs of devices hold a channel together, for all channels. [D, D, W]"""
    has_channel = channels[..., None] == np.arange(channels.max(initial=-1) + 1)
    users = np.ascontiguousarray(np.moveaxis(has_channel.any(axis=2), -1, 0))
    return Counter(pairs.tobytes() for pairs in users)


@dataclass(frozen=True)
class Bundle:
    """Tensors of one op that are read by the same ops of other units.

    Attributes:
        producer: op that makes them.
        tensors: the tensors of the bundle, as the graph lists them.
        readers: ops of other units that consume every one of them.
    """

    producer: int
    tensors: tuple[int, ...]
    readers: tuple[int, ...]


def bundles(problem: Problem, *, runs: bool = False) -> list[Bundle]:
    """Return everything that may be sent; tensors that always travel together are one bundle.

    Args:
        problem: the problem whose tensors are bundled.
        runs: join only tensors with no others of their producer listed between them.
    """
    graph = problem.graph
    unit_of = problem.unit_of.tolist()
    merge = bundling(problem)
    last: dict[int, tuple[int, ...]] = {}
    groups: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
    for tensor, producer in enumerate(graph.producer.tolist()):
        consumers = graph.consumers(tensor)
        away = tuple(
            sorted(int(c) for c in consumers if unit_of[int(c)] != unit_of[producer])
        )
        if not away:
            continue
        changed = runs and last.get(producer) != away
        last[producer] = away
        key = (producer, away, -1 if merge else tensor)
        if changed and key in groups:
            former = groups.pop(key)
            groups[producer, away, -2 - former[0]] = former
        groups.setdefault(key, []).append(tensor)
    ordered = sorted(groups.items(), key=lambda item: item[1][0])
    return [
        Bundle(producer, tuple(group), away) for (producer, away, _), group in ordered
    ]


def bundling(problem: Problem) -> bool:
    """Return whether the sends of an op can change places on every channel without delaying the
    last.

    They follow each other there without a gap, so tensors with the same readers may be taken as
    one: on two devices, where no sender makes copies itself, and where all do so on channels of
    their own. A link that holds several channels may be kept waiting by either, so not there.
    """
    cluster = problem.cluster
    linked = cluster.linked
    channel = cluster.channels[:, :, 0]
    if cluster.channels.shape[2] > 1:
        return False
    busy = cluster.sender_busy[linked]
    sources = np.nonzero(linked)[0]
    channels = channel[linked].tolist()
    pairs = set(zip(channels, sources.tolist(), strict=True))
    own_channels = len(pairs) == len({channel for channel, _ in pairs})
    return (
        problem.num_devices <= 2
        or not busy.any()
        or (bool(busy.all()) and own_channels)
    )


def use_order(space: SearchSpace) -> IntArray:
    """Return the units by falling mean work: the order in which equal devices come into use. [U]"""
    return np.argsort(-space.mean_work, kind="stable").astype(np.int32)


def labels_by_use(space: SearchSpace, device: IntArray) -> IntArray:
    """Return new labels of equal devices, so that they are first used in the order listed. [D]"""
    label = np.arange(space.problem.num_devices, dtype=np.int32)
    used = list(
        dict.fromkeys(space.find_unit_devices(device)[use_order(space)].tolist())
    )
    for members in equal_devices(space.problem):
        appeared = [d for d in used if d in members]
        unused = [d for d in members if d not in appeared]
        label[appeared + unused] = members
    return label


def swaps(problem: Problem) -> list[IntArray]:
    """Return the identity and every swap of two equal devices, as new labels of devices.
    Each [D]
    """
    result = [np.arange(problem.num_devices, dtype=np.int32)]
    for members in equal_devices(problem):
        for a, b in combinations(members, 2):
            swap = result[0].copy()
            swap[[a, b]] = b, a
            result.append(swap)
    return result
