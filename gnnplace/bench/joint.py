"""Cells that compare placers and planning methods on one training step. Times are predicted.

A problem is a model with its batch on a machine.

* A placer places the model's captured ops twice, with the whole batch and with the entry's
  micro-batches, each time with half the budget. The faster placement counts.
* A method of ``PLANNED`` cuts the model by layers and is priced by the planner. ``plan`` searches
  all kinds of plans together. Every other method is one kind of plan, such as data parallelism;
  its fastest plan counts, over micro-batches and orders of actions.

Both take the seconds of ops and links from the same tables. The rows ``single`` and ``one-device``
are the same step, simulated as ops and priced as layers: their ratio shows by how much the two ways
of computing a step time differ.

``ddp`` is data parallelism as PyTorch runs it (Li et al., VLDB 2020): buckets of 25 MiB of
gradients are all-reduced in the order in which the last backward pass makes them, hidden behind the
rest of that pass. ``zero-0`` is data parallelism with nothing hidden, as the planner prices every
exchange; published runs of Megatron and FSDP are nearer to that. ``pase`` and ``weird-trick`` split
every call over all devices (module ``pase``).

Captures are cached: entries of one model that follow one another in a suite share one capture.
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
    move_chain_to_cluster,
    price_given_plan,
    time_gradient_reduction,
)
from gnnplace.problem import Cluster, prefix_rule_version, with_slack
from gnnplace.tracing import CaptureOptions, Program

ALONE = "one-device"
BARE = "zero-0"
DDP = "ddp"
# Captures are for any machine. One that is not this one is named, so that nothing is allocated.
ELSEWHERE = "pcie-a100-2"
SPENT = ("seconds", "processor_seconds")  # keys of a row
PLANNED = ("plan", *BASELINES, BARE, ALONE, PASE, TRICK)
Data = dict[str, Any]


class Timer:
    """A stopwatch of wall-clock and processor time. It starts when it is made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def seconds(self) -> Data:
        """Return the seconds since the start, under the keys ``SPENT``."""
        wall, processor = self._start
        seconds = time.perf_counter() - wall, time.process_time() - processor
        return dict(zip(SPENT, seconds, strict=True))


@dataclass(eq=False)
class Joint:
    """A model on a machine. It is captured as ops and as layers when a cell first asks for them.

    Attributes:
        entry: The suite's entry for the model.
        placed: The problem that placers place, by the number of micro-batches.
        plans: For each budget in seconds, the best plan of every method and the seconds that the
            search of them took.
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
        """Return the model's chain of layers.

        Raises:
            GnnplaceError: The model cannot be captured as layers.
        """
        chain = _capture_layers(str(self.entry.model), self.entry.accept_other_loss)
        if isinstance(chain, GnnplaceError):
            raise chain
        return move_chain_to_cluster(chain, self.cluster)

    def problem(self, microbatches: int) -> PlacedProblem:
        """Return the problem of the model's ops, cut into ``microbatches``.

        Raises:
            GnnplaceError: The ops cannot be captured, or the batch cannot be cut.
        """
        if microbatches not in self.placed:
            program = _capture_ops(
                str(self.entry.model), microbatches, self.entry.accept_other_loss
            )
            if isinstance(program, GnnplaceError):
                raise program
            options = replace(self.entry.capture_options(), microbatches=microbatches)
            problem = profile_model(program, self.cluster, options=options)
            self.placed[microbatches] = PlacedProblem(problem)
        return self.placed[microbatches]

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that describes the problem; see ``kinds.Loaded``."""
        # Capture ops and layers now: no method's seconds shall contain the capture.
        with suppress(GnnplaceError):
            _ = self.chain
        with suppress(GnnplaceError):
            self.problem(entry.microbatches)
        try:
            return self.problem(1).described(entry)
        except GnnplaceError:
            # Without ops, the layers identify the problem.
            return {
                "num_devices": self.cluster.num_devices,
                "digest": prefix_rule_version(f"{self.chain.fingerprint[:12]}-layers"),
                "clock": "predicted",
                **entry.labels,
            }

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Return the outcome of the method; see ``kinds.Loaded``."""
        timer = Timer()
        if cell.placer in PLANNED:
            outcome = self._run_method(cell)
        else:
            outcome = self._run_placer(cell, keep)
        # One search serves all methods: its seconds replace those of this call.
        return {**timer.seconds(), **outcome}

    def _run_placer(self, cell: Cell, keep: str) -> Data:
        """Place the whole batch and its micro-batches, and return the faster outcome.

        Raises:
            GnnplaceError: Neither can be placed.
        """
        sizes = dict.fromkeys((1, self.entry.microbatches))
        cell_for_size = replace(cell, budget=cell.budget / len(sizes))
        outcomes: list[Data] = []
        failure: GnnplaceError | None = None
        for size in sizes:
            try:
                outcome = self.problem(size).outcome(cell_for_size, "", keep)
            except GnnplaceError as error:
                failure = error
                continue
            note = f"{size} micro-batches; {outcome['note']}".rstrip("; ")
            outcomes.append({**outcome, "note": note})
        if not outcomes:
            assert failure is not None  # there is at least one size
            raise failure
        seconds = sum(outcome.pop("seconds") for outcome in outcomes)
        fastest = min(outcomes, key=lambda outcome: float(outcome["step_time"]))
        return {**fastest, "seconds": seconds}

    def _run_method(self, cell: Cell) -> Data:
        """Price a method of ``PLANNED`` and return its outcome.

        The planner searches once for all methods, and each method's row has the seconds of that
        search. With a budget of 0 the search ends when nothing is left to try, so that its rows
        repeat bit by bit.

        Raises:
            InfeasibleError: No plan of the method fits.
            UnsupportedError: The budget is in simulated steps, which the planner does not count.
        """
        if cell.unit == STEPS:
            raise UnsupportedError(
                f"{cell.placer!r}: the planner is limited by seconds, not by steps; give budgets"
            )
        if cell.placer in (PASE, TRICK):
            seconds, peak_bytes = split_step(self.chain, self.cluster, cell.placer)
            peak = [peak_bytes] * self.cluster.num_devices
            return {"step_time": seconds, "feasible": True, "peak_memory": peak}

        search_times: Data = {}
        plan: Plan | None
        if cell.placer == ALONE:
            plan = self._plan_one_device()
        else:
            plans, search_times = self._search(cell.budget or math.inf)
            # The planner hides no exchange: its plan of "ddp" is the one named "zero-0" here.
            plan = plans[DDP if cell.placer == BARE else cell.placer]
        if plan is None or not plan.feasible:
            reason = plan.reason if plan else None
            raise InfeasibleError(reason or f"no plan of {cell.placer!r} fits")

        hidden_seconds = 0.0
        if cell.placer == DDP:
            hidden_seconds = time_hidden_by_backward(self.chain, self.cluster, plan)
        device_bytes = {
            name: sum(memory.model_dump().values())
            for name, memory in plan.file.memory.items()
        }
        return {
            "step_time": plan.step_time - hidden_seconds,
            "lower_bound": plan.file.lower_bound,
            "feasible": True,
            "peak_memory": [
                device_bytes.get(device.name, 0.0) for device in self.cluster.devices
            ],
            "note": plan.shape,
            **search_times,
        }

    def _search(self, budget: float) -> tuple[dict[str, Plan | None], Data]:
        """Return the best plan of every method, and the seconds of the search of all of them."""
        if budget not in self.plans:
            timer = Timer()
            options = SearchOptions(budget=budget)
            plans = find_baselines(self.chain, self.cluster, options)
            self.plans[budget] = plans, timer.seconds()
        return self.plans[budget]

    def _plan_one_device(self) -> Plan:
        """Return the faster plan on the first device: the whole batch, or micro-batches."""
        batch = self.chain.batch
        counts = [1]
        # Layers that mix the examples of a batch cannot be cut into micro-batches.
        if not self.chain.mixes and self.entry.microbatches > 1:
            counts.append(self.entry.microbatches)
        specs = [
            PlanSpec(microbatch_size=batch // count)
            for count in counts
            if batch % count == 0
        ]
        plans = [price_given_plan(self.chain, self.cluster, spec) for spec in specs]
        return min(plans, key=lambda plan: (not plan.feasible, plan.step_time))


@lru_cache(maxsize=2)  # the whole batch, and micro-batches
def _capture_ops(
    model: str, microbatches: int, accept_other_loss: bool
) -> Program | GnnplaceError:
    """Capture a step's ops, for any machine. Return the error if they cannot be captured."""
    options = CaptureOptions(
        optimizer="adamw",
        microbatches=microbatches,
        accept_other_loss=accept_other_loss,
    )
    try:
        return capture_for(model, ELSEWHERE, options)
    except GnnplaceError as error:
        return error


