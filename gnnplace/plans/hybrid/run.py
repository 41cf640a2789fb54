"""A hybrid step run for real: groups of model-parallel devices as a plan, with DDP beside it.

A group is a pipeline of its devices, or its layers are split over them, whichever plan is faster by
predicted times. The plan's runner compares it with the user's own step, and times PyTorch's
DistributedDataParallel by turns with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InputError
from gnnplace.plans.answers import given_plan
from gnnplace.plans.plan import Plan
from gnnplace.plans.run.workers import PlanRun, run_plan
from gnnplace.plans.segments.chains import chain_of
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import with_slack

Progress = Callable[[str], None]
TRAINED = 3  # steps of AdamW whose losses are compared


@dataclass(frozen=True)
class Running:
    """How a hybrid step is run.

    Attributes:
        groups: the number of data-parallel groups.
        devices: devices of a group.
        microbatches: shares of a group's batch.
        steps: how many steps are timed.
        timeout: seconds without progress after which the run is given up.
    """

    groups: int = 2
    devices: int = 1
    microbatches: int = 1
    steps: int = 10
    timeout: float = 120.0


def execute_hybrid(
    model: str,
    cluster: str | Cluster,
    *,
    running: Running | None = None,
    accept_other_loss: bool = False,
    progress: Progress = lambda line: None,
) -> PlanRun:
    """Plans one group, replicates it, runs and checks it, and runs DDP beside it.

    Args:
        model: a model by its name.
        cluster: as everywhere; of this machine.
        running: how many groups, devices and steps.
        accept_other_loss: cut the batch also where its loss is another one then.
        progress: called with a line when something begins that takes seconds.

    Raises:
        InputError: too few devices, or a batch that cannot be cut.
        ExecutionError: a worker died, hung or failed.
    """
    running = running or Running()
    progress("planning: capturing the model")
    plan = grouped_plan(model, cluster, running, accept_other_loss)
    progress(f"running {plan.shape}")
    done = run_plan(
        plan, model, train=TRAINED, steps=running.steps, timeout=running.timeout, beside=True
    )
    assert done is not None  # these are workers of its own
    return done


def grouped_plan(
    model: str, cluster: str | Cluster, running: Running, accept_other_loss: bool = False
) -> Plan:
    """The faster of the plans whose groups are pipelines, and whose groups split layers.

    Args and errors are those of `execute_hybrid`.
    """
    found, devices = with_slack(resolve_cluster(cluster)), running.groups * running.devices
    if found.num_devices < devices:
        raise InputError(
            f"--replicas x --group-devices: {devices} devices; the cluster has {found.num_devices}"
        )
    chain = chain_of(model, found, accept_other_loss=accept_other_loss)
    size, rest = divmod(chain.batch, running.groups * running.microbatches)
    if rest:
        shares = running.groups * running.microbatches
        raise InputError(
            f"{model}: {chain.batch} examples cannot be cut into {shares} equal shares"
        )
    plans, refused = list[Plan](), InputError("")
    for axis in ("pp", "shards") if running.devices > 1 else ("pp",):
        words = f"dp={running.groups},microbatch_size={size},{axis}={running.devices}"
        try:
            plans.append(given_plan(chain, found, words))
        except InputError as error:  # fewer layers than devices, or no axis with equal parts
            refused = error
    if not plans:
        raise refused
    return min(plans, key=lambda plan: (not plan.feasible, plan.step_time))
