"""Groups of model-parallel devices as plans: one to be run, and their steps for a study.

A group is a pipeline of its devices, or its layers are split over them, whichever plan is faster by
predicted times. The plan's runner compares it with the user's own step, and times PyTorch's
DistributedDataParallel by turns with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.costs import PARAMETER, is_problem_file
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.answers import given_priced, plan_of
from gnnplace.plans.hybrid.gradients import ReplicaStep
from gnnplace.plans.job import CAPTURING, TrainingJob
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import Plan
from gnnplace.plans.search.draft import Priced
from gnnplace.plans.search.framework_pricing import pricer_of
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import chain_of, on_cluster
from gnnplace.plans.spec import PlanSpec
from gnnplace.problem import Cluster, with_slack

if TYPE_CHECKING:
    from gnnplace.plans.hybrid.study import Search

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Running:
    """The options with which a hybrid step is run.

    Attributes:
        groups: The number of data-parallel groups.
        devices: Devices of a group.
        microbatches: Shares of a group's batch.
        steps: The number of steps that are timed.
        timeout: Seconds without progress after which the run is given up.
    """

    groups: int = 2
    devices: int = 1
    microbatches: int = 1
    steps: int = 10
    timeout: float = 120.0


def grouped_plan(
    model: str, cluster: Cluster, running: Running, accept_other_loss: bool = False
) -> Plan:
    """Return the fastest plan of data-parallel groups that pipeline the model or split its layers.

    A plan that fits the memory comes before one that does not.

    Args:
        model: A model by its name.
        cluster: The devices.
        running: The numbers of groups and devices.
        accept_other_loss: Cut the batch also if its loss then is another one.

    Raises:
        InputError: If there are too few devices, or the batch cannot be cut.
    """
    free_cluster = with_slack(cluster)
    devices = running.groups * running.devices
    if free_cluster.num_devices < devices:
        raise InputError(
            f"--replicas x --group-devices: {devices} devices; the cluster has "
            f"{free_cluster.num_devices}"
        )
    chain = chain_of(
        TrainingJob(model, accept_other_loss=accept_other_loss), free_cluster
    )
    size, remainder = divmod(chain.batch, running.groups * running.microbatches)
    if remainder:
        shares = running.groups * running.microbatches
        raise InputError(
            f"{model}: {chain.batch} examples cannot be cut into {shares} equal shares"
        )
    plans = priced_groups(chain, free_cluster, running.groups, running.devices, size)
    return plan_of(
        chain,
        free_cluster,
        min(plans, key=lambda one: (one.lacking[1] > 0, one.step_time)),
    )


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

    Arguments are those of `plans.hybrid.study.Placing`.

    Raises:
        InputError: If `what` is a problem file, or there is no such model.
        CaptureError: If a module, which the message names, cannot be captured.
    """

    has_gradients = True
    origin = "predicted by joint plans, gradients exchanged after the last pass"

    def __init__(
        self, what: str, cluster: Cluster, search: Search, progress: Progress
    ) -> None:
        if is_problem_file(what):
            raise InputError(
                "--placer plan: a problem file has ops and no layers; give a model"
            )
        progress(CAPTURING)
        accept = search.capture.accept_other_loss
        self.chain = chain_of(TrainingJob(what, accept_other_loss=accept), cluster)
        self.microbatches = sorted(set(search.microbatches))

    def __call__(self, cluster: Cluster) -> Sequence[ReplicaStep]:
        """Return the steps of all plans of one group on these devices that fit the memory.

        Raises:
            InfeasibleError: If none does.
        """
        cluster = with_slack(cluster)
        chain = on_cluster(self.chain, cluster)
        reason = "no plan of a group fits its memory"
        steps = list[ReplicaStep]()
        for size in (
            chain.batch // m for m in self.microbatches if chain.batch % m == 0
        ):
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
