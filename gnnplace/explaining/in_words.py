"""What bounds a step that is priced from a model's sizes, and which single word would help most.

Messages between stages take what the step is longer by than one whose messages take nothing. Waits
of stages are what is left of that step beside the busiest rank's work. Its work is priced again
without one thing after the other, and what each takes away is its part, in seconds that are not
hidden behind something else: checks of collectives, the host's launches, exchanges of replicas,
exchanges of shards, what is computed again. What is left is the kernels of the busiest rank,
`compute`, and the optimizer's step, `update`. Replicas and shards share one network, so that
replicas are told apart by a step of one replica with as many micro-batches: what they exchange is
how much longer their work is than that one's, less the same on a network that takes nothing. Parts
add up to the step. What copies to and from the host take, and its updates, is how much longer the
step is than one with everything on the GPUs, whose parts the others are.

Complexity: sixteen prices, and one a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from gnnplace.costs import (
    NOTHING,
    Framework,
    IdleNetwork,
    environment,
    with_host,
    with_network,
    with_slow_links,
    without_messages,
)
from gnnplace.explaining.causes import SlowdownCause, StepAt, rank_causes
from gnnplace.plans import (
    PlanAnswer,
    PlanSpec,
    Priced,
    PricingSetting,
    captured_launches,
    price,
    priced_spec,
)

ROW_PARTS = {
    "compute": "kernels of the busiest rank",
    "checks": "collectives that are checked",
    "host": "launches that kernels wait for",
    "messages": "messages between stages",
    "replicas": "exchanges of replicas: gradients, ZeRO",
    "shards": "exchanges of shards inside of stages",
    "recompute": "what is recomputed",
    "update": "the optimizer's step",
    "offload": "copies between GPUs and hosts, and what hosts update",
    "bubble": "waits for other stages",
}


@dataclass(frozen=True)
class RowChange:
    """A plan with one word changed, which fits.

    Attributes:
        told: The change in a few words.
        answer: Its price.
    """

    told: str
    answer: PlanAnswer


def row_causes(
    setting: PricingSetting,
    spec: PlanSpec,
    parts: Mapping[str, float],
    measured: float | None = None,
) -> tuple[SlowdownCause, ...]:
    """Return the causes that would make a run slower than predicted, the likeliest first.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The plan that runs.
        parts: Seconds of its step, of `row_parts`.
        measured: Seconds of a step of the run; None: every cause at its usual factor.
    """
    servers = spec.num_devices > setting.framework.network.each
    step = sum(parts.values())
    return rank_causes(
        cause_prices(setting, spec, parts), step, measured, servers=servers
    )


def cause_prices(
    setting: PricingSetting, spec: PlanSpec, parts: Mapping[str, float]
) -> StepAt:
    """Return a function that prices a plan's step under a cause at a factor.

    Arguments are those of `row_causes`.
    """
    framework = setting.framework
    step = sum(parts.values())
    checks = framework.checks or environment("checked-collectives")
    # Slower kernels make passes longer, and so the waits for them.
    kernels = sum(parts[name] for name in ("compute", "recompute", "bubble"))

    def step_at(cause: str, factor: float) -> float:
        if cause == "outside":
            return step * (1.0 + factor)
        if cause == "clock":
            return step + kernels * (factor - 1.0)
        slowed, plan = framework, spec
        if cause == "across":
            slowed = with_slow_links(framework, across=factor)
        elif cause == "inside":
            slowed = with_slow_links(framework, inside=factor)
        elif cause == "host":
            slowed = with_host(framework, factor)
        elif cause == "checks":
            slowed = replace(framework, checks=checks)
        elif cause == "recompute":
            plan = replace(spec, recompute="full")
        elif cause == "overlap":
            plan = replace(spec, overlap="none")
        return priced_spec(_on(setting, slowed), plan).step_time

    return step_at


def row_parts(setting: PricingSetting, spec: PlanSpec) -> dict[str, float]:
    """Return the seconds of a step by what they are spent on. They add up to the step.

    Raises:
        InputError: If the plan cannot be priced.
    """
    parts = dict.fromkeys(ROW_PARTS, 0.0)
    batch = spec.batch or setting.decoder.batch
    # What is asked of a framework stays what it is, whatever is priced without.
    graphs = captured_launches(setting, spec)
    offloaded = replace(spec, cuda_graphs=graphs)
    # What lies on the host takes what the step is longer by than one with everything on the GPUs.
    spec = replace(offloaded, offload=NOTHING)
    alone = replace(spec, dp=1, ep=1, zero=0, zero_group=None, batch=batch // spec.dp)
    plain = replace(spec, recompute="none")

    def work(own: PricingSetting, own_spec: PlanSpec) -> float:
        """Return the seconds that the busiest rank works."""
        priced = priced_spec(own, own_spec)
        return max(_rank_work(priced)) + priced.pricer.step_seconds(priced.draft)

    step = priced_spec(setting, spec).step_time
    parts["offload"] = priced_spec(setting, offloaded).step_time - step
    silent = _on(setting, without_messages(setting.framework))
    silent_step = priced_spec(silent, spec).step_time
    parts["messages"] = step - silent_step
    parts["bubble"] = silent_step - work(silent, spec)

    unchecked = _on(silent, replace(silent.framework, checks=None))
    parts["checks"] = work(silent, spec) - work(unchecked, spec)
    unhosted = _on(unchecked, with_host(unchecked.framework, 0.0))
    parts["host"] = work(unchecked, spec) - work(unhosted, spec)
    idle = _on(unhosted, with_network(unhosted.framework, IdleNetwork))
    exchanged = work(unhosted, spec) - work(idle, spec)
    parts["replicas"] = exchanged - (work(unhosted, alone) - work(idle, alone))
    parts["shards"] = exchanged - parts["replicas"]
    parts["recompute"] = work(idle, spec) - work(idle, plain)
    priced = priced_spec(idle, plain)
    rank_work = _rank_work(priced)
    busiest = max(range(len(rank_work)), key=rank_work.__getitem__)
    parts["update"] = priced.ends[busiest] + priced.pricer.step_seconds(priced.draft)
    parts["compute"] = work(idle, plain) - parts["update"]
    return parts


def _rank_work(priced: Priced) -> list[float]:
    """Return the seconds that each rank works in its passes and after them. [P]"""
    count = priced.draft.microbatches
    return [
        count * sum(priced.costs[chunk].microbatch for chunk in chunks) + end
        for chunks, end in zip(priced.chunks, priced.ends, strict=True)
    ]


def _on(setting: PricingSetting, framework: Framework) -> PricingSetting:
    """Return the setting with another framework."""
    return replace(setting, framework=framework)


def row_changes(setting: PricingSetting, spec: PlanSpec) -> list[RowChange]:
    """Price the plans with one word changed and return those that fit, the fastest first.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The plan that is changed.
    """
    found = []
    for told, other in single_changes(setting, spec):
        if other == spec:
            continue
        answer = price(setting, other)
        if answer.feasible and answer.step_time is not None:
            found.append(RowChange(told, answer))
    return sorted(found, key=lambda change: change.answer.step_time or 0.0)


def single_changes(
    setting: PricingSetting, spec: PlanSpec
) -> Iterator[tuple[str, PlanSpec]]:
    """Yield a plan with each of its words changed, and what was changed."""
    for size in (spec.microbatch_size * 2, spec.microbatch_size // 2):
        if size:
            yield f"microbatch_size={size}", replace(spec, microbatch_size=size)
    traits = setting.framework.traits
    for zero in traits.zero_stages:
        group = spec.zero_group if zero else None
        yield f"zero={zero}", replace(spec, zero=zero, zero_group=group)
    for again in ("none", "selective", "full"):
        yield f"recompute={again}", replace(spec, recompute=again)
    yield (
        f"sp={'off' if spec.splits_tokens else 'on'}",
        replace(spec, sp=not spec.splits_tokens),
    )
    for kind in traits.cuda_graphs:
        yield f"cuda_graphs={kind}", replace(spec, cuda_graphs=kind)
    if traits.compiles:
        yield "compile=on", replace(spec, compile=True)
    for overlap in ("reduce", "reduce+gather"):
        yield f"overlap={overlap}", replace(spec, overlap=overlap)
    if traits.overlaps_shards and spec.tp > 1 and spec.splits_tokens:
        yield "tp_overlap=on", replace(spec, tp_overlap=True)
    for schedule in ("1f1b", "interleaved:2", "interleaved:4"):
        if spec.pp > 1:
            yield f"schedule={schedule}", replace(spec, schedule=schedule, layers=None)
    for told, count in degrees_moved({"dp": spec.dp, "tp": spec.tp, "pp": spec.pp}):
        moved = replace(
            spec, dp=count["dp"], tp=count["tp"], pp=count["pp"], layers=None
        )
        yield told, moved


def degrees_moved(count: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the degrees with one doubled and another halved, so that the product stays.

    Yields:
        The change in words, and the new degrees.
    """
    for more, less in permutations(count, 2):
        if count[less] % 2 == 0:
            moved = {**count, more: count[more] * 2, less: count[less] // 2}
            yield f"{more}={moved[more]} and {less}={moved[less]}", moved
