"""The contract of every placer: ``Placer``, and what it hands back (``Found``, ``Result``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.errors import GnnplaceError, InfeasibleError, InputError, UnsupportedError
from gnnplace.imports import said
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import (
    LARGE,
    NO_BUDGET,
    SearchSpace,
    choose_better,
    read_clock,
)
from gnnplace.placers.search.space import Found as Found
from gnnplace.problem import Placement, Problem, list_faults
from gnnplace.simulation import (
    LowerBounds,
    Simulation,
    finish_placement,
    lower_bounds,
    quick_bounds,
)

PACKAGE = __name__.partition(".")[0]
# Seconds an op that bounds and the checked placement take after a search.
FINISHING = 1e-5
BOUNDING = 1e-5  # seconds an op that all bounds of a large graph take
QUICK = "quick bounds alone, for want of time"


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a placer.

    Attributes:
        step_time: predicted seconds of the placement.
        lower_bound: seconds no placement can be below.
        seconds: what finding it took.
        peak_memory: bytes of each device. [D]
        note: who found it, or what was given up, in a few words.
        bound_by: which of the bounds the lower bound is; "proof" is a placer's own. Of a large
            graph only the quick ones are looked for where the budget has no room for the others,
            and this says so.
    """

    placement: Placement
    simulation: Simulation
    step_time: float
    lower_bound: float
    seconds: float
    placer: str
    note: str = ""
    bound_by: str = ""

    @property
    def gap(self) -> float:
        """Step time over lower bound, minus one: at most so far from the best possible."""
        if self.lower_bound > 0:
            return self.step_time / self.lower_bound - 1.0
        return 0.0

    @property
    def peak_memory(self) -> FloatArray:
        """Return the bytes of each device at its peak. [D]"""
        return self.simulation.peak_memory

    def get_file_keys(self) -> dict[str, object]:
        """Return what the placement's file says beside the placement: nothing."""
        return {}

    def __str__(self) -> str:
        if self.bound_by:
            by = f", by {self.bound_by}"
        else:
            by = ""
        return (
            f"{self.placer}: predicted {self.step_time:.6g} s, lower bound "
            f"{self.lower_bound:.6g} s (gap {self.gap:.1%}{by}), found in {self.seconds:.3g} s"
            + (f" ({self.note})" if self.note else "")
        )


