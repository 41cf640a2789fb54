"""Cells of the headline table: placements, recipes and plans of one training step side by side.

A problem is a model with its batch on a machine. Placers place its captured ops, once whole and
once cut into the entry's micro-batches, each with half the budget; the faster one counts, as
``place --microbatches`` would find it. The names in ``PLANNED`` are methods of whole layers, priced
by the planner: ``plan`` searches them all together, the others are what people do without it, each
the fastest of its kind (micro-batches and order of actions are searched for all of them).

All take op and link times from the same tables. The rows ``single`` and ``one-device`` are the same
step by both clocks, and their ratio is what is left between them. Times are predicted.

``ddp`` is data parallelism as PyTorch runs it (Li et al., VLDB 2020): gradients of 25 MiB are
all-reduced in the order in which the last backward pass makes them, and hide under the rest of it;
``zero-0`` is the same with nothing hidden, as the planner prices every exchange (what published
runs of Megatron and FSDP take is nearer to that). ``pase`` and ``weird-trick`` split every call
over all devices (module ``pase``). A model is captured once for all its machines that follow one
another in a suite.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from gnnplace.bench.pase import PASE, TRICK, split_step
from gnnplace.bench.placed import PlacedProblem
from gnnplace.bench.rows import STEPS
from gnnplace.bench.suite import Cell, ProblemEntry
from gnnplace.costs import (
    ALL_REDUCE,
    PARAMETER,
    capture_for,
    profile_model,
    resolve_cluster,
)
from gnnplace.errors import GnnplaceError, InfeasibleError, UnsupportedError
from gnnplace.plans import (
    BASELINES,
    Chain,
    MeshFabric,
    Plan,
    PlanSpec,
    SearchOptions,
    TrainingJob,
    capture_chain,
    find_baselines,
    on_cluster,
    price_given_plan,
)
from gnnplace.plans import with_gradients_reduced as reduced
from gnnplace.problem import Cluster, ruled, with_slack
from gnnplace.tracing import CaptureOptions, Program

ALONE = "one-device"
BARE = "zero-0"
DDP = "ddp"
ELSEWHERE = "pcie-a100-2"  # devices that are not here: nothing is allocated
SPENT = ("seconds", "processor_seconds")
PLANNED = ("plan", *BASELINES, BARE, ALONE, PASE, TRICK)
Data = dict[str, Any]


class Timer:
    """A stopwatch by the clock on the wall and by the processor, started when it is made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def seconds(self) -> Data:
        """Return the seconds since the start, by the names of ``SPENT``."""
        wall, processor = self._start
        seconds = time.perf_counter() - wall, time.process_time() - processor
        return dict(zip(SPENT, seconds, strict=True))


