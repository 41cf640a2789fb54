"""``Explanation``: what bounds a placement's step, where device time goes, what constraints cost.

**The price of a constraint** (``price_constraints``) is the step time that a search finds with all
constraints, minus the step time that the same search, with the same budget and seed, finds without
this one. A placement that obeys all constraints also obeys fewer, so no price is below zero. For
the price of memory, devices have no limit of memory. Complexity: one search for each constraint,
and one more.

**The seconds of a device** (``sum_device_times``) are computing, and five kinds of idle time:

* the device makes a copy that it sends;
* its next op waits for an input that another device has not computed yet;
* its next op waits for an input that is in transfer;
* it spends the overheads of messages;
* it has no next op.

The first and the fourth are counted together as ``messages``. Computing and idle time add up to the
step time on every device. Complexity: O(n + consumptions + copies).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from gnnplace.arrays import TINY
from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.explaining.placements.alternatives import (
    Alternative,
    alternatives,
    find_named_ops,
)
from gnnplace.explaining.placements.causes import Causes
from gnnplace.explaining.placements.critical_path import (
    KINDS,
    PathPiece,
    find_critical_path,
)
from gnnplace.explaining.placements.modules import module_rows
from gnnplace.placers import Result, SearchSpace
from gnnplace.placing import PlaceOptions, place
from gnnplace.problem import (
    Constraints,
    Given,
    Placement,
    Problem,
    apply_constraints,
    as_constraints,
    resolve,
)
from gnnplace.simulation import LowerBounds, Simulation, lower_bounds

PLENTY = 1e18  # bytes; the memory of a device without a limit
T = TypeVar("T")
Place = Callable[[Problem, int | None], Result]
"""A search: places a problem on at most the given number of devices. None: on any number."""


@dataclass(frozen=True)
class Loosened:
    """One constraint, and the step that is found without it.

    Attributes:
        constraint: The constraint in words.
        step_time: Seconds of the step without it; inf if no placement was found.
        gain: Seconds that the constraint costs, at least 0.
        note: Why no placement was found; empty if one was.
    """

    constraint: str
    step_time: float
    gain: float
    note: str = ""


def price_constraints(
    problem: Problem,
    constraints: Constraints,
    known_step_time: float,
    place: Place,
) -> tuple[float, list[Loosened]]:
    """Price every constraint of a problem, the dearest first.

    Args:
        problem: The problem. Its own pins, forbids and memory are constraints too.
        constraints: The constraints that the user asked for; ``problem`` may already obey them. A
            model that was captured with modules kept together cannot be taken apart again, so that
            constraint has no price.
        known_step_time: Seconds of the placement that is explained.
        place: The search. It is called once with all constraints, and once without each.

    Returns:
        Seconds with all constraints: of the search or of the known placement, whichever is faster.
        And the prices.
    """
    free = _remove_rules(problem, constraints)
    searched, _ = _search_step_time(
        place, apply_constraints(free, constraints), constraints
    )
    with_all = min(known_step_time, searched)
    prices = []
    for label, base, remaining in _drop_each_constraint(problem, free, constraints):
        try:
            seconds, note = _search_step_time(
                place, apply_constraints(base, remaining), remaining
            )
        except InfeasibleError as error:
            seconds = np.inf
            note = str(error)
        seconds = min(seconds, with_all)
        prices.append(
            Loosened(
                constraint=label,
                step_time=seconds,
                gain=with_all - seconds,
                note=note,
            )
        )
    return with_all, sorted(prices, key=lambda price: -price.gain)


def _search_step_time(
    place: Place, problem: Problem, constraints: Constraints
) -> tuple[float, str]:
    """Search and return the step time and no note, or inf and why nothing was found."""
    try:
        return place(problem, constraints.max_devices).step_time, ""
    except GnnplaceError as error:
        return np.inf, str(error)


def _drop_each_constraint(
    problem: Problem, free: Problem, constraints: Constraints
) -> Iterator[tuple[str, Problem, Constraints]]:
    """Yield each constraint in words, and the problem and constraints without it.

    Args:
        problem: The problem as it was given.
        free: The problem without the pins and forbids of ``constraints``.
        constraints: The constraints that the user asked for.
    """
    for k, rule in enumerate(constraints.pin):
        fewer = replace(constraints, pin=_drop_rule(constraints.pin, k))
        yield f"pin {rule}", free, fewer
    for k, rule in enumerate(constraints.forbid):
        fewer = replace(constraints, forbid=_drop_rule(constraints.forbid, k))
        yield f"forbid {rule}", free, fewer
    for k, patterns in enumerate(constraints.together):
        if _joins_units(free, constraints, k):
            fewer = replace(constraints, together=_drop_rule(constraints.together, k))
            yield f"together {','.join(patterns)}", free, fewer
    max_devices = constraints.max_devices
    if max_devices is not None and max_devices < problem.num_devices:
        unlimited = replace(constraints, max_devices=None)
        yield f"max-devices {max_devices}", free, unlimited
    # Pins, forbids, headroom and memory that the problem itself has.
    if (free.pin >= 0).any():
        unpinned = np.full(free.num_ops, -1, dtype=np.int32)
        yield "the problem's own pins", replace(free, pin=unpinned), constraints
    if free.forbid is not None:
        yield "the problem's own forbids", replace(free, forbid=None), constraints
    if any(device.reserve > 0 for device in problem.cluster.devices):
        unreserved = replace(free, cluster=free.cluster.each_device(reserve=0.0))
        yield "headroom", unreserved, replace(constraints, headroom=None)
    unlimited_memory = replace(free, cluster=free.cluster.each_device(memory=PLENTY))
    yield "memory of the devices", unlimited_memory, constraints


def _drop_rule(rules: tuple[T, ...], index: int) -> tuple[T, ...]:
    return rules[:index] + rules[index + 1 :]


def _joins_units(problem: Problem, constraints: Constraints, index: int) -> bool:
    """Return whether a `together` rule joins ops that the problem itself leaves apart.

    A model that was captured under the rule has these ops in one colocation class, and without the
    rule they stay in it.
    """
    rule = Constraints(together=(constraints.together[index],))
    matched = resolve(rule, problem.module, problem.graph.names).together[0].ops
    return len(np.unique(problem.unit_of[matched])) > 1


def _remove_rules(problem: Problem, constraints: Constraints) -> Problem:
    """Return the problem without the pins and forbids of ``constraints``.

    If they are not what restricts these ops, the problem is returned as it is.
    """
    rules = Constraints(pin=constraints.pin, forbid=constraints.forbid)
    if not rules:
        return problem
    resolved = resolve(rules, problem.module, problem.graph.names)
    pin = problem.pin.copy()
    forbid = None if problem.forbid is None else problem.forbid.copy()
    for matched in resolved.matched:
        pin[matched.ops] = -1
        if forbid is not None:
            forbid[matched.ops] = False
    if forbid is not None and not forbid.any():
        forbid = None
    free = replace(problem, pin=pin, forbid=forbid)

    # Other pins and forbids of these ops would be lost: the rules must give the problem back.
    is_reversible = (apply_constraints(free, rules).allowed == problem.allowed).all()
    return free if is_reversible else problem


@dataclass(frozen=True, eq=False)
class Explanation:
    """An explanation of what bounds a placement's step.

    Attributes:
        problem: The problem, with its constraints.
        simulation: The simulated step of the placement.
        pieces: The critical path, from its beginning to its end.
        devices: What each device's seconds are spent on. [D]
        bounds: Lower bounds of the problem's step time.
        question: The op or module that was asked about, such as "module head"; empty if none was.
        current_devices: Names of the devices that the op or module is on.
        alternatives: The step with the op or module on each device. [D]
        prices: The price of each constraint; None if prices were not asked for.
        searched: Seconds with all constraints, found by the search that prices them; without
            prices, those of the placement.
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
        """Return the share of the step that the critical path spends on each of ``KINDS``."""
        step_time = max(self.simulation.step_time, TINY)
        seconds = dict.fromkeys(KINDS, 0.0)
        for piece in self.pieces:
            seconds[piece.kind] += piece.seconds
        return {kind: value / step_time for kind, value in seconds.items()}

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
        problem: The problem, with or without the constraints.
        placement: The devices of ops, and their sequences.
        op: The name of an op; the step with it on each device is simulated.
        module: The same of a module, or a pattern of modules.
        constraints: The constraints that were asked for when it was placed.
        loosen: How to search without each constraint, which gives its price. None: no prices.

    Raises:
        InputError: No op or module has that name; the message shows similar names.
        InfeasibleError: The placement cannot run.
        DeadlockError: Its sequences contradict the graph.
    """
    rules = as_constraints(constraints)
    unconstrained = problem
    problem = apply_constraints(problem, rules)
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
        pieces=find_critical_path(causes),
        devices=tuple(sum_device_times(causes)),
        bounds=lower_bounds(problem),
        searched=simulation.step_time,
    )

    # The step with the op or module on other devices.
    if op is not None or module is not None:
        ops = find_named_ops(space, op=op, module=module)
        devices = np.unique(simulation.device[ops])
        explanation = replace(
            explanation,
            question=f"op {op}" if op is not None else f"module {module}",
            current_devices=tuple(problem.cluster.devices[d].name for d in devices),
            alternatives=tuple(alternatives(space, simulation.device, order, ops)),
        )

    # Prices of constraints. A problem that obeys them cannot be loosened, so that the search begins
    # with the unconstrained one.
    if loosen is not None:
        searched, prices = price_constraints(
            unconstrained, rules, simulation.step_time, partial(_search, loosen)
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
"""Beginning and end, in seconds from the step's start."""