@lru_cache(maxsize=1)
def _capture_layers(model: str, accept_other_loss: bool) -> Chain | GnnplaceError:
    """Capture a step's layers, for any machine. Return the error if they cannot be captured."""
    job = TrainingJob(model, accept_other_loss=accept_other_loss)
    try:
        return capture_chain(job, resolve_cluster(ELSEWHERE))
    except GnnplaceError as error:
        return error


def time_hidden_by_backward(chain: Chain, cluster: Cluster, plan: Plan) -> float:
    """Return the seconds by which DDP's buckets shorten a data-parallel step.

    The plan's step ends with one all-reduce of all gradients. DDP starts a bucket's all-reduce as
    soon as its gradients are there. The difference is negative if the latencies of many buckets
    take longer than the backward pass hides.

    Args:
        chain: The layers of the plan's model.
        cluster: The devices, each with a replica of all layers.
        plan: A plan of one stage without ZeRO, whose step ends with one unhidden all-reduce.
    """
    (stage,) = plan.file.stages
    examples = plan.file.microbatch_size
    kinds = [device.kind for device in cluster.devices]
    costs = chain.costs(kinds, (1,), examples)
    if costs is None or len(stage.rows) < 2:
        return 0.0

    # A tied parameter has one gradient, complete when the first segment that reads it is done.
    elements = costs.parameters.copy()
    for tied in chain.tied:
        elements[list(tied.segments[1:])] -= tied.elements
    _, bytes_per_gradient, _ = PARAMETER[chain.precision]
    gradient_bytes = bytes_per_gradient * elements

    # The backward pass goes from the last segment to the first.
    is_recomputed = np.array(
        [segment.name in stage.recompute.modules for segment in chain.segments]
    )
    backward = costs.backward + costs.weights + is_recomputed * costs.forward
    ready = np.cumsum(backward[::-1])
    backward_end = float(ready[-1])

    # Compare buckets that start during the pass with one all-reduce after it.
    members = range(cluster.num_devices)
    all_reduce = partial(MeshFabric(cluster).collective, ALL_REDUCE, members=members)
    segment_bytes = np.maximum(gradient_bytes[::-1], 0.0)
    gradients = np.stack([ready, segment_bytes], axis=1)
    end_with_buckets, _ = time_gradient_reduction(gradients, all_reduce)
    end_at_once = backward_end + all_reduce(float(gradient_bytes.sum()))
    return end_at_once - max(end_with_buckets, backward_end)
