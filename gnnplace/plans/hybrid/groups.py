"""Groups of model-parallel devices as plans: their steps for a study, and the plan that is run.

A group is a pipeline of its devices, or its layers are split over them, whichever plan is faster by
predicted times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.answers import make_plan, price_given_draft
from gnnplace.plans.hybrid.convergence import Training
from gnnplace.plans.hybrid.gradients import StepParts
from gnnplace.plans.hybrid.splits import MICROBATCHES, SplitRow, Splitter
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.order.orders import time_rows
from gnnplace.plans.plan import Plan
from gnnplace.plans.search.draft import Priced
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.plans.spec import PlanSpec
from gnnplace.problem import Cluster


def plan_groups(job: TrainingJob, cluster: Cluster, row: SplitRow) -> Plan:
    """Return the fastest plan whose groups of devices are pipelines or split the layers.

    A plan that fits the memory comes before one that does not.

    Args:
        job: What is trained; its batch is that of all groups, whatever it says.
        cluster: The devices.
        row: The numbers of groups, devices and micro-batches.

    Raises:
        InputError: If the batch cannot be cut, or layers are fewer than the devices of a group.
    """
    chain = capture_chain(replace(job, batch=row.global_batch), cluster)
    size = chain.batch // (row.groups * row.microbatches)
    plans = price_groups(chain, cluster, row.groups, row.devices, size)
    fastest = min(plans, key=lambda one: (one.lacking[1] > 0, one.step_time))
    return make_plan(chain, cluster, fastest)


def price_groups(
    chain: Chain, cluster: Cluster, groups: int, devices: int, size: int
) -> list[Priced]:
    """Price the plans whose groups are pipelines and whose groups split layers, if they can be.

    Args:
        chain: The model.
        cluster: The devices.
        groups: The number of groups.
        devices: Devices of each group.
        size: Examples of a group's micro-batch.

    Raises:
        InputError: If there are fewer layers than devices, no axis is cut evenly, or the batch
            cannot be cut.
    """
    plans = list[Priced]()
    refused = InputError("")
    specs = [PlanSpec(dp=groups, microbatch_size=size, pp=devices)]
    if devices > 1:
        specs.append(PlanSpec(dp=groups, microbatch_size=size, shards=devices))
    for spec in specs:
        try:
            plans.append(price_given_draft(chain, cluster, spec))
        except InputError as error:
            refused = error
    if not plans:
        raise refused
    return plans


class PlannedSteps:
    """Steps of groups as plans of layers have them.

    Args:
        chain: The captured model on the whole cluster, cut into segments; its batch is that of a
            group.
    """

    has_gradients = True
    origin = "predicted by joint plans, gradients exchanged after the last pass"
    step = "a plan of layers for a group"

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def splitter(
        self, fabric: MeshFabric, training: Training, mixes: str
    ) -> PlanSplitter:
        """Return the maker of rows whose steps are plans; arguments as of `Splitter`."""
        return PlanSplitter(fabric, training, self.chain, mixes)


class PlanSplitter(Splitter):
    """A maker of rows, each of which is a plan on all of its devices.

    Args:
        fabric: All devices and what joins them.
        training: Batch of a group, examples of an epoch, and convergence.
        chain: The model; its batch is that of a group.
        mixes: Why several groups cannot have a batch of their own each; empty if they can.
    """

    def __init__(
        self, fabric: MeshFabric, training: Training, chain: Chain, mixes: str
    ) -> None:
        super().__init__(fabric, training, mixes)
        self.chain = chain

    def step(
        self, groups: int, devices: int
    ) -> tuple[StepParts, int] | InfeasibleError:
        """Return the step of the fastest plan that fits, and its number of micro-batches.

        Each is the plan `dp=GROUPS,pp=DEVICES` or `dp=GROUPS,shards=DEVICES`.
        """
        batch = self.chain.batch
        chain = replace(self.chain, batch=groups * batch)
        cluster = self.fabric.cluster
        reason = "no plan of a group fits its memory"
        steps = list[tuple[StepParts, int]]()
        for count in MICROBATCHES:
            if batch % count:
                continue
            try:
                plans = price_groups(chain, cluster, groups, devices, batch // count)
            except InputError as error:
                reason = str(error)
                continue
            steps += [(step_parts(p), count) for p in plans if p.lacking[1] <= 0]
        if not steps:
            return InfeasibleError(reason)
        return min(steps, key=lambda pair: (pair[0].total, pair[1]))


def step_parts(priced: Priced) -> StepParts:
    """Return the step of a plan with one stage a rank, by what it is spent on."""
    reductions = np.array([cost.reduction for cost in priced.costs])
    seconds = [
        time_rows(priced.line, priced.actions, ends.tolist())
        for ends in (np.array(priced.ends), np.array(priced.ends) - reductions)
    ]
    exposed = seconds[0] - seconds[1]
    return StepParts(priced.step_time - exposed, float(reductions.max()), exposed)
