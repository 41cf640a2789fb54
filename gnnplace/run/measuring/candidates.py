"""Different placements to measure: of placers, adversarial ones, mixtures, random ones.

A simulator that only sees good placements seems always right. Adversarial placements take the best
one and change what predictions depend on: its order, its balance, the number of its messages; or
they change something that does not affect the prediction.

If all placements had about the same prediction, their measured ranks would be chance. So the kinds
take turns, and each contributes the placement whose predicted step time is farthest from those
already chosen: the chosen ones span the range from the best to the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.errors import GnnplaceError
from gnnplace.graph import breadth_first, random_order, topological
from gnnplace.problem import Placement, Problem
from gnnplace.simulation import Simulator, finish_placement

Place = Callable[[str], Placement]
WALK = 400
"""Moves tried on a random walk among placements that are predicted alike."""
TRIES = 4
"""Variations made for each placement that is wanted."""
ALWAYS = ("single", "best", "learned")
"""Placers that readers look for."""
PLACED = "placer"
REORDERED = "best, reordered"
ALIKE = 1.02
"""Step times within this factor are predicted alike."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement to measure, or why there is none.

    Attributes:
        name: The placer, or the variation of one, that made it.
        placement: The placement with its sequences; None if it failed.
        error: Why there is no placement; empty where there is one.
    """

    name: str
    placement: Placement | None
    error: str = ""

    @property
    def kind(self) -> str:
        """Return a variation's name without its number, or one name for all placers."""
        kind, _, number = self.name.rpartition(" ")
        if number.isdecimal():
            return kind
        if "," in self.name:
            return REORDERED
        return PLACED


def draw_candidates(
    problem: Problem,
    placers: Iterable[str],
    place: Place,
    count: int = 30,
    seed: int = 0,
) -> list[Candidate]:
    """Return up to `count` different placements, and a row for every placer that failed.

    Args:
        problem: The problem that is placed in many ways.
        placers: Names of the placers that are asked.
        place: Places the problem with a placer of that name.
        count: Placements wanted; small problems may not have so many.
        seed: The seed of all randomness.
    """
    proposals = [_place(name, place) for name in placers]
    failed = [c for c in proposals if c.placement is None]
    simulator = Simulator(problem)
    rng = np.random.default_rng(seed)
    placed = [c.placement for c in proposals if c.placement is not None]
    best = min(placed, key=lambda p: _seconds(simulator, p), default=None)
    distinct: dict[bytes, Candidate] = {}
    for candidate in (
        *proposals,
        *islice(_variations(problem, simulator, best, rng), TRIES * count),
    ):
        _add(distinct, simulator, candidate)
    return [*_spanning(list(distinct.values()), simulator, count), *failed]


def _spanning(
    found: list[Candidate], simulator: Simulator, count: int
) -> list[Candidate]:
    """Return up to `count` candidates that span the range of predicted step times."""
    predicted = {
        c.name: np.log(_seconds(simulator, c.placement)) for c in found if c.placement
    }
    kinds: dict[str, list[Candidate]] = {}
    for candidate in found:
        kinds.setdefault(candidate.kind, []).append(candidate)
    selected = [candidate for candidate in found if candidate.name in ALWAYS][:count]
    for candidate in selected:
        kinds[candidate.kind].remove(candidate)
    turn = 0
    while len(selected) < min(count, len(found)):
        remaining = list(kinds.values())[turn % len(kinds)]
        turn += 1
        if remaining:
            selected.append(
                max(remaining, key=lambda c: _farness(c, selected, predicted))
            )
            remaining.remove(selected[-1])
    return selected


def _farness(
    candidate: Candidate, chosen: list[Candidate], predicted: dict[str, float]
) -> tuple[float, float]:
    """Return how far a predicted time is from all chosen ones, as a key to sort by.

    Of candidates that are equally far, and at first, the one with the shortest time is first.
    """
    candidate_log = predicted[candidate.name]
    distances = [abs(candidate_log - predicted[c.name]) for c in chosen]
    near = min(distances, default=0.0)
    return near, -candidate_log


def _place(name: str, place: Place) -> Candidate:
    try:
        return Candidate(name, replace(place(name), placer=name))
    except GnnplaceError as error:
        return Candidate(name, None, str(error))


def _add(
    distinct: dict[bytes, Candidate], simulator: Simulator, candidate: Candidate
) -> None:
    """Add a candidate that is new and can run."""
    placement = candidate.placement
    if placement is None:
        return
    key = placement.key
    order = simulator.find_order(placement)
    if key not in distinct and simulator.run(placement.device, order).feasible:
        distinct[key] = candidate


