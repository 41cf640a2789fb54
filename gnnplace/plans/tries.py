"""The fastest plans run for a few steps on this machine; the one that is fastest there is taken.

Plans that differ by ZeRO or the order of actions alone come in crowds, so that of plans with the
same stages and the same schedule, searched or not, the fastest alone is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.plans.plan import Plan, Trial
from gnnplace.plans.run.workers import run_plan
from gnnplace.problem.cluster import Cluster

FURTHER = 20  # plans that are looked through for each that is run
STEPS = 5


def check_trials(cluster: Cluster, model: str | nn.Module) -> None:
    """Refuses to try what is not here.

    Raises:
        InputError: the devices are not workers of this machine, or the model has no name.
    """
    odd = [d.name for d in cluster.devices if not d.name.startswith("cpu:")]
    if odd:
        raise InputError(
            f"--try: {odd[0]!r} is no worker of this machine; plan for cpu:{cluster.num_devices}, "
            "or leave --try out"
        )
    if not isinstance(model, str):
        raise InputError("--try: workers make the model by its name; give module:callable")


def by_trial(
    plans: Sequence[Plan],
    model: str,
    count: int,
    progress: Callable[[str], None] | None = None,
) -> list[Plan]:
    """Plans with those that were run first, the fastest by measured time at the head.

    Args:
        plans: the fastest first, by predicted times.
        model: its name.
        count: plans to run.
        progress: is told what is run.
    """
    if not plans[0].feasible:
        return list(plans)
    ran = [(plan, _tried(plan, model, progress)) for plan in unlike(plans)[:count]]
    trials = tuple(trial for _, trial in ran)
    known = [(t.measured, plan) for plan, t in ran if t.measured is not None]
    first = [plan for _, plan in sorted(known, key=lambda pair: pair[0])]
    rest = [plan for plan in plans if plan not in first]
    ordered = [*first, *rest]
    return [replace(ordered[0], trials=trials), *ordered[1:]]


def unlike(plans: Sequence[Plan]) -> list[Plan]:
    """The first of plans with the same stages, micro-batches and schedule."""
    known: dict[object, Plan] = {}
    for plan in plans:
        stages = tuple((tuple(s.members), tuple(map(tuple, s.devices))) for s in plan.file.stages)
        key = (plan.file.microbatch_size, plan.file.schedule.partition(":")[0], stages)
        known.setdefault(key, plan)
    return list(known.values())


def _tried(plan: Plan, model: str, progress: Callable[[str], None] | None) -> Trial:
    if progress is not None:
        progress(f"trying {plan.shape}")
    try:
        found = run_plan(plan, model, train=0, steps=STEPS)
    except GnnplaceError as error:
        return Trial(plan.shape, plan.step_time, None, f"cannot be run: {error}")
    assert found is not None
    if not found.passed:
        return Trial(plan.shape, plan.step_time, None, "its gradients are not one device's")
    return Trial(plan.shape, plan.step_time, found.measured)
