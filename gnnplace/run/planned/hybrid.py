"""`execute_hybrid`: a plan of data-parallel groups, run for real beside DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable

from gnnplace.costs import resolve_cluster
from gnnplace.plans import CAPTURING, Running, grouped_plan
from gnnplace.problem import Cluster
from gnnplace.run.planned.running import PlanRun, run_plan

Progress = Callable[[str], None]
TRAINED = 3  # steps of AdamW whose losses are compared


def execute_hybrid(
    model: str,
    cluster: str | Cluster,
    *,
    running: Running | None = None,
    accept_other_loss: bool = False,
    progress: Progress = lambda line: None,
) -> PlanRun:
    """Plan one group, replicate it, run and check it, and run DDP by turns with it.

    Args:
        model: A model by its name.
        cluster: Devices of this machine, as `gnnplace.plan` takes them.
        running: How many groups, devices and steps.
        accept_other_loss: Cut the batch also if its loss then is another one.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        InputError: Too few devices, or a batch that cannot be cut.
        ExecutionError: A worker died, hung or failed.
    """
    running = running or Running()
    progress(CAPTURING)
    plan = grouped_plan(model, resolve_cluster(cluster), running, accept_other_loss)
    progress(f"running {plan.shape}")
    run = run_plan(
        plan,
        model,
        train=TRAINED,
        steps=running.steps,
        timeout=running.timeout,
        beside=True,
    )
    assert run is not None  # None is for processes that torchrun started
    return run