class Placer(ABC):
    """Finds a placement of a problem.

    A subclass names itself, says in ``supports`` what it cannot do, and writes ``search``.
    ``place`` is what everybody calls: it checks, times, repairs memory and simulates; it never
    returns a placement that does not run or does not fit.
    """

    name: ClassVar[str]

    def supports(self, problem: Problem) -> str | None:
        """Return why this placer cannot place ``problem``; None if it can."""
        return None

    def missing_part(self) -> str:
        """Return what a missing library took away from the last answer; empty if nothing."""
        return ""

    @abstractmethod
    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        """Find devices and an order. Called by ``place`` alone; must not change ``space``.

        Args:
            space: the problem, its simulator, its placement units and their positions.
            rng: the only source of randomness.
            deadline: what `space.read_clock` says when to be back; ``NO_BUDGET``, which is in the
                past, for budget 0: one construction, or a fixed small number of iterations.
        """

    def place(
        self,
        problem: Problem,
        *,
        budget: float = 0.0,
        seed: int = 0,
        space: SearchSpace | None = None,
    ) -> Result:
        """Place ``problem``.

        Args:
            problem: the problem to find devices and sequences for.
            budget: seconds to search; 0 means one construction.
            seed: the seed of all randomness; the same seed gives the same placement where time does
                not decide how far the search gets.
            space: the problem's search space, if the caller already has it.

        Raises:
            UnsupportedError: the placer cannot handle the problem; says why.
            InfeasibleError: no placement that runs and fits was found; says what is in the way.
        """
        begin = read_clock()
        reason = self.supports(problem)
        if reason is not None:
            raise UnsupportedError(f"placer {self.name!r}: {reason}")
        space = space or SearchSpace(problem)
        space.check_possible()
        # The remaining time is for the end.
        searching = max(budget / 2, budget - FINISHING * problem.num_ops)
        if budget > 0:
            deadline = begin + searching
        else:
            deadline = NO_BUDGET
        until = begin + budget if budget > 0 else np.inf
        placement = self._run_search(space, np.random.default_rng(seed), deadline)
        placement = self._repair_found(space, placement)
        for start in space.starts:
            placement = choose_better(
                space,
                placement,
                replace(self._repair_found(space, start), bound=placement.bound),
            )
        return self._result(
            space=space,
            found=placement,
            begin=begin,
            until=until,
            seed=seed,
        )

    def _run_search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        """Return what ``search`` finds; say in one line what a class from elsewhere does wrong."""
        if type(self).__module__.startswith(f"{PACKAGE}."):
            return self.search(space, rng, deadline)
        try:
            outcome = self.search(space, rng, deadline)
        except GnnplaceError:
            raise
        except Exception as error:
            raise InputError(
                f"placer {self.name!r}: its search failed: {said(error)}"
            ) from error
        if fault := _fault(outcome, space.problem):
            raise InputError(f"placer {self.name!r}: its search gave {fault}")
        return outcome

    def _repair_found(self, space: SearchSpace, found: Found) -> Found:
        """Return what was found, with devices within their memory where that can be had."""
        device, order = repair(space, found.device, found.order)
        return replace(found, device=device, order=order)

    def _bounds(self, space: SearchSpace) -> LowerBounds:
        return lower_bounds(space.problem)

    def _too_late_for_bounds(self, space: SearchSpace, until: float) -> bool:
        """Return whether all bounds of a large graph would be found after ``until``, as
        `read_clock` counts.
        """
        ops = space.problem.num_ops
        return ops > LARGE and read_clock() + BOUNDING * ops > until

    def _result(
        self, space: SearchSpace, found: Found, begin: float, until: float, seed: int
    ) -> Result:
        simulation = space.simulator.run(found.device, found.order)
        if not simulation.feasible:
            why = (list_faults(space.problem, found.device) or list(simulation.faults))[
                0
            ]
            raise InfeasibleError(
                f"placer {self.name!r} found no feasible placement: {why}"
            )
        # Bounds of a large graph take long; those that a late search returns take a moment.
        late = self._too_late_for_bounds(space, until)
        bounds = (
            quick_bounds(space.problem, space.compiled) if late else self._bounds(space)
        )
        bound = min(max(bounds.best, found.bound), simulation.step_time)
        seconds = read_clock() - begin
        placement = finish_placement(
            space.problem,
            found.device,
            found.order,
            predicted_step_time=simulation.step_time,
            lower_bound=bound,
            placer=self.name,
            seconds=seconds,
            seed=seed,
        )
        if bounds.best >= found.bound:
            by = bounds.binding
        else:
            by = "proof"
        by += f"; {QUICK}" if late else ""
        return Result(
            placement=placement,
            simulation=simulation,
            step_time=simulation.step_time,
            lower_bound=bound,
            seconds=seconds,
            placer=self.name,
            note="; ".join(filter(None, (found.note, self.missing_part()))),
            bound_by=by,
        )


def _fault(found: object, problem: Problem) -> str:
    """Return what is wrong with the outcome of a search; empty where nothing is."""
    if not isinstance(found, Found):
        return f"{type(found).__name__}, not Found(device, order)"
    device = np.asarray(found.device)
    order = np.asarray(found.order)
    ops = problem.num_ops
    num_devices = problem.num_devices
    if device.shape != (ops,) or device.dtype.kind not in "iu":
        return f"devices of shape {device.shape} and type {device.dtype}, not {ops} whole numbers"
    if ops and not (device.min() >= 0 and device.max() < num_devices):
        return f"device {device.min() if device.min() < 0 else device.max()} of {num_devices}"
    has_shape = order.shape == (ops,)
    if not has_shape or not np.array_equal(np.sort(order), np.arange(ops)):
        return f"an order that does not hold each of {ops} ops once"
    return ""