@dataclass(frozen=True)
class DeviceTime:
    """What one device's seconds of a step are spent on.

    Attributes:
        computing: Seconds in which its ops run.
        other_device: Seconds of waiting for an input that another device has not computed yet.
        transfer: Seconds of waiting for an input that is in transfer.
        messages: Seconds of copies that the device makes itself, and of overheads of messages.
        nothing_left: Seconds after its last op; the whole step if it has no op.
    """

    computing: float = 0.0
    other_device: float = 0.0
    transfer: float = 0.0
    messages: float = 0.0
    nothing_left: float = 0.0

    @property
    def idle(self) -> float:
        """Return the seconds in which the device does not compute."""
        return self.other_device + self.transfer + self.messages + self.nothing_left


def sum_device_times(causes: Causes) -> list[DeviceTime]:
    """Return what each device's seconds of the step are spent on. [D]"""
    return [_account_for_device(causes, d) for d in range(causes.problem.num_devices)]


def _account_for_device(causes: Causes, device: int) -> DeviceTime:
    """Walk a device's sequence and divide the gap before each op among the causes of waiting.

    In a gap, time without a copy is waiting for another device until the op's inputs are computed,
    then waiting for transfers until they have arrived, then overheads of messages.
    """
    simulation = causes.simulation
    transfers = simulation.transfers
    free = 0.0
    computing = 0.0
    waiting = 0.0
    transfer = 0.0
    messages = 0.0
    sends = [
        (float(transfers.start[k]), float(transfers.end[k]))
        for k in causes.copies[device]
    ]
    num_sent = 0  # copies that end before the gap
    for op in causes.sequences[device].tolist():
        start = float(simulation.start[op])
        finish = float(simulation.finish[op])
        while num_sent < len(sends) and sends[num_sent][1] <= free:
            num_sent += 1
        ready, arrived = _find_input_times(causes, op)
        arrived = max(ready, arrived)
        if start > free:
            copying = _clip_copies(sends[num_sent:], (free, start))
        else:
            copying = []
        waits = _find_waits(copying, (free, start))
        waiting += sum(_measure_overlap(wait, (0.0, ready)) for wait in waits)
        transfer += sum(_measure_overlap(wait, (ready, arrived)) for wait in waits)
        messages += sum(_measure_overlap(wait, (arrived, np.inf)) for wait in waits)
        messages += sum(end - begin for begin, end in copying)
        computing = computing + finish - start
        free = finish

    # After its last op the device may still send.
    step_time = float(simulation.step_time)
    tail = step_time - free
    last_copies = _clip_copies(sends, (free, step_time))
    last_sends = sum(end - begin for begin, end in last_copies)
    return DeviceTime(
        computing=computing,
        other_device=waiting,
        transfer=transfer,
        messages=messages + last_sends,
        nothing_left=tail - last_sends,
    )


