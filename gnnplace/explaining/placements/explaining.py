"""``Explanation``: what bounds a step, where each device's seconds go, and what else would cost.

The price of each constraint: the same search with it and without it.

A constraint's price is the step time found with all constraints, minus the step time that the same
search, with the same budget and seed, finds without this one. The given placement is also a
solution with fewer constraints, so that no price is below zero. For the memory constraint, devices
get unlimited memory. Complexity: one search for each constraint, and one more.

The seconds of each device: computing, and the causes of idle time.

When a device computes nothing, one of five causes applies: it makes a copy that it sends; its next
op waits for an input that another device has not computed yet; or for an input that is in transfer;
it spends overheads of messages; or it has no next op. These five and computing sum to the step time
on every device. Complexity: O(n + consumptions + copies).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.explaining.placements.alternatives import (
    Alternative,
    alternatives,
    ops_named,
)
from gnnplace.explaining.placements.causes import Causes
from gnnplace.explaining.placements.critical_path import KINDS, PathPiece, critical_path
from gnnplace.explaining.placements.modules import module_rows
from gnnplace.placers import Result, SearchSpace
from gnnplace.placing import PlaceOptions, place
from gnnplace.problem import (
    Constraints,
    Given,
    Placement,
    Problem,
    as_constraints,
    constrained,
    resolve,
)
from gnnplace.simulation import LowerBounds, Simulation, lower_bounds

PLENTY = 1e18  # bytes
T = TypeVar("T")
Place = Callable[[Problem, int | None], Result]
"""Places a problem on at most so many devices."""


@dataclass(frozen=True)
class Loosened:
    """One constraint, and the step without it.

    Attributes:
        constraint: the constraint in words.
        step_time: seconds that are found without it; inf where nothing is.
        gain: seconds that it costs, at least 0.
        note: why nothing was found.
    """

    constraint: str
    step_time: float
    gain: float
    note: str = ""


def loosened(
    problem: Problem,
    constraints: Constraints,
    known_step_time: float,
    place: Place,
) -> tuple[float, list[Loosened]]:
    """Price every constraint of a problem, the dearest first.

    Args:
        problem: what is placed, its own pins, forbids and memory among the constraints.
        constraints: what the user asked for; ``problem`` may obey them already. Classes that it was
            captured with cannot be parted again, and have no price.
        known_step_time: seconds of the placement at hand.
        place: the search; called once for each constraint and once with all.

    Returns:
        Seconds of the search with all constraints, if that is below what is known, and the prices.
    """
    free = _without_rules(problem, constraints)
    searched, _ = _seconds(place, constrained(free, constraints), constraints)
    with_all = min(known_step_time, searched)
    prices = []
    for label, base, remaining in _without_each(problem, free, constraints):
        try:
            seconds, note = _seconds(place, constrained(base, remaining), remaining)
        except InfeasibleError as error:
            seconds = np.inf
            note = str(error)
        seconds = min(seconds, with_all)
        prices.append(Loosened(label, seconds, with_all - seconds, note))
    return with_all, sorted(prices, key=lambda price: -price.gain)


def _seconds(
    place: Place, problem: Problem, constraints: Constraints
) -> tuple[float, str]:
    """Return the step time that a search finds, or inf and why it finds none."""
    try:
        return place(problem, constraints.max_devices).step_time, ""
    except GnnplaceError as error:
        return np.inf, str(error)


def _without_each(
    problem: Problem, free: Problem, constraints: Constraints
) -> Iterator[tuple[str, Problem, Constraints]]:
    """Yield each constraint in words, and the problem and constraints without it."""
    for k, rule in enumerate(constraints.pin):
        fewer = replace(constraints, pin=_without(constraints.pin, k))
        yield f"pin {rule}", free, fewer
    for k, rule in enumerate(constraints.forbid):
        fewer = replace(constraints, forbid=_without(constraints.forbid, k))
        yield f"forbid {rule}", free, fewer
    for k, patterns in enumerate(constraints.together):
        if _is_open(free, constraints, k):
            fewer = replace(constraints, together=_without(constraints.together, k))
            yield f"together {','.join(patterns)}", free, fewer
    max_devices = constraints.max_devices
    if max_devices is not None and max_devices < problem.num_devices:
        unlimited = replace(constraints, max_devices=None)
        yield f"max-devices {max_devices}", free, unlimited
    if (free.pin >= 0).any():
        unpinned = np.full(free.num_ops, -1, dtype=np.int32)
        yield "the problem's own pins", replace(free, pin=unpinned), constraints
    if free.forbid is not None:
        yield "the problem's own forbids", replace(free, forbid=None), constraints
    if any(device.reserve > 0 for device in problem.cluster.devices):
        unreserved = replace(free, cluster=free.cluster.each_device(reserve=0.0))
        yield "headroom", unreserved, replace(constraints, headroom=None)
    large = replace(free, cluster=free.cluster.each_device(memory=PLENTY))
    yield "memory of the devices", large, constraints


def _without(rules: tuple[T, ...], index: int) -> tuple[T, ...]:
    return rules[:index] + rules[index + 1 :]


def _is_open(problem: Problem, constraints: Constraints, index: int) -> bool:
    """Return whether the problem's own classes leave open what a rule keeps together.

    A model that was captured under the rule has groups that are one class already.
    """
    rule = Constraints(together=(constraints.together[index],))
    matched = resolve(rule, problem.module, problem.graph.names).together[0].ops
    return len(np.unique(problem.unit_of[matched])) > 1


def _without_rules(problem: Problem, constraints: Constraints) -> Problem:
    """Return the problem without pins and forbids, if these are what the constraints ask for."""
    rules = Constraints(pin=constraints.pin, forbid=constraints.forbid)
    if not rules:
        return problem
    resolved = resolve(rules, problem.module, problem.graph.names)
    pin = problem.pin.copy()
    forbid = problem.forbid
    barred = None if forbid is None else forbid.copy()
    for matched in resolved.matched:
        pin[matched.ops] = -1
        if barred is not None:
            barred[matched.ops] = False
    if barred is not None and barred.any():
        forbidden = barred
    else:
        forbidden = None
    free = replace(problem, pin=pin, forbid=forbidden)
    same = (constrained(free, rules).allowed == problem.allowed).all()
    return free if same else problem


@dataclass(frozen=True, eq=False)
class Explanation:
    """An explanation of what bounds a placement's step.

    Attributes:
        problem: what was placed.
        simulation: its step.
        pieces: the critical path, first to last.
        devices: where each device's seconds go. [D]
        bounds: lower bounds of the problem.
        question: what was asked about, such as "module head"; empty if nothing was.
        current_devices: names of the devices that it is on.
        alternatives: The cost of each other device. [D]
        prices: what each constraint costs, if that was asked.
        searched: seconds of the same search with all constraints.
    """

    problem: Problem
    simulation: Simulation
    pieces: tuple[PathPiece, ...]
    devices: tuple[DeviceTime, ...]
    bounds: LowerBounds
    question: str = ""
    current_devices: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    prices: tuple[Loosened, ...] | None = None
    searched: float = float("nan")

    @property
    def shares(self) -> dict[str, float]:
        """Share of the step that the critical path spends on each of ``KINDS``."""
        total = max(self.simulation.step_time, 1e-300)
        return {
            k: sum(p.seconds for p in self.pieces if p.kind == k) / total for k in KINDS
        }

    def by_module(self) -> list[tuple[str, dict[str, float]]]:
        """Return the seconds on the critical path by module and kind, the longest module first."""
        labels, row = module_rows(self.problem)
        by_label: dict[str, dict[str, float]] = {}
        for piece in self.pieces:
            if piece.seconds > 0:
                seconds = by_label.setdefault(
                    labels[row[piece.op]], dict.fromkeys(KINDS, 0.0)
                )
                seconds[piece.kind] += piece.seconds
        return sorted(by_label.items(), key=lambda entry: -sum(entry[1].values()))


def explain(
    problem: Problem,
    placement: Placement,
    *,
    op: str | None = None,
    module: str | None = None,
    constraints: Given | None = None,
    loosen: PlaceOptions | None = None,
) -> Explanation:
    """Return what bounds the step of a placement.

    Args:
        problem: what was placed, with or without the constraints.
        placement: devices and sequences.
        op: an op whose other devices are simulated.
        module: a module, or a pattern of modules.
        constraints: what was asked for when it was placed.
        loosen: how to search once without each constraint, to say what it costs; None: not at all.

    Raises:
        InputError: nothing has that name; shows names that are like it.
        InfeasibleError: the placement cannot run.
        DeadlockError: its sequences contradict the graph.
    """
    rules = as_constraints(constraints)
    base = problem
    problem = constrained(problem, rules)
    space = SearchSpace(problem)
    order = space.simulator.find_order(placement)
    simulation = space.simulator.run(placement.device, order)
    if not np.isfinite(simulation.step_time):
        raise InfeasibleError(
            f"explain: the placement cannot run: {simulation.faults[0]}"
        )
    causes = Causes(problem, simulation)
    explanation = Explanation(
        problem=problem,
        simulation=simulation,
        pieces=critical_path(causes),
        devices=tuple(device_times(causes)),
        bounds=lower_bounds(problem),
        searched=simulation.step_time,
    )

    if op is not None or module is not None:
        ops = ops_named(space, op=op, module=module)
        devices = np.unique(simulation.device[ops])
        explanation = replace(
            explanation,
            question=f"op {op}" if op is not None else f"module {module}",
            current_devices=tuple(problem.cluster.devices[d].name for d in devices),
            alternatives=tuple(alternatives(space, simulation.device, order, ops)),
        )

    # What a constraint costs is the gain of a search without it.
    if loosen is not None:
        # From the problem without the rules: a problem that obeys them cannot be loosened.
        searched, prices = loosened(
            base, rules, simulation.step_time, partial(_search, loosen)
        )
        explanation = replace(explanation, searched=searched, prices=tuple(prices))
    return explanation


def _search(options: PlaceOptions, problem: Problem, max_devices: int | None) -> Result:
    return place(
        problem,
        placer=options.placer,
        budget=options.budget,
        seed=options.seed,
        constraints=Constraints(max_devices=max_devices),
    )


Interval = tuple[float, float]


@dataclass(frozen=True)
class DeviceTime:
    """Seconds of one device.

    Attributes:
        computing: Seconds in which its ops run.
        other_device: waiting for what another device has not made yet.
        transfer: waiting for what is on its way to it.
        messages: copies that it makes itself, and overheads of messages.
        nothing_left: Seconds after its last op; the whole step if it has no op.
    """

    computing: float = 0.0
    other_device: float = 0.0
    transfer: float = 0.0
    messages: float = 0.0
    nothing_left: float = 0.0

    @property
    def idle(self) -> float:
        """Return the seconds that the device does not compute."""
        return self.other_device + self.transfer + self.messages + self.nothing_left


def device_times(causes: Causes) -> list[DeviceTime]:
    """Return what each device's seconds of the step are spent on. [D]"""
    return [_device_time(causes, d) for d in range(causes.problem.num_devices)]


