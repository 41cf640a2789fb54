"""A joint plan in words: its stages, where the time goes, memory by device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gnnplace.plans.plan import Plan, StageEntry

if TYPE_CHECKING:
    from gnnplace.plans.run.workers import PlanRun as Run


def plan_lines(plan: Plan) -> list[str]:
    """What `gnnplace plan` prints of a plan."""
    file = plan.file
    if not plan.feasible:
        lines = [f"{file.model} on {file.cluster}: not feasible", f"  {plan.reason}"]
        return [*lines, *_handed(plan)]
    low, high = file.interval or [0.0, 0.0]
    lines = [
        f"{file.model} on {file.cluster}: {_time(plan.step_time)} a step, predicted "
        f"({_time(low)} to {_time(high)} in nine of ten), {file.schedule}, "
        f"{plan.microbatches} micro-batches of {file.microbatch_size} a replica",
    ]
    lines += [_stage(k, stage) for k, stage in enumerate(file.stages)]
    parts = ", ".join(f"{name} {_time(s)}" for name, s in file.parts.items() if s > 0)
    lines.append(f"  busiest rank: {parts}")
    fullest = max(file.memory, key=lambda name: sum(file.memory[name].model_dump().values()))
    memory = file.memory[fullest].model_dump()
    told = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in memory.items())
    lines.append(f"  fullest device {fullest}: {sum(memory.values()) / 1e9:.2f} GB ({told})")
    if file.lower_bound:
        gap = plan.step_time / file.lower_bound - 1.0
        lines.append(f"  bound {_time(file.lower_bound)}, gap {gap:.1%}: {file.claim}")
    notices = [f"  {notice}" for notice in plan.notices]
    return [*lines, *_tried(plan), *_handed(plan), *notices]


def _tried(plan: Plan) -> list[str]:
    """Plans that were run here before the fastest was taken."""
    rows = []
    for trial in plan.trials:
        measured = trial.fault if trial.measured is None else f"measured {_time(trial.measured)}"
        rows.append(f"  tried {trial.shape}: predicted {_time(trial.predicted)}, {measured}")
    return rows


def _handed(plan: Plan) -> list[str]:
    """Where a placement of single ops is faster."""
    other = plan.op_placement
    if other is None:
        return []
    against = f"against {_time(plan.step_time)}" if plan.feasible else "where no plan fits"
    run = f"; run `{other.command}`" if other.command else ""
    return [f"  op placement is faster: {_time(other.step_time)} {against}{run}"]


def baseline_lines(found: Mapping[str, Plan | None]) -> list[str]:
    """What `gnnplace compare --plans` prints: the plan that was found, then baselines."""
    best = found["plan"]
    if best is None:
        return ["no plan fits"]
    lines = [f"{best.file.model} on {best.file.cluster}, predicted steps:"]
    for name, plan in found.items():
        if plan is None:
            lines.append(f"  {name:10} does not fit")
            continue
        more = plan.step_time / best.step_time - 1.0
        lines.append(f"  {name:10} {_time(plan.step_time):>12}  {more:+7.1%}  {plan.shape}")
    if best.file.lower_bound:
        lines.append(f"  {'bound':10} {_time(best.file.lower_bound):>12}  {best.file.claim}")
    return lines


def _stage(number: int, stage: StageEntry) -> str:
    replicas, shards = len(stage.devices), len(stage.devices[0])
    first, last = stage.members[0], stage.members[-1]
    mesh = f"{replicas} x {shards} devices from {stage.devices[0][0]}"
    more = [f"ZeRO {stage.zero}"] if stage.zero else []
    more += [f"{len(stage.recompute)} segments recomputed"] if stage.recompute else []
    return f"  stage {number}: {first} to {last}, {', '.join([mesh, *more])}"


def run_lines(run: Run) -> list[str]:
    """What `gnnplace execute` prints of a plan's run."""
    file = run.plan.file
    low, high = file.interval or (0.0, 0.0)
    lines = [run.verification.summary()]
    if run.single and not run.verification.bitwise:
        lines[0] = f"{lines[0]} (in its own precision {run.single:.2g} relative)"
    if run.losses:
        lines.append(
            f"losses of {len(run.losses)} steps of AdamW: {run.losses[0]:.6g} to "
            f"{run.losses[-1]:.6g}, within {run.apart:.2g} of one device's"
            + (" (in double precision)" if run.doubled else "")
        )
    if run.measured is not None:
        told = f"measured {_time(run.measured)} a step (median of {len(run.seconds)})"
        if file.step_time is not None:
            inside = "inside" if run.covered else "outside"
            told += (
                f", predicted {_time(file.step_time)} ({_time(low)} to {_time(high)}: the measured "
                f"time is {inside})"
            )
        lines.append(told)
    return [*lines, "passed" if run.passed else "NOT passed: see the first lines"]


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 1.0 else f"{seconds:.3f} s"
