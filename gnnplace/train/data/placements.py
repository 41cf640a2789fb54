"""Distinct placements of one problem: of published heuristics, then of random draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import GnnplaceError
from gnnplace.placers import PLACERS as ROSTER
from gnnplace.problem import Placement, Problem
from gnnplace.simulation import simulate

PAIRS = 8
PLACERS = (
    "heft",
    "min-cut",
    "contiguous",
    "interleaved",
    "etf",
    "single",
    "round-robin",
)
MOST_DRAWS = 100  # The most random placements of a graph


@dataclass(frozen=True, eq=False)
class DistinctPlacements:
    """Placements of one problem, no two of them with the same devices.

    Attributes:
        placers: The placer of each placement. [P]
        device: The device of each op by each placement. [n, P]
        step_time: Predicted seconds. [P]
    """

    placers: tuple[str, ...]
    device: IntArray
    step_time: FloatArray


def distinct_placements(problem: Problem, seed: int) -> DistinctPlacements:
    """Return ``PAIRS`` placements that the simulator finds no fault in."""
    placements: dict[bytes, tuple[str, IntArray, float]] = {}
    for name, device in _candidates(problem, seed):
        if len(placements) == PAIRS:
            break
        simulation = simulate(problem, Placement(device))
        if not simulation.faults:
            placements.setdefault(
                device.tobytes(), (name, device, simulation.step_time)
            )
    names, devices, seconds = zip(*placements.values(), strict=True)
    return DistinctPlacements(
        placers=names, device=np.stack(devices, axis=1), step_time=np.array(seconds)
    )


def _candidates(problem: Problem, seed: int) -> Iterator[tuple[str, IntArray]]:
    """Yield devices of placers, then random ones: blocks of units in order of the graph."""
    for name in PLACERS:
        try:
            result = ROSTER[name].make().place(problem, budget=0.0, seed=seed)
        except GnnplaceError:
            continue
        yield name, result.placement.device
    rng = np.random.default_rng([seed, PAIRS])
    units = problem.unit_of
    for _ in range(MOST_DRAWS):
        blocks = int(rng.integers(2, 4 * problem.num_devices))
        bounds = np.sort(rng.integers(0, problem.num_units, blocks))
        of_block = rng.integers(0, problem.num_devices, blocks + 1)
        device = of_block[
            np.searchsorted(bounds, np.arange(problem.num_units), side="right")
        ]
        yield "random", device[units].astype(np.int32)