def _device_time(causes: Causes, device: int) -> DeviceTime:
    s = causes.simulation
    free = 0.0
    computing = 0.0
    waiting = 0.0
    transfer = 0.0
    messages = 0.0
    sends = [
        (float(s.transfers.start[k]), float(s.transfers.end[k]))
        for k in causes.copies[device]
    ]
    sent = 0  # copies that end before the gap
    for op in causes.sequences[device].tolist():
        start = float(s.start[op])
        finish = float(s.finish[op])
        while sent < len(sends) and sends[sent][1] <= free:
            sent += 1
        ready, arrived = _inputs(causes, op)
        if start > free:
            copying = _within(sends[sent:], (free, start))
        else:
            copying = []
        waits = _pieces(copying, (free, start))
        waiting += sum(_overlap(wait, (0.0, ready)) for wait in waits)
        transfer += sum(_overlap(wait, (ready, max(ready, arrived))) for wait in waits)
        messages += sum(_overlap(wait, (max(ready, arrived), np.inf)) for wait in waits)
        messages += sum(end - begin for begin, end in copying)
        computing = computing + finish - start
        free = finish
    tail = float(s.step_time) - free
    copying = _within(sends, (free, float(s.step_time)))
    last = sum(end - begin for begin, end in copying)
    return DeviceTime(computing, waiting, transfer, messages + last, tail - last)


def _inputs(causes: Causes, op: int) -> tuple[float, float]:
    """Return when all inputs of an op were made on other devices, and when they had arrived."""
    s = causes.simulation
    incoming = causes.incoming[op]
    if not incoming:
        return 0.0, 0.0
    return (
        float(s.finish[causes.producer[incoming]].max()),
        float(s.transfers.arrival[incoming].max()),
    )


def _within(sends: list[Interval], gap: Interval) -> list[Interval]:
    """Clip copies to a gap. Copies of one device come one after the other."""
    clipped = []
    for begin, end in sends:
        if begin >= gap[1]:
            break
        if _overlap((begin, end), gap) > 0:
            clipped.append((max(begin, gap[0]), min(end, gap[1])))
    return clipped


def _pieces(copying: list[Interval], gap: Interval) -> list[Interval]:
    """Return the parts of a gap in which nothing is copied."""
    gaps = []
    at = gap[0]
    for begin, end in copying:
        if begin > at:
            gaps.append((at, begin))
        at = max(at, end)
    if gap[1] > at:
        return [*gaps, (at, gap[1])]
    return gaps


def _overlap(one: Interval, other: Interval) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