def _find_input_times(causes: Causes, op: int) -> tuple[float, float]:
    """Return when other devices had computed all inputs of an op, and when these had arrived."""
    simulation = causes.simulation
    incoming = causes.incoming[op]
    if not incoming:
        return 0.0, 0.0
    computed = float(simulation.finish[causes.producer[incoming]].max())
    arrived = float(simulation.transfers.arrival[incoming].max())
    return computed, arrived


def _clip_copies(sends: list[Interval], gap: Interval) -> list[Interval]:
    """Clip copies to a gap. Copies of one device come one after the other."""
    clipped = []
    for begin, end in sends:
        if begin >= gap[1]:
            break
        if _measure_overlap((begin, end), gap) > 0:
            clipped.append((max(begin, gap[0]), min(end, gap[1])))
    return clipped


def _find_waits(copying: list[Interval], gap: Interval) -> list[Interval]:
    """Return the intervals of a gap in which nothing is copied."""
    waits = []
    at = gap[0]
    for begin, end in copying:
        if begin > at:
            waits.append((at, begin))
        at = max(at, end)
    if gap[1] > at:
        waits.append((at, gap[1]))
    return waits


def _measure_overlap(first: Interval, second: Interval) -> float:
    """Return the seconds that are in both intervals."""
    return max(0.0, min(first[1], second[1]) - max(first[0], second[0]))
