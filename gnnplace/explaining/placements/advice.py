"""Advice on a placement: used and idle devices with reasons, and what is worth trying next.

Only what was simulated is advised, and "best" refers only to what was tried:

* one device: everything on the best single device;
* an idle device: ``PARTS`` of the busiest device's work, by coordinate, are moved there, and the
  shortest step is reported;
* micro-batches: the problem is split into 2, 4 and 8. Bytes and times are divided, except the time
  to launch each captured op (``costs.floors``: 22 us on GPUs, 5 us on CPUs). It is placed without a
  budget, by ``contiguous`` if the placer tries that, otherwise by the placer. Of the numbers that
  give a shorter step and that the model can be split into, the best is reported.

Complexity: a few list schedules for each sort of idle device, one construction for each number of
micro-batches, until ``seconds`` are over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from gnnplace.arrays import BoolArray
from gnnplace.costs import EAGER
from gnnplace.errors import GnnplaceError
from gnnplace.placers import NO_BUDGET, Result, SearchSpace, Single, read_clock
from gnnplace.placing import place
from gnnplace.problem import UPDATE, Problem, with_microbatches
from gnnplace.simulation import Simulation

COUNTS = (2, 4, 8)
# The construction `QUICK` is among what the placers of `WIDE` try.
QUICK, WIDE = ("contiguous", ("best", "portfolio", "learned"))
# Shares of the busiest device's units that are moved. Negative: the last ones.
PARTS = (-0.5, 0.5, -0.25, 0.25)
WORTH = 1.05  # times faster, at least, what is advised
CPU = "cpu"
MOST_OPS = 20_000  # Larger problems are not simulated for advice


@dataclass(frozen=True)
class Idle:
    """Devices that nothing runs on, for one reason.

    Attributes:
        devices: Their names.
        reason: Why nothing runs there.
        step_time: Seconds of the shortest step with a part moved to one of them; None where no
            part was moved.
    """

    devices: tuple[str, ...]
    reason: str
    step_time: float | None = None


@dataclass(frozen=True)
class Try:
    """An option that was simulated and makes the step shorter.

    Attributes:
        option: What to add to the command.
        count: The number of micro-batches that it asks for.
        step_time: Seconds that were simulated with it.
        speedup: How many times faster it is than the placement at hand.
    """

    option: str
    count: int
    step_time: float
    speedup: float


@dataclass(frozen=True)
class Advice:
    """How well a placement uses its devices, and what is worth trying next.

    Attributes:
        used: names of the devices that ops run on.
        single: seconds of the best step on one device, without pins and forbids; None where none
            can have all.
        idle: the other devices.
        tries: what is faster, and can be done, the fastest first.
        step_time: seconds of the placement.
        counts: numbers of micro-batches that were simulated.
    """

    used: tuple[str, ...]
    single: float | None
    idle: tuple[Idle, ...]
    tries: tuple[Try, ...]
    step_time: float
    counts: tuple[int, ...] = ()

    @property
    def speedup(self) -> float | None:
        """Return how many times faster the placement is than one device."""
        if self.single is None:
            return None
        return self.single / max(self.step_time, 1e-300)

    @property
    def alone_is_best(self) -> bool:
        """Return whether the placement is less than ``WORTH`` times as fast as one device."""
        return self.single is not None and self.step_time > self.single / WORTH


def advise(
    problem: Problem,
    result: Result,
    *,
    placer: str = "best",
    max_devices: int | None = None,
    seconds: float = 1.0,
    can_cut: Callable[[int], bool] | None = None,
) -> Advice:
    """Compute how well a result uses its devices, and what is worth trying next.

    Args:
        problem: what was placed.
        result: what was found.
        placer: The placer that is used to try micro-batches.
        max_devices: The most devices that may be used, if that was asked.
        seconds: Seconds after which nothing more is tried.
        can_cut: Whether the model can be cut into a number of micro-batches. None: into any.
    """
    deadline = read_clock() + seconds
    names = [d.name for d in problem.cluster.devices]
    used = np.bincount(result.placement.device, minlength=problem.num_devices) > 0
    space = SearchSpace(problem)
    trials = list(_tries(problem, placer, deadline))
    return Advice(
        tuple(name for name, is_used in zip(names, used, strict=True) if is_used),
        _single(space),
        tuple(_idle(space, result.simulation, used, max_devices, deadline)),
        _worthwhile(trials, result.step_time, can_cut),
        result.step_time,
        tuple(dict(trials)),
    )


def _single(space: SearchSpace) -> float | None:
    """Return the seconds of a step on the best single device, without pins and forbids.

    Returns None if no device can run all ops.
    """
    problem = space.problem
    if problem.forbid is not None or (problem.pin >= 0).any():
        free = np.full(problem.num_ops, -1, dtype=np.int32)
        space = SearchSpace(replace(problem, pin=free, forbid=None))
    try:
        space.check_possible()
    except GnnplaceError:
        return None
    placement = Single().search(space, np.random.default_rng(0), NO_BUDGET)
    device, order = placement.device, placement.order
    if len(np.unique(device)) > 1 or not space.fits(device, order):
        return None
    seconds = space.simulator.step_time(device, order)
    return seconds if np.isfinite(seconds) else None


def _idle(
    space: SearchSpace,
    simulation: Simulation,
    used: BoolArray,
    most: int | None,
    deadline: float,
) -> Iterator[Idle]:
    """Yield the idle devices, those with the same reason together."""
    problem = space.problem
    reasons = dict[str, list[str]]()
    reasons_by_sort: dict[tuple[object, ...], Idle] = {}
    step_times = dict[str, float | None]()
    for d in np.flatnonzero(~used).tolist():
        device = problem.cluster.devices[d]
        sort = (
            device.kind,
            device.memory,
            device.reserve,
            problem.unit_allowed[:, d].tobytes(),
        )
        if sort not in reasons_by_sort:
            reasons_by_sort[sort] = _reason(
                space, simulation, d, int(used.sum()), most, deadline
            )
        idle = reasons_by_sort[sort]
        reasons.setdefault(idle.reason, []).append(device.name)
        step_times[idle.reason] = idle.step_time
    for reason, names in reasons.items():
        yield Idle(tuple(names), reason, step_times[reason])


def _reason(
    space: SearchSpace,
    simulation: Simulation,
    device: int,
    used: int,
    most: int | None,
    deadline: float,
) -> Idle:
    """Return why a device is idle; the names of its sort are added by the caller."""
    problem = space.problem
    if not np.isfinite(problem.kind_times[:, problem.kind_of[device]]).any():
        return Idle(
            (), f"no op has a time for kind {problem.cluster.devices[device].kind!r}"
        )
    if not problem.unit_allowed[:, device].any():
        return Idle((), "pins and forbids leave it no op")
    if most is not None and used >= most:
        return Idle((), f"max-devices is {most}")
    if problem.num_ops > MOST_OPS or read_clock() > deadline:
        return Idle((), "the answer does not use it; moving parts there was not tried")
    best = min(_splits(space, simulation, device), default=np.inf)
    if simulation.step_time <= 0:
        return Idle((), "no op takes any time")
    change = best / simulation.step_time - 1.0
    if not np.isfinite(best):
        return Idle((), "nothing that was tried fits there")
    if change < 0:
        reason = f"a part moved there makes the step {-change:.1%} shorter; this answer has none"
        return Idle((), reason, best)
    longer = f"the best part moved there makes it {change:.1%} longer"
    return Idle((), f"splitting further does not pay: {longer}", best)


def _splits(space: SearchSpace, simulation: Simulation, device: int) -> Iterator[float]:
    """Yield the step's seconds with a part of the busiest device's units on `device`.

    Parts that do not fit there are left out.
    """
    problem = space.problem
    busy = np.bincount(simulation.device, simulation.finish - simulation.start)
    units = np.unique(problem.unit_of[simulation.device == int(busy.argmax())])
    units = units[problem.unit_allowed[units, device]]
    units = units[np.argsort(space.unit_coordinate[units], kind="stable")]
    for part in PARTS:
        count = int(np.ceil(abs(part) * len(units)))
        if part < 0:
            moved_units = units[-count:]
        else:
            moved_units = units[:count]
        placed = np.where(
            np.isin(problem.unit_of, moved_units), device, simulation.device
        )
        placed = placed.astype(np.int32)
        order = space.sequence(placed)[1]
        if space.fits(placed, order):
            yield space.simulator.step_time(placed, order)


def _tries(
    problem: Problem, placer: str, deadline: float
) -> Iterator[tuple[int, float]]:
    """Yield numbers of micro-batches and the seconds of a step with each."""
    if (
        problem.microbatches > 1
        or problem.num_devices == 1
        or (problem.phase == UPDATE).all()
    ):
        return
    quick = QUICK if placer in WIDE else placer
    for count in COUNTS:
        if read_clock() > deadline or problem.num_ops * count > MOST_OPS:
            return
        with suppress(GnnplaceError):
            yield count, place(_cut(problem, count), placer=quick).step_time


def _worthwhile(
    trials: Iterable[tuple[int, float]],
    step_time: float,
    can_cut: Callable[[int], bool] | None,
) -> tuple[Try, ...]:
    """Return the fastest number of micro-batches that is worth it and can be done, if any is."""
    for count, seconds in sorted(trials, key=itemgetter(1)):
        speedup = step_time / max(seconds, 1e-300)
        if speedup >= WORTH and (can_cut is None or can_cut(count)):
            return (Try(f"--microbatches {count}", count, seconds, speedup),)
    return ()


def _cut(problem: Problem, count: int) -> Problem:
    """Return the problem in micro-batches, whose ops take no less than their launches."""
    cut = with_microbatches(problem, count)
    launches = np.array([len(names) for names in cut.members])
    updates = cut.phase == UPDATE
    time = {}
    for kind, seconds in cut.time.items():
        if kind == CPU:
            launch_seconds = EAGER.view
        else:
            launch_seconds = EAGER.backward
        lowest = np.minimum(
            np.where(updates, 1, count) * seconds, launches * launch_seconds
        )
        time[kind] = np.maximum(seconds, lowest)
    return replace(cut, time=time)
