"""A joint plan in words: its stages, where the time goes, memory by device."""

from __future__ import annotations

from gnnplace.planning.plan import Plan, StageEntry


def plan_lines(plan: Plan) -> list[str]:
    """What `gnnplace plan` prints of a plan."""
    file = plan.file
    if not plan.feasible:
        return [f"{file.model} on {file.cluster}: not feasible", f"  {plan.reason}"]
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
    return [*lines, *(f"  {notice}" for notice in plan.notices)]


def _stage(number: int, stage: StageEntry) -> str:
    replicas, shards = len(stage.devices), len(stage.devices[0])
    first, last = stage.members[0], stage.members[-1]
    mesh = f"{replicas} x {shards} devices from {stage.devices[0][0]}"
    more = [f"ZeRO {stage.zero}"] if stage.zero else []
    more += [f"{len(stage.recompute)} segments recomputed"] if stage.recompute else []
    return f"  stage {number}: {first} to {last}, {', '.join([mesh, *more])}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 1.0 else f"{seconds:.3f} s"
