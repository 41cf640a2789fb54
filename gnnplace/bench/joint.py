"""Cells of the headline table: placements, recipes and plans of one training step side by side.

A problem is a model with its batch on a machine. Placers place its captured ops, once whole and
once cut into the entry's micro-batches, each with half the budget; the faster one counts, as
``place --microbatches`` would find it. The names in ``PLANNED`` are methods of whole layers, priced
by the planner: ``plan`` searches them all together, the others are what people do without it, each
the fastest of its kind (micro-batches and order of actions are searched for all of them).

All take op and link times from the same tables. They differ in what they count: a placement counts
the host's time of every op, a plan only where it is longer than the kernels of a whole stage; so
the rows ``single`` and ``one-device`` are the same step by both clocks, and their ratio is what is
left between them. Times are predicted.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gnnplace.bench.placed import PlacedProblem
from gnnplace.bench.rows import ruled
from gnnplace.bench.suite import Cell, ProblemEntry
from gnnplace.costs.profiling.profiler import profile_model
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.plans.answers import find_baselines, given_plan
from gnnplace.plans.plan import Plan
from gnnplace.plans.search.drafts import BASELINES
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import chain_of
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import with_slack

ALONE = "one-device"
SPENT = ("seconds", "processor_seconds")
PLANNED = ("plan", *BASELINES, ALONE)
Data = dict[str, Any]


@dataclass(eq=False)
class Joint:
    """A model on a machine, captured as ops and as layers, each when a cell first asks for it.

    Attributes:
        entry: the suite's.
        placed: what placers place, by the number of micro-batches.
        plans: what the planner found, by the budget that it had, and the seconds that it took.
    """

    entry: ProblemEntry
    placed: dict[int, PlacedProblem] = field(default_factory=dict)
    plans: dict[float, tuple[dict[str, Plan | None], Data]] = field(default_factory=dict)

    @cached_property
    def cluster(self) -> Cluster:
        """The machine, with the memory that frameworks leave to a model."""
        return with_slack(resolve_cluster(str(self.entry.cluster)))

    @cached_property
    def chain(self) -> Chain:
        """The model's layers.

        Raises:
            GnnplaceError: they cannot be planned.
        """
        accept = self.entry.accept_other_loss
        return chain_of(str(self.entry.model), self.cluster, accept_other_loss=accept)

    def problem(self, microbatches: int) -> PlacedProblem:
        """The model's ops.

        Raises:
            GnnplaceError: they cannot be captured, or not be cut.
        """
        if microbatches not in self.placed:
            options = self.entry.capture_options()
            asked = replace(options, microbatches=microbatches, optimizer="adamw")
            made = profile_model(str(self.entry.model), self.cluster, options=asked)
            self.placed[microbatches] = PlacedProblem(made)
        return self.placed[microbatches]

    def described(self, entry: ProblemEntry) -> Data:
        """The part of a row that tells of the problem; see ``kinds.Loaded``."""
        for capture in (lambda: self.chain, lambda: self.problem(entry.microbatches)):
            with suppress(GnnplaceError):  # here, so that no method's seconds have it
                capture()
        try:
            return self.problem(1).described(entry)
        except GnnplaceError:
            told = ruled(f"{self.chain.fingerprint[:12]}-layers")
            devices = self.cluster.num_devices
            return {"num_devices": devices, "digest": told, "clock": "predicted", **entry.labels}

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """What the method found; see ``kinds.Loaded``."""
        begin = time.perf_counter(), time.process_time()
        found = self._planned(cell) if cell.placer in PLANNED else self._placed(cell, keep)
        wall, processor = time.perf_counter() - begin[0], time.process_time() - begin[1]
        return {**dict(zip(SPENT, (wall, processor), strict=True)), **found}

    def _placed(self, cell: Cell, keep: str) -> Data:
        """The faster of the whole batch and its micro-batches."""
        sizes = dict.fromkeys((1, self.entry.microbatches))
        half = replace(cell, budget=cell.budget / len(sizes))
        found, fault = [], None
        for size in sizes:
            try:
                own = self.problem(size).outcome(half, "", keep)
                found.append({**own, "note": f"{size} micro-batches; {own['note']}".rstrip("; ")})
            except GnnplaceError as error:
                fault = error
        if not found:
            raise fault or InfeasibleError("nothing was tried")
        seconds = sum(one.pop("seconds") for one in found)
        best = min(found, key=lambda one: float(one["step_time"]))
        return {**best, "seconds": seconds}

    def _planned(self, cell: Cell) -> Data:
        """A plan of whole layers; the planner's search is one for all methods, and counts for each.

        Raises:
            InfeasibleError: no plan of the method fits.
        """
        told: Data = {}
        if cell.placer == ALONE:
            words = f"dp=1,tp=1,pp=1,microbatch_size={self.chain.batch}"
            plan: Plan | None = given_plan(self.chain, self.cluster, words)
        else:
            if cell.budget not in self.plans:
                begin = time.perf_counter(), time.process_time()
                found = find_baselines(self.chain, self.cluster, budget=cell.budget)
                spent = time.perf_counter() - begin[0], time.process_time() - begin[1]
                self.plans[cell.budget] = found, dict(zip(SPENT, spent, strict=True))
            plans, told = self.plans[cell.budget]
            plan = plans[cell.placer]
        if plan is None or not plan.feasible:
            raise InfeasibleError(plan.reason if plan and plan.reason else "no plan of it fits")
        held = {name: sum(own.model_dump().values()) for name, own in plan.file.memory.items()}
        return {
            "step_time": plan.step_time,
            "lower_bound": plan.file.lower_bound,
            "feasible": True,
            "peak_memory": [held.get(device.name, 0.0) for device in self.cluster.devices],
            "note": plan.shape,
            **told,
        }
