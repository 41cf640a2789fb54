"""A lower bound on the step time of all plans of a space, whatever their order of actions.

A bisection finds the least T for which the model can be cut into stages that meet a step of T
seconds in the relaxation of `relax_meshes`. For every size of micro-batches the space has three
families of plans:

1. *even*: one stage a rank, on equal meshes. A stage that meets T still does when it is shorter.
   So cutting the longest possible stages from the end gives the fewest, which is exact for the
   relaxation.
2. *mixed*, on up to `MIXED` devices: one stage a rank, any meshes on slices of the cluster in its
   order. Dynamic programmes find the least sums of F + I over the stages before a segment and a
   device, and over those after, while every stage meets T.
3. *several*: at least two chunks a rank, on equal meshes (V, interleaved). The work of all ranks
   fits into T times their number, including the recomputation without which all state and all
   activations in flight would not fit into their memory together. Of different devices the slower
   ones count as less than one. This bound has no pipeline bubbles.

Messages and the exchange of tied gradients cost nothing here. A tested T takes O(S T) on equal
meshes of S segments and T kinds, and O(S^2 D T) on D devices with any meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numba
import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.plans.mesh import Mesh
from gnnplace.plans.search.relaxed import (
    AGAIN,
    ALL,
    ATTENTION,
    BOTH,
    END,
    FREED,
    KEPT,
    LEAD,
    SCORES,
    STATE,
    Relaxed,
    StageSurroundings,
    make_mesh_rows,
    relax_meshes,
    stack_tables,
    stage_holds,
)
from gnnplace.plans.search.space import MIXED, MeshKind, Space

GRAIN = 1e-3  # of the grid of steps, whose logarithms are its multiples
SCALES = 8  # halvings of the price of a byte, where bytes count as often as they are in flight


def bound_steps(spaces: Sequence[Space], high: float) -> tuple[float, float]:
    """Return lower bounds on the step of all plans, and of plans with one stage a rank.

    Args:
        spaces: The meshes for each size of micro-batches.
        high: Seconds of a known plan. A bound has this value if no shorter step can be excluded.

    Returns:
        The bound of all plans, and that of plans with one stage a rank.
    """
    one = high
    several = high
    for space in sorted(spaces, key=_work):
        if _work(space) < max(one, several):
            alike = _relax_positions(space)
            one = _with_one(space, alike, one)
            several = _with_several(space, alike, min(one, several))
    return min(one, several), one


def _work(space: Space) -> float:
    """Return the seconds that all devices need for the work of a step if they are never idle."""
    fabric = space.pricer.fabric
    microbatches = space.microbatches
    shapes = [
        shape.devices * float((sums.forward + sums.backward + sums.weights)[-1])
        for shape in dict.fromkeys(shape._replace(zero=0) for shape in space.shapes)
        for kind in fabric.cluster.kinds
        if (sums := space.pricer.sums(shape.mesh(0), (kind,), shape.choice)) is not None
    ]
    return microbatches * min(shapes, default=np.inf) / fabric.cluster.num_devices


def _relax_positions(space: Space) -> dict[MeshKind, Relaxed]:
    """Return the least that segments take on every kind of mesh, wherever it lies.

    Kinds with ZeRO 1 are there with ZeRO 0 as well. The kinds with the least work come first.
    """
    tables: dict[MeshKind, Relaxed] = {}
    for candidate in space.shapes:
        for zero in (0, 1) if candidate.zero == 1 else (candidate.zero,):
            shape = candidate._replace(zero=zero)
            table = relax_meshes(space.pricer, _places(space, shape), shape)
            if table is not None:
                tables[shape] = stack_tables([table])

    def device_seconds(item: tuple[MeshKind, Relaxed]) -> float:
        shape, table = item
        return float(shape.devices * table.sums[0, ALL, -1])

    return dict(sorted(tables.items(), key=device_seconds))


def _with_one(space: Space, alike: Mapping[MeshKind, Relaxed], high: float) -> float:
    """Return a lower bound on the step with one stage a rank, `high` at most."""
    count = space.pricer.fabric.cluster.num_devices
    if 1 < count <= MIXED:
        return _bound_mixed(space, list(alike), high)
    for shape, table in alike.items():
        ranks = count // shape.devices
        high = _bisect(partial(_holds_evenly, table, ranks, space.microbatches), high)
    return high


def _with_several(
    space: Space, alike: Mapping[MeshKind, Relaxed], high: float
) -> float:
    """Return a lower bound on the step with two chunks or more a rank, `high` at most."""
    cluster = space.pricer.fabric.cluster
    segments = len(space.pricer.chain)
    for shape, table in alike.items():
        num_devices = shape.devices
        ranks = min(cluster.num_devices // num_devices, segments // 2)
        if ranks < 2:
            continue
        speed = sorted(_speeds(space, shape, table), reverse=True)[
            : ranks * num_devices
        ]
        entry = (ranks, sum(speed) / num_devices, speed[-1])
        hold = partial(_several_hold, table, *entry, space.microbatches)
        high = _bisect(hold, high)
    return high


def _speeds(space: Space, shape: MeshKind, table: Relaxed) -> list[float]:
    """Return an upper bound on each device's speed, 1 where segments take the least. [devices]"""
    pricer = space.pricer
    if len(pricer.fabric.cluster.kinds) == 1:
        return [1.0] * pricer.fabric.cluster.num_devices
    least_seconds = np.diff(table.sums[0])
    speed = {}
    for kind in pricer.fabric.cluster.kinds:
        meshes = [m for m in _places(space, shape) if pricer.fabric.kinds(m) == (kind,)]
        if meshes:
            rows = make_mesh_rows(pricer, meshes[0], shape)
        else:
            rows = None
        speed[kind] = 1.0
        if rows is not None:
            seconds = rows[0][[ALL, AGAIN]]
            ratio = least_seconds[[ALL, AGAIN]] / np.maximum(seconds, 1e-300)
            speed[kind] = float(np.where(seconds > 0, ratio, 0.0).max())
    return [speed[device.kind] for device in pricer.fabric.cluster.devices]