def _seconds(simulator: Simulator, placement: Placement) -> float:
    return simulator.step_time(placement.device, simulator.find_order(placement))


def _variations(
    problem: Problem,
    simulator: Simulator,
    best: Placement | None,
    rng: np.random.Generator,
) -> Iterator[Candidate]:
    """Yield adversarial placements, then mixtures and random ones without end."""
    random_units = _unit_devices(problem, rng)
    if best is not None:
        base = _unit_view(problem, best.device)
    else:
        base = random_units()
    makers: list[tuple[str, Callable[[int], IntArray]]] = [
        ("predicted alike", lambda k: _find_far_equal(problem, simulator, base, rng)),
        ("unbalanced", lambda k: _unbalance(base, rng, (k + 1) / 8)),
        ("many messages", lambda k: _mix(base, random_units(), rng, 0.5)),
        (
            "mixture",
            lambda k: _mix(base, random_units(), rng, rng.uniform(0.02, 0.3)),
        ),
        ("random", lambda k: random_units()),
        ("random chunks", lambda k: _chunks(problem, rng)),
    ]
    if best is not None:
        yield from _list_reordered(problem, best)
    round_ = 0
    while True:
        for name, make in makers:
            device = make(round_)[problem.unit_of].astype(np.int32)
            order = simulator.complete(device)
            label = f"{name} {round_ + 1}"
            yield Candidate(
                label, finish_placement(problem, device, order, placer=label)
            )
        round_ += 1


def _list_reordered(problem: Problem, best: Placement) -> Iterator[Candidate]:
    """Yield the best placement's devices with other orders."""
    graph = problem.graph
    orders = {
        "topological": topological(graph),
        "breadth-first": breadth_first(graph),
        "random order": random_order(graph, 0),
    }
    for name, order in orders.items():
        label = f"best, {name}"
        placement = finish_placement(problem, best.device, order, placer=label)
        yield Candidate(label, placement)


def _unit_view(problem: Problem, device: IntArray) -> IntArray:
    """Return the device of each unit. [U]"""
    units = np.empty(problem.num_units, dtype=np.int32)
    units[problem.unit_of] = device
    return units


def _unit_devices(problem: Problem, rng: np.random.Generator) -> Callable[[], IntArray]:
    allowed = [np.flatnonzero(row) for row in problem.unit_allowed]
    return lambda: np.array(
        [rng.choice(devices) for devices in allowed], dtype=np.int32
    )


def _find_far_equal(
    problem: Problem, simulator: Simulator, base: IntArray, rng: np.random.Generator
) -> IntArray:
    """Return a placement far from the base that is predicted to take as long.

    Its measured step shows what the simulator neglects.
    """
    limit = ALIKE * _complete_row(problem, simulator, base)
    units = base.copy()
    for _ in range(WALK):
        unit = int(rng.integers(problem.num_units))
        trial = units.copy()
        trial[unit] = rng.choice(np.flatnonzero(problem.unit_allowed[unit]))
        if _complete_row(problem, simulator, trial) <= limit:
            units = trial
    return units


def _complete_row(problem: Problem, simulator: Simulator, units: IntArray) -> float:
    device = units[problem.unit_of].astype(np.int32)
    return simulator.step_time(device, simulator.complete(device))


def _unbalance(base: IntArray, rng: np.random.Generator, share: float) -> IntArray:
    """Return a share of all units moved to the device of one of them."""
    is_moved = rng.random(len(base)) < share
    return np.where(is_moved, base[int(rng.integers(len(base)))], base).astype(np.int32)


def _mix(
    base: IntArray, other: IntArray, rng: np.random.Generator, share: float
) -> IntArray:
    return np.where(rng.random(len(base)) < share, other, base).astype(np.int32)


def _chunks(problem: Problem, rng: np.random.Generator) -> IntArray:
    """Return the units in the order of the problem, cut at random places."""
    devices = rng.permutation(problem.num_devices)
    cuts = np.sort(rng.integers(problem.num_units, size=problem.num_devices - 1))
    chunk = np.searchsorted(cuts, np.arange(problem.num_units), side="right")
    units = devices[chunk].astype(np.int32)
    wrong = ~problem.unit_allowed[np.arange(problem.num_units), units]
    units[wrong] = problem.unit_allowed[wrong].argmax(axis=1)
    return units
