"""Labels for imitation: placements by annealing, cleaned of moves that do not matter.

For each problem the untrained policy's best placement is annealed: units move one by one, with
their neighbours, or as a stretch of the graph, and the order of ops is made anew each round, as it
will be for the policy. Then every unit goes back to where the policy had it, if the step time stays
within ``SLACK``: half of an annealer's moves change nothing and would only be noise to learn.
The number of moves is fixed, so the same problem gets the same label on any machine.
Labels are kept in a folder, one ``.npz`` for each ``CHUNK`` problems, so that building resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnplace.placers import SearchSpace
from gnnplace.placers.annealing import (
    Neighbourhood,
    energy,
    move_units,
    neighbourhood,
    propose,
    seed_kernel,
    undo_move,
)
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.model import PlacementPolicy
from gnnplace.simulation import Compiled

IntArray = NDArray[np.int32]
CHUNK = 50
SLACK = 1e-3
ROUNDS = 16
HOT, COLD = 0.03, 0.0001  # first and last temperature, as shares of the start's step time
OP_MOVES = 4_000_000  # moves times ops: about a third of a second
MOST_MOVES = 30_000


@dataclass(frozen=True, eq=False)
class Label:
    """A good placement of a problem.

    Attributes:
        index: number of the problem.
        aim: what the policy aimed at when it made the placement that was annealed.
        unit_device: device of each unit. [U]
        gain: log step time below that of the policy's placement.
    """

    index: int
    aim: Aim
    unit_device: IntArray
    gain: float


@njit(cache=True, boundscheck=False)
def anneal_units(
    c: Compiled,
    h: Neighbourhood,
    unit_device: IntArray,
    device: IntArray,
    order: IntArray,
    now: float,
    temperature: float,
    moves: int,
) -> float:
    """``moves`` moves of units at one temperature, in place; the energy after them."""
    num_units = len(unit_device)
    touched = np.empty(num_units + 16, np.int32)
    former = np.empty(num_units + 16, np.int32)
    for _ in range(moves):
        threshold = now - temperature * np.log(1.0 - np.random.random())  # noqa: NPY002
        count, target = propose(h, unit_device, touched)
        changed = move_units(h, unit_device, device, touched[:count], target, former)
        if changed == 0:
            continue
        tried = energy(c, h, device, order, threshold)
        if tried <= threshold:
            now = tried
            continue
        undo_move(h, unit_device, device, touched[:count], former)
    return now


def make_label(space: SearchSpace, index: int, policy: PlacementPolicy) -> Label:
    """Anneals the policy's placement of one problem and cleans the result."""
    start = Rollouts(space, policy).greedy()[0]
    seed_kernel(index % 2**31)
    unit_device, order = start.unit_device.copy(), start.order
    best, best_score, best_order = unit_device.copy(), start.score, order
    moves = int(min(MOST_MOVES, OP_MOVES // space.problem.num_ops)) // ROUNDS + 1
    h, now = neighbourhood(space), start.score
    for temperature in start.score * np.geomspace(HOT, COLD, ROUNDS):
        device = space.spread(unit_device)
        anneal_units(space.compiled, h, unit_device, device, order, now, temperature, moves)
        now, order = space.sequence(space.spread(unit_device))
        if now < best_score:
            best, best_score, best_order = unit_device.copy(), now, order
    cleaned = clean(space, best, start.unit_device, best_order, best_score * (1 + SLACK))
    last = min(best_score, space.sequence(space.spread(cleaned))[0])
    return Label(index, start.aim, cleaned, float(np.log(start.score / max(last, 1e-300))))


def clean(
    space: SearchSpace, unit_device: IntArray, start: IntArray, order: IntArray, most: float
) -> IntArray:
    """``unit_device`` with units back where ``start`` had them, one by one, below ``most``. [U]"""
    result = unit_device.copy()
    for unit in space.unit_order[result[space.unit_order] != start[space.unit_order]]:
        result[unit] = start[unit]
        if space.score(space.spread(result), order) > most:
            result[unit] = unit_device[unit]
    return result


def build_labels(
    folder: str | Path,
    count: int,
    space_of: Callable[[int], SearchSpace],
    policy: PlacementPolicy,
) -> None:
    """Makes what is missing of the labels of problems 0 to ``count`` - 1, chunk by chunk."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for first in range(0, count, CHUNK):
        path = Path(folder) / f"{first}.npz"
        if not path.exists():
            chunk = range(first, min(first + CHUNK, count))
            _write(path, [make_label(space_of(i), i, policy) for i in chunk])


def _write(path: Path, labels: list[Label]) -> None:
    temporary = path.with_name(f"part-{path.name}")
    np.savez_compressed(
        temporary,
        index=np.array([label.index for label in labels]),
        order=np.array([label.aim.order for label in labels]),
        limit=np.array([label.aim.limit for label in labels]),
        rounds=np.array([label.aim.rounds for label in labels]),
        gain=np.array([label.gain for label in labels]),
        size=np.array([len(label.unit_device) for label in labels]),
        device=np.concatenate([label.unit_device for label in labels]).astype(np.int16),
    )
    temporary.rename(path)


def read_labels(folder: str | Path) -> dict[int, Label]:
    """All labels of a folder by the number of the problem."""
    labels: dict[int, Label] = {}
    for path in sorted(Path(folder).glob("[0-9]*.npz")):
        with np.load(path, allow_pickle=False) as data:
            parts = np.split(data["device"].astype(np.int32), np.cumsum(data["size"])[:-1])
            for k, index in enumerate(data["index"].tolist()):
                aim = Aim(str(data["order"][k]), int(data["limit"][k]), int(data["rounds"][k]))
                labels[index] = Label(index, aim, parts[k], float(data["gain"][k]))
    return labels