@dataclass(eq=False)
class Joint:
    """A model on a machine, captured as ops and as layers, each when a cell first asks for it.

    Attributes:
        entry: The suite's.
        placed: What placers place, by the number of micro-batches.
        plans: The planner's answers, by the seconds of its budget, and what its search took.
    """

    entry: ProblemEntry
    placed: dict[int, PlacedProblem] = field(default_factory=dict)
    plans: dict[float, tuple[dict[str, Plan | None], Data]] = field(
        default_factory=dict
    )

    @cached_property
    def cluster(self) -> Cluster:
        """Return the machine, with the memory that frameworks leave to a model."""
        return with_slack(resolve_cluster(str(self.entry.cluster)))

    @cached_property
    def chain(self) -> Chain:
        """Return the model's layers.

        Raises:
            GnnplaceError: The layers cannot be planned.
        """
        chain = _layers(str(self.entry.model), self.entry.accept_other_loss)
        if isinstance(chain, GnnplaceError):
            raise chain
        return on_cluster(chain, self.cluster)

    def problem(self, microbatches: int) -> PlacedProblem:
        """Return the model's ops.

        Raises:
            GnnplaceError: The ops cannot be captured, or the batch cannot be cut.
        """
        if microbatches not in self.placed:
            program = _program(
                str(self.entry.model), microbatches, self.entry.accept_other_loss
            )
            if isinstance(program, GnnplaceError):
                raise program
            options = replace(self.entry.capture_options(), microbatches=microbatches)
            problem = profile_model(program, self.cluster, options=options)
            self.placed[microbatches] = PlacedProblem(problem)
        return self.placed[microbatches]

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that tells of the problem; see ``kinds.Loaded``."""
        # Capture both forms now, so that no method's seconds contain it.
        with suppress(GnnplaceError):
            _ = self.chain
        with suppress(GnnplaceError):
            self.problem(entry.microbatches)
        try:
            return self.problem(1).described(entry)
        except GnnplaceError:
            return {
                "num_devices": self.cluster.num_devices,
                "digest": ruled(f"{self.chain.fingerprint[:12]}-layers"),
                "clock": "predicted",
                **entry.labels,
            }

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Return the outcome of the method; see ``kinds.Loaded``."""
        timer = Timer()
        if cell.placer in PLANNED:
            outcome = self._planned(cell)
        else:
            outcome = self._placed(cell, keep)
        # Where the method has times of its own (of a search that serves all), those count.
        return {**timer.seconds(), **outcome}

    def _placed(self, cell: Cell, keep: str) -> Data:
        """Return the faster of the whole batch and its micro-batches."""
        sizes = dict.fromkeys((1, self.entry.microbatches))
        half = replace(cell, budget=cell.budget / len(sizes))
        outcomes: list[Data] = []
        failure: GnnplaceError | None = None
        for size in sizes:
            try:
                outcome = self.problem(size).outcome(half, "", keep)
            except GnnplaceError as error:
                failure = error
                continue
            note = f"{size} micro-batches; {outcome['note']}".rstrip("; ")
            outcomes.append({**outcome, "note": note})
        if not outcomes:
            raise failure or InfeasibleError("nothing was tried")
        seconds = sum(outcome.pop("seconds") for outcome in outcomes)
        fastest = min(outcomes, key=lambda outcome: float(outcome["step_time"]))
        return {**fastest, "seconds": seconds}

    def _planned(self, cell: Cell) -> Data:
        """Return the data of a plan of whole layers.

        The planner's search is one for all methods, and counts for each. Without a budget it goes
        on until nothing is left to try, so that its rows repeat bit by bit.

        Raises:
            InfeasibleError: No plan of the method fits.
            UnsupportedError: The budget is in simulated steps, which the planner does not count.
        """
        if cell.unit == STEPS:
            raise UnsupportedError(
                f"{cell.placer!r}: the planner is limited by seconds, not by steps"
            )
        if cell.placer in (PASE, TRICK):
            seconds, peak_bytes = split_step(self.chain, self.cluster, cell.placer)
            peak = [peak_bytes] * self.cluster.num_devices
            return {"step_time": seconds, "feasible": True, "peak_memory": peak}

        search_times: Data = {}
        plan: Plan | None
        if cell.placer == ALONE:
            plan = self._alone()
        else:
            plans, search_times = self._search(cell.budget or math.inf)
            # The planner hides no exchange: "zero-0" is "ddp" as the planner prices it.
            plan = plans[DDP if cell.placer == BARE else cell.placer]
        if plan is None or not plan.feasible:
            reason = plan.reason if plan else None
            raise InfeasibleError(reason or "no plan of it fits")

        hidden = 0.0
        if cell.placer == DDP:
            hidden = time_hidden_by_backward(self.chain, self.cluster, plan)
        device_bytes = {
            name: sum(memory.model_dump().values())
            for name, memory in plan.file.memory.items()
        }
        return {
            "step_time": plan.step_time - hidden,
            "lower_bound": plan.file.lower_bound,
            "feasible": True,
            "peak_memory": [
                device_bytes.get(device.name, 0.0) for device in self.cluster.devices
            ],
            "note": plan.shape,
            **search_times,
        }

    def _search(self, budget: float) -> tuple[dict[str, Plan | None], Data]:
        """Return the best plan of every method, and what one search for all of them took."""
        if budget not in self.plans:
            timer = Timer()
            options = SearchOptions(budget=budget)
            plans = find_baselines(self.chain, self.cluster, options)
            self.plans[budget] = plans, timer.seconds()
        return self.plans[budget]

    def _alone(self) -> Plan:
        """Return a plan on the first device: the whole batch or micro-batches, what is faster."""
        sizes = dict.fromkeys((1, 1 if self.chain.mixes else self.entry.microbatches))
        batch = self.chain.batch
        specs = [PlanSpec(microbatch_size=batch // m) for m in sizes if batch % m == 0]
        plans = [price_given_plan(self.chain, self.cluster, spec) for spec in specs]
        return min(plans, key=lambda plan: (not plan.feasible, plan.step_time))


@lru_cache(maxsize=2)  # whole, and cut into micro-batches
def _program(model: str, microbatches: int, accept: bool) -> Program | GnnplaceError:
    """Return the step's ops, for any machine; or why they cannot be captured."""
    options = CaptureOptions(
        optimizer="adamw", microbatches=microbatches, accept_other_loss=accept
    )
    try:
        return capture_for(model, ELSEWHERE, options)
    except GnnplaceError as error:
        return error


@lru_cache(maxsize=1)
def _layers(model: str, accept: bool) -> Chain | GnnplaceError:
    """Return the step's layers with the known kernels, or why they cannot be planned."""
    try:
        return capture_chain(
            TrainingJob(model, accept_other_loss=accept), resolve_cluster(ELSEWHERE)
        )
    except GnnplaceError as error:
        return error


def time_hidden_by_backward(chain: Chain, cluster: Cluster, plan: Plan) -> float:
    """Return the seconds of a data-parallel plan's all-reduce that DDP hides.

    What buckets add to the all-reduce is subtracted.

    Args:
        chain: The layers that the plan is of.
        cluster: Its devices, each with a replica of all of them.
        plan: A plan of one stage without ZeRO, whose step ends with one bare all-reduce.
    """
    (stage,) = plan.file.stages
    examples = plan.file.microbatch_size
    costs = chain.costs([d.kind for d in cluster.devices], (1,), examples)
    if costs is None or len(stage.rows) < 2:
        return 0.0

    # A tied parameter has one gradient, complete when the first segment that reads it is done.
    elements = costs.parameters.copy()
    for tied in chain.tied:
        elements[list(tied.segments[1:])] -= tied.elements
    gradient_bytes = PARAMETER[chain.precision][1] * elements

    # The backward pass goes from the last segment to the first.
    recomputed = np.array([s.name in stage.recompute.modules for s in chain.segments])
    backward = costs.backward + costs.weights + recomputed * costs.forward
    ready = np.cumsum(backward[::-1])
    backward_end = float(ready[-1])

    members = range(cluster.num_devices)
    all_reduce = partial(MeshFabric(cluster).collective, ALL_REDUCE, members=members)
    sizes = np.maximum(gradient_bytes[::-1], 0.0)
    buckets = np.stack([ready, sizes], axis=1)
    buckets_end, _ = reduced(buckets, all_reduce)
    at_once = backward_end + all_reduce(float(gradient_bytes.sum()))
    return at_once - max(buckets_end, backward_end)
