"""Groups of model-parallel devices as plans: their steps for a study, and the plan that is run.

A group is a pipeline of its devices, or its layers are split over them, whichever plan is faster by
predicted times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnplace.costs import PARAMETER
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.answers import given_priced, plan_of
from gnnplace.plans.hybrid.gradients import ReplicaStep
from gnnplace.plans.hybrid.splits import MICROBATCHES, SplitRow
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import Plan
from gnnplace.plans.search.draft import Priced
from gnnplace.plans.search.framework_pricing import pricer_of
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import chain_of, on_cluster
from gnnplace.plans.spec import PlanSpec
from gnnplace.problem import Cluster


def grouped_plan(job: TrainingJob, cluster: Cluster, row: SplitRow) -> Plan:
    """Return the fastest plan whose groups of devices are pipelines or split the layers.

    A plan that fits the memory comes before one that does not.

    Args:
        job: What is trained; its batch is that of all groups, whatever it says.
        cluster: The devices.
        row: The numbers of groups, devices and micro-batches.

    Raises:
        InputError: If the batch cannot be cut, or layers are fewer than the devices of a group.
    """
    chain = chain_of(replace(job, batch=row.global_batch), cluster)
    size = chain.batch // (row.groups * row.microbatches)
    plans = priced_groups(chain, cluster, row.groups, row.devices, size)
    fastest = min(plans, key=lambda one: (one.lacking[1] > 0, one.step_time))
    return plan_of(chain, cluster, fastest)


def priced_groups(
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
            plans.append(given_priced(chain, cluster, spec))
        except InputError as error:
            refused = error
    if not plans:
        raise refused
    return plans


class PlannedSteps:
    """Steps of groups as plans have them, for several numbers of micro-batches.

    Args:
        chain: The captured model, cut into segments; its batch is that of a group.
    """

    has_gradients = True
    origin = "predicted by joint plans, gradients exchanged after the last pass"
    step = "a plan of layers for a group"

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def __call__(self, cluster: Cluster) -> Sequence[ReplicaStep]:
        """Return the steps of all plans of one group on these devices that fit the memory.

        Raises:
            InfeasibleError: If none does.
        """
        chain = on_cluster(self.chain, cluster)
        reason = "no plan of a group fits its memory"
        steps = list[ReplicaStep]()
        for size in (chain.batch // m for m in MICROBATCHES if chain.batch % m == 0):
            try:
                plans = priced_groups(chain, cluster, 1, cluster.num_devices, size)
            except InputError as error:
                reason = str(error)
                continue
            steps += [
                replica_step(chain, cluster, one)
                for one in plans
                if one.lacking[1] <= 0
            ]
        if not steps:
            raise InfeasibleError(reason)
        return steps


def replica_step(chain: Chain, cluster: Cluster, priced: Priced) -> ReplicaStep:
    """Return the step of a plan as data parallelism sees it.

    All gradients of a rank are ready after its last pass.
    """
    pricer = pricer_of(chain, MeshFabric(cluster), priced.draft.size)
    begun = {
        rank: start
        for name, rank, start, _ in priced.timing.spans
        if name == f"end {rank}"
    }
    peaks, ends, updates = np.zeros((3, cluster.num_devices))
    for rank, stage in zip(priced.draft.ranks, priced.draft.stages, strict=True):
        stage_devices = list(stage.mesh.devices)
        peaks[stage_devices] += PARAMETER[chain.precision][1] * pricer.trained(stage)
        ends[stage_devices], updates[stage_devices] = begun[rank], priced.ends[rank]
    rows = tuple(np.array([[end, size]]) for end, size in zip(ends, peaks, strict=True))
    return ReplicaStep(priced.step_time, rows, ends, updates, priced.draft.microbatches)
