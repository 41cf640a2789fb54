"""The fastest plans of a captured model for launchers whose training script makes the model.

accelerate and DeepSpeed start a script with a model of any layers; the other launchers train
decoders of text that they know by their sizes. A plan here has a replica on every device and one
stage. Every stage of ZeRO, every size of micro-batches and recomputation of no layer or of all are
priced by the captured model's own costs, and the fastest plan that fits and that the launcher can
express exactly is taken; of plans within `NEAR` of it, the one with the least ZeRO stage.
Recomputation only adds seconds, so it is priced only where a plan does not fit without it.

Complexity: two prices at most for each stage of ZeRO and each divisor of a replica's batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.from_plan import launch_plan_of
from gnnplace.launch.launch_plan import FULL, NONE
from gnnplace.launch.registry import LAUNCHERS, SCRIPTS, launcher_of
from gnnplace.launch.writing import nearest_plan
from gnnplace.plans import (
    OWN,
    AlternativeEntry,
    Chain,
    Plan,
    PlanSpec,
    divisors_of,
    given_plan,
)
from gnnplace.problem import Cluster

ZERO_STAGES = (0, 1, 2, 3)
NEAR = 1e-3
"""By how much a plan may be slower than the fastest and still come before it."""
KNOWN_BY_SIZES = (
    "is planned for decoders of text that are known by their sizes, in half precision; "
    f"the script of {' or '.join(SCRIPTS)} makes any model"
)


def scripted_plans(
    chain: Chain, cluster: Cluster, launcher: str, num_best: int = 1
) -> list[Plan]:
    """Return the fastest plans that a launcher of a training script can run, the fastest first.

    Args:
        chain: The captured model.
        cluster: The devices, all of which are used.
        launcher: One of `SCRIPTS`.
        num_best: Plans at most.

    Raises:
        InfeasibleError: If no plan fits, or the launcher cannot be told any that does.
    """
    num_devices = cluster.num_devices
    if chain.batch % num_devices:
        more = -(-chain.batch // num_devices) * num_devices
        raise InfeasibleError(
            f"{launcher}: a batch of {chain.batch:,} is not divisible by {num_devices:,} replicas; "
            f"--batch {more} is"
        )
    plans = list[Plan]()
    reason = "nothing fits; take more devices"
    for spec in _specs(chain, cluster):
        try:
            plan = _priced(chain, cluster, spec)
        except InputError:
            continue
        if plan is None:
            continue
        lost = _lost(plan, launcher)
        if lost is None:
            plans.append(plan)
        else:
            reason = f"cannot be told any plan that fits: {lost}"
    if not plans:
        raise InfeasibleError(f"{launcher}: {reason}")
    # Of plans that are as good as equal the one that shares the least state is the simplest.
    limit = (1 + NEAR) * min(plan.step_time for plan in plans)

    def rank(plan: Plan) -> tuple[bool, int, float]:
        is_slower = plan.step_time > limit
        zero = 0 if is_slower else plan.file.stages[0].zero
        return is_slower, zero, plan.step_time

    plans.sort(key=rank)
    return [_of_launcher(plan, launcher) for plan in plans[:num_best]]


def _specs(chain: Chain, cluster: Cluster) -> Iterator[PlanSpec]:
    """Yield plans of one replica a device: ZeRO's stages and sizes of micro-batches."""
    num_devices = cluster.num_devices
    share = chain.batch // num_devices
    for zero in ZERO_STAGES if num_devices > 1 else (0,):
        for size in divisors_of(share):
            yield PlanSpec(
                dp=num_devices, zero=zero, microbatch_size=size, batch=chain.batch
            )


def _priced(chain: Chain, cluster: Cluster, spec: PlanSpec) -> Plan | None:
    """Price a plan, with all layers recomputed if it does not fit without.

    Returns:
        The plan, or None if it does not fit with it either.

    Raises:
        InputError: If the model's examples cannot be cut so.
    """
    for recompute in (NONE, FULL):
        plan = given_plan(chain, cluster, replace(spec, recompute=recompute))
        if plan.feasible:
            return plan
    return None


def _lost(plan: Plan, launcher: str) -> str | None:
    """Return the first thing of a plan that a launcher cannot be told, or None."""
    written, given_up = launch_plan_of(plan)
    target = launcher_of(launcher)
    try:
        target.check_degrees(written)
    except InfeasibleError as error:
        return str(error).removeprefix(f"{launcher}: ")
    if given_up:
        return given_up[0]
    written, steps = nearest_plan(written, target)
    for line, nearest in steps:
        if nearest != written:
            return line.partition(";")[0]
    return None


def _of_launcher(plan: Plan, launcher: str) -> Plan:
    """Return a plan whose file names the launcher that it is for."""
    claim = (
        f"none of the plans that {launcher} can be told is faster, by predicted times"
    )
    words = {"launcher": launcher, "claim": claim}
    return replace(plan, file=plan.file.model_copy(update=words))


def price_scripted(
    chain: Chain, cluster: Cluster, launcher: str, spec: PlanSpec
) -> Plan:
    """Price a plan in words of a captured model for a launcher of a training script.

    Args:
        chain: The captured model.
        cluster: The devices.
        launcher: One of `SCRIPTS`.
        spec: The plan.

    Raises:
        InputError: If the plan does not fit the model or the cluster.
        InfeasibleError: If the launcher cannot be told it, with the first thing that is lost.
    """
    plan = given_plan(chain, cluster, spec)
    lost = _lost(plan, launcher)
    if lost is not None:
        raise InfeasibleError(f"{launcher}: cannot be told the plan: {lost}")
    return replace(
        plan, file=plan.file.model_copy(update={"launcher": launcher, "claim": ""})
    )


def scripted_alternatives(
    chain: Chain, cluster: Cluster, own: Plan
) -> dict[str, AlternativeEntry]:
    """Return what each launcher can run of a captured model, beside the plan of our own runner.

    Args:
        chain: The captured model.
        cluster: The devices.
        own: The fastest plan of the search.

    Returns:
        Entries by launcher, the fastest first; those that cannot train it come last, with a reason.
    """
    entries = {OWN: _entry(own)}
    for name in SCRIPTS:
        try:
            entries[name] = _entry(scripted_plans(chain, cluster, name)[0])
        except InfeasibleError as error:
            entries[name] = AlternativeEntry(reason=str(error))
    for name in LAUNCHERS:
        reason = f"{name}: {KNOWN_BY_SIZES}"
        entries.setdefault(name, AlternativeEntry(reason=reason))
    order = sorted(entries, key=lambda name: entries[name].step_time or float("inf"))
    return {name: entries[name] for name in order}


def _entry(plan: Plan) -> AlternativeEntry:
    """Return a plan as an alternative."""
    file = plan.file
    return AlternativeEntry(
        step_time=file.step_time, interval=file.interval, feasible=True, plan=file
    )
