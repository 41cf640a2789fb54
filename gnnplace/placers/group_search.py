"""Searches by general-purpose optimizers: a device for each of a few groups of units.

Such an optimizer cannot handle one variable per op. ``coarse_problem`` joins units (colocation
classes) to 4 to 10 groups (with more, answers within seconds were worse: ``benchmarks/README.md``),
and a candidate gives each group a device. A candidate is evaluated by one call of
``SearchSpace.sequence`` on the whole problem: the best order of list scheduling, simulated, with
the usual penalty on memory. Every search first tries all groups on one device, one device of each
kind and memory size, so that none is worse than that by chance. With budget 0 each search makes
``EVALUATIONS`` evaluations, which compares them at equal evaluations. With a budget in seconds it
makes as many as it has time for.

``optuna`` is the tree-structured Parzen estimator (Bergstra et al., "Algorithms for hyper-parameter
optimization", NeurIPS 2011), by Optuna's ``TPESampler``: a group is a categorical variable, and the
simulated step time is the objective. Its first candidates are random. The sampler itself takes
several milliseconds a candidate, more with each candidate, so that in a given time it evaluates far
fewer than ``random-search``, which draws devices at random. The difference between the two is what
a model of good candidates adds. Complexity: O(evaluations) list schedules and simulations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.coarse_problem import coarse_problem
from gnnplace.placers.search.space import NO_BUDGET, SearchSpace, read_clock
from gnnplace.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = 40  # ops of the coarse problem a micro-batch; a layer's ops share a group
EVALUATIONS = 64
LARGEST_SEED = 2**31


class GroupSearch:
    """The groups of a problem and the best choice so far.

    Attributes:
        group_of: group of each op. [n]
        allowed: whether a device may have a group. [G, D]
        evaluations: the number of choices that were evaluated so far.
        score: seconds of the best choice, with a penalty for memory; inf before the first.

    Args:
        space: the problem's search space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.group_of, self.allowed = make_groups(space.problem)
        self.evaluations = 0
        self.score = np.inf
        self._best: tuple[IntArray, IntArray] | None = None

    def evaluate(self, choice: IntArray) -> float:
        """Return the seconds of a device for every group, which is kept if it is the best; inf if
        no way.

        Args:
            choice: allowed devices. [G]
        """
        device = choice[self.group_of].astype(np.int32)
        score, order = self.space.sequence(device)
        self.evaluations += 1
        if self._best is None or score < self.score:
            self.score = score
            self._best = (device, order)
        return score

    def one_device(self, first: int) -> IntArray:
        """Return device ``first`` for each group that may be there, else the least busy one. [G]"""
        rank = np.argsort(np.argsort(self._work()))
        rank[first] = -1
        preference = np.where(self.allowed, -rank, -len(rank))
        return preference.argmax(axis=1).astype(np.int32)

    def firsts(self) -> list[int]:
        """Return a device of each kind and memory, the one with the least work first."""
        problem = self.space.problem
        work = self._work()
        alike = np.stack([work, problem.cluster.memory])
        different = np.unique(alike, axis=1, return_index=True)[1]

        def precedence(device: int) -> tuple[int, float, int]:
            return -self.allowed[:, device].sum(), work[device], device

        return sorted(different.tolist(), key=precedence)

    def _work(self) -> FloatArray:
        """Return the seconds of all that each device may run. [D]"""
        work = self.space.work
        finite_work = np.where(np.isfinite(work), work, 0.0)
        return finite_work.sum(axis=0)

    def run(self, propose: Callable[[], IntArray], deadline: float) -> Found:
        """Evaluate ``one_device`` of each kind, then proposals until the deadline; return
        the best.
        """
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
        return read_clock() < deadline


def make_groups(problem: Problem) -> tuple[IntArray, BoolArray]:
    """Group of each op and the devices that each group may be on. [n], [G, D]

    Where ops cannot be grouped the groups are the units.
    """
    coarse = coarse_problem(problem, GROUPS * problem.microbatches)
    if coarse is None:
        return problem.unit_of, problem.unit_allowed
    return coarse.problem.unit_of[coarse.group], coarse.problem.unit_allowed


class RandomSearch(Placer):
    """The best of random choices."""

    name = "random-search"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        groups = GroupSearch(space)

        def propose() -> IntArray:
            ticket = np.where(groups.allowed, rng.random(groups.allowed.shape), -1.0)
            return ticket.argmax(axis=1).astype(np.int32)

        return groups.run(propose, deadline)


class Optuna(Placer):
    """TPE on groups."""

    name = "optuna"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        with _silent():
            asking = _Asking(space, int(rng.integers(LARGEST_SEED)))
            return asking.run(asking.propose, deadline)


class _Asking(GroupSearch):
    """Groups with a study: proposals are trials, evaluations are told."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        import optuna  # late: a second, of use to nobody else in this room

        super().__init__(space)
        categorical = optuna.distributions.CategoricalDistribution
        self.variables = {
            f"g{i}": categorical(np.flatnonzero(row).tolist())
            for i, row in enumerate(self.allowed)
        }
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self.trial: Any = None

    def propose(self) -> IntArray:
        """Return the sampler's next choice. [G]"""
        self.trial = self.study.ask(self.variables)
        return np.array(
            [self.trial.params[name] for name in self.variables], dtype=np.int32
        )

    def evaluate(self, choice: IntArray) -> float:
        """Evaluate as ``GroupSearch`` does, and tell the study."""
        value = super().evaluate(choice)
        if self.trial is None:
            self._tell_first(choice, value)
        else:
            self.study.tell(self.trial, value)
        return value

    def _tell_first(self, choice: IntArray, value: float) -> None:
        import optuna

        params = dict(zip(self.variables, choice.tolist(), strict=True))
        first = optuna.trial.create_trial(
            params=params, distributions=self.variables, value=value
        )
        self.study.add_trial(first)


@contextmanager
def _silent() -> Iterator[None]:
    """Have Optuna say nothing but warnings within it."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
