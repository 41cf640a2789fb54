"""What searches over whole groups of units share: the groups, and what one evaluation is.

A general-purpose optimizer cannot handle a variable an op. Units (colocation classes) are joined by
``coarse_problem``, which gives training steps 4 to 10 groups (more were worse within seconds:
``benchmarks/README.md``); a choice is a device for every group. Evaluating it is one call of
``SearchSpace.sequence`` on the whole problem: the best order that list scheduling finds, simulated,
with the usual penalty for memory. The first choices of every search are all groups on one device,
one of each kind and memory, so that none is worse than that by chance. With budget 0 a search makes
``EVALUATIONS`` evaluations, whoever it is: the comparison at equal evaluations. With seconds it
makes as many as it has time for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.placers.base import Found
from gnnplace.placers.search.clock import NO_BUDGET, now
from gnnplace.placers.search.coarse_problem import coarse_problem
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem

GROUPS = 40  # ops of the coarse problem a micro-batch; a layer's ops share a group
EVALUATIONS = 64


class GroupSearch:
    """The groups of a problem and the best choice so far.

    Attributes:
        group_of: group of each op. [n]
        allowed: whether a device may have a group. [G, D]
        evaluations: made so far.
        score: seconds of the best choice, with a penalty for memory; inf before the first.

    Args:
        space: the problem's search space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.group_of, self.allowed = groups_of(space.problem)
        self.evaluations = 0
        self.score = np.inf
        self._best: tuple[IntArray, IntArray] | None = None

    def evaluate(self, choice: IntArray) -> float:
        """Seconds of a device for every group, which is kept if it is the best; inf if no way.

        Args:
            choice: allowed devices. [G]
        """
        device = choice[self.group_of].astype(np.int32)
        score, order = self.space.sequence(device)
        self.evaluations += 1
        if self._best is None or score < self.score:
            self.score, self._best = score, (device, order)
        return score

    def one_device(self, first: int) -> IntArray:
        """Device ``first`` for each group that may be there, else the least busy one. [G]"""
        rank = np.argsort(np.argsort(self._work()))
        rank[first] = -1
        return np.where(self.allowed, -rank, -len(rank)).argmax(axis=1).astype(np.int32)

    def firsts(self) -> list[int]:
        """A device of each kind and memory, the one with the least work first."""
        problem, work = self.space.problem, self._work()
        alike = np.stack([work, problem.cluster.memory])
        different = np.unique(alike, axis=1, return_index=True)[1]
        return sorted(different.tolist(), key=lambda d: (-self.allowed[:, d].sum(), work[d], d))

    def _work(self) -> FloatArray:
        """Seconds of all that each device may run. [D]"""
        return np.where(np.isfinite(self.space.work), self.space.work, 0.0).sum(axis=0)

    def run(self, propose: Callable[[], IntArray], deadline: float) -> Found:
        """Evaluates ``one_device`` of each kind, then proposals until the deadline; the best."""
        for first in self.firsts():
            self.evaluate(self.one_device(first))
        while self._goes_on(deadline):
            self.evaluate(propose())
        assert self._best is not None
        about = f"{self.evaluations} evaluations, {len(self.allowed)} groups"
        return Found(*self._best, about)

    def _goes_on(self, deadline: float) -> bool:
        if deadline <= NO_BUDGET:
            return self.evaluations < EVALUATIONS
        return now() < deadline


def groups_of(problem: Problem) -> tuple[IntArray, BoolArray]:
    """Group of each op and the devices that each group may be on. [n], [G, D]

    Where ops cannot be grouped the groups are the units.
    """
    coarse = coarse_problem(problem, GROUPS * problem.microbatches)
    if coarse is None:
        return problem.unit_of, problem.unit_allowed
    return coarse.problem.unit_of[coarse.group], coarse.problem.unit_allowed