def _bisect(holds: Callable[[float], bool], high: float) -> float:
    """Return the largest step of the grid that does not hold, `high` at most.

    Args:
        holds: Whether stages can be cut that hold a step of so many seconds; monotone.
        high: Seconds of a step that is known to hold.
    """
    steps = int(np.ceil(np.log(high) / GRAIN)) - 1
    if not holds(float(np.exp(GRAIN * steps))):
        return high
    largest = steps
    below = 1
    while holds(float(np.exp(GRAIN * (steps - below)))):
        largest = steps - below
        below = 2 * below
    fails = steps - below
    while fails + 1 < largest:
        middle = (fails + largest) // 2
        if holds(float(np.exp(GRAIN * middle))):
            largest = middle
        else:
            fails = middle
    return float(np.exp(GRAIN * fails))


def _places(space: Space, shape: MeshKind) -> list[Mesh]:
    """Return one mesh for every place that differs from the others; see `_kind`."""
    fabric = space.pricer.fabric
    num_devices = shape.devices
    meshes: dict[object, Mesh] = {}
    if fabric.cluster.num_devices <= MIXED:
        step = 1
    else:
        step = num_devices
    for first in range(0, fabric.cluster.num_devices - num_devices + 1, step):
        mesh = shape.mesh(first)
        meshes.setdefault(_kind(space, mesh), mesh)
    return list(meshes.values())


def _kind(space: Space, mesh: Mesh) -> object:
    """Return what tells meshes of one shape apart: devices, replica group, usable memory."""
    fabric = space.pricer.fabric
    members = mesh.summing((False,) * len(mesh.axes))[0]
    group = fabric.group(members) or (tuple(members) if len(members) > 1 else ())
    return fabric.kinds(mesh), group, space.pricer.usable_memory(mesh)


@numba.njit(cache=True)
def _holds_evenly(table: Relaxed, ranks: int, microbatches: int, step: float) -> bool:
    """Return whether stages on equal meshes hold a step.

    From the end, each stage is as long as it may be; the question is whether the ranks suffice.

    Args:
        table: Prefix sums of one kind of mesh.
        ranks: P, the number of pipeline ranks.
        microbatches: M, the number of micro-batches of a step.
        step: T, seconds that a step may take.
    """
    sums = table.sums[0]
    last = sums.shape[1] - 1
    for _ in range(ranks):
        seconds_after = sums[BOTH, -1] - sums[BOTH, last]
        first = last
        working = 0.0
        while first > 0:
            working = max(working, table.working[0, first - 1])
            seconds_before = sums[BOTH, first - 1]
            lead = sums[LEAD, first - 1]
            surroundings = StageSurroundings(
                working, seconds_before, lead, seconds_after
            )
            if not stage_holds(
                table, 0, first - 1, last, surroundings, microbatches, step
            ):
                break
            first -= 1
        if first == 0:
            return True
        if first == last:
            return False
        last = first
    return False


@numba.njit(cache=True)
def _several_hold(
    table: Relaxed,
    ranks: int,
    speed: float,
    slowest: float,
    microbatches: int,
    step: float,
) -> bool:
    """Return whether all ranks together have the time and the memory for all stages.

    Args:
        table: Prefix sums of one kind of mesh.
        ranks: P, the number of pipeline ranks.
        speed: Sum of the ranks' relative speeds, at most P.
        slowest: Relative speed of the slowest rank, at most 1; the end of a step takes as long on
            all.
        microbatches: M, the number of micro-batches of a step.
        step: T, seconds that a step may take.
    """
    sums = table.sums[0]
    count = table.sums.shape[2] - 1
    total = sums[ALL, count]
    end = slowest * sums[END, count]
    if sums[BOTH, count] > step or microbatches * total + end > speed * step:
        return False
    # Bytes that all ranks together lack, with what must be in flight at least.
    lack = sums[STATE, count] - ranks * (table.memory[0] - table.working[0].min())
    flying = np.ones(count)
    freed = 0.0
    for s in range(count):
        seconds_after = sums[BOTH, count] - sums[BOTH, s]
        flying[s] = max(1.0, microbatches * seconds_after / step)
        lack += flying[s] * (sums[KEPT, s + 1] - sums[KEPT, s])
        freed += flying[s] * (sums[FREED, s + 1] - sums[FREED, s])
    if lack <= 0.0:
        return True
    if lack > freed * (1 + 1e-12):
        return False
    # Every price of a byte bounds the seconds of recomputation from below; take the best bound.
    recomputed = 0.0
    for k in range(table.prices.shape[1] * SCALES):
        price = table.prices[0, k // SCALES] * 0.5 ** (k % SCALES)
        saved = 0.0
        for s in range(count):
            saved_here = flying[s] * (sums[FREED, s + 1] - sums[FREED, s])
            scores = flying[s] * (sums[SCORES, s + 1] - sums[SCORES, s])
            attention = sums[ATTENTION, s + 1] - sums[ATTENTION, s]
            gained = price * saved_here - (sums[AGAIN, s + 1] - sums[AGAIN, s])
            saved += max(0.0, gained, price * scores - attention)
        recomputed = max(recomputed, price * lack - saved)
    return bool(microbatches * (total + recomputed) + end <= speed * step)


def _bound_mixed(space: Space, alike: Sequence[MeshKind], high: float) -> float:
    """Return a lower bound on the step of any meshes that follow each other, `high` at most."""
    count = space.pricer.fabric.cluster.num_devices
    tables: list[Relaxed] = []
    number = np.full((len(alike), count), -1, dtype=np.int64)
    for k, shape in enumerate(alike):
        numbers: dict[object, int] = {}
        for first in range(count - shape.devices + 1):
            mesh = shape.mesh(first)
            kind = _kind(space, mesh)
            if kind not in numbers:
                relaxation = relax_meshes(space.pricer, [mesh], shape)
                if relaxation is None:
                    continue
                numbers[kind] = len(tables)
                tables.append(relaxation)
            number[k, first] = numbers[kind]
    size = np.array([shape.devices for shape in alike], dtype=np.int64)
    table = stack_tables(tables)
    least_of_segments = np.diff(table.sums[:, LEAD]).min(axis=0)
    lead = np.concatenate([[0.0], np.cumsum(least_of_segments)])
    microbatches = space.microbatches
    return _bisect(partial(_holds_mixed, table, number, size, lead, microbatches), high)


@numba.njit(cache=True)
def _holds_mixed(
    table: Relaxed,
    number: LongArray,
    size: LongArray,
    lead: FloatArray,
    microbatches: int,
    step: float,
) -> bool:
    """Return whether stages on meshes that follow each other can hold a step.

    Args:
        table: Prefix sums of all kinds of meshes.
        number: Kind of each mesh that begins at each device; negative if there is none. [meshes,
            devices]
        size: Devices of each mesh. [meshes]
        lead: Least seconds of F of the segments before each. [segments + 1]
        microbatches: M, the number of micro-batches of a step.
        step: T, seconds that a step may take.
    """
    prefix = _before(table, number, size, lead, microbatches, step)
    count = prefix.shape[0] - 1
    devices = prefix.shape[1] - 1
    if prefix[count, devices] == np.inf:
        return False
    # Least seconds of F + I by first segment and first device; devices may stay idle.
    suffix = np.full((count + 1, devices + 1), np.inf)
    suffix[count, :] = 0.0
    for begin in range(devices - 1, -1, -1):
        suffix[:, begin] = suffix[:, begin + 1]
        for first in range(count - 1, -1, -1):
            past = prefix[first, begin]
            if past == np.inf:
                continue
            for mesh in range(len(size)):
                kind = number[mesh, begin]
                if kind < 0:
                    continue
                sums = table.sums[kind]
                working = 0.0
                remaining = suffix[:, begin + size[mesh]]
                for last in range(first + 1, count + 1):
                    working = max(working, table.working[kind, last - 1])
                    # Longer stages only take more.
                    if (
                        microbatches * (sums[ALL, last] - sums[ALL, first])
                        > step - past
                    ):
                        break
                    total = remaining[last] + sums[BOTH, last] - sums[BOTH, first]
                    if total >= suffix[first, begin]:
                        continue
                    surroundings = StageSurroundings(
                        working, past, lead[first], remaining[last]
                    )
                    if stage_holds(
                        table, kind, first, last, surroundings, microbatches, step
                    ):
                        suffix[first, begin] = total
    return bool(suffix[0, 0] < np.inf)


@numba.njit(cache=True)
def _before(
    table: Relaxed,
    number: LongArray,
    size: LongArray,
    lead: FloatArray,
    microbatches: int,
    step: float,
) -> FloatArray:
    """Return the least seconds of F + I of the stages before a segment on the devices before one.

    Memory is left out; arguments are those of `_holds_mixed`. It is infinite where no stages fit.
    [segments + 1, devices + 1]
    """
    count = len(lead) - 1
    devices = number.shape[1]
    least_busy = np.full((count + 1, devices + 1), np.inf)
    least_busy[0, :] = 0.0
    for begin in range(devices):
        if begin > 0:
            least_busy[:, begin] = np.minimum(
                least_busy[:, begin], least_busy[:, begin - 1]
            )
        for first in range(count):
            past = least_busy[first, begin]
            if past == np.inf:
                continue
            for mesh in range(len(size)):
                kind = number[mesh, begin]
                if kind < 0:
                    continue
                sums = table.sums[kind]
                to = begin + size[mesh]
                for last in range(first + 1, count + 1):
                    stage_seconds = microbatches * (sums[ALL, last] - sums[ALL, first])
                    end = sums[END, last] - sums[END, first]
                    if stage_seconds > min(step - past, step - lead[first] - end):
                        break
                    total = past + sums[BOTH, last] - sums[BOTH, first]
                    least_busy[last, to] = min(least_busy[last, to], total)
    for begin in range(1, devices + 1):
        least_busy[:, begin] = np.minimum(
            least_busy[:, begin], least_busy[:, begin - 1]
        )
    return least_busy
