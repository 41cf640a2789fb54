"""`explain_captured`: what bounds the step of a captured model's plan, and which change helps most.

**Parts.** The step is priced again without one thing after the other, with the orders of its
actions kept: what the host takes to launch kernels, exchanges of shards inside of stages, messages
between stages, sums of gradients at the end, ZeRO's exchanges with every micro-batch, and what is
recomputed. What each takes away is its part: the seconds that are not hidden behind something else.
Of what is left the busiest rank's work is `compute` and `update`, the rest `bubble`. Parts add up
to the step.

**Changes.** One word of the plan is changed at a time: ZeRO, what is recomputed, the schedule, the
size of micro-batches, tokens between segments, the split, cuts of stages, and how many devices
are replicas, shards and stages. Each is priced as the plan is.

**Gaps.** What makes runs slower than predicted is priced too (`explaining.causes`). Where a step
was measured, the causes that would explain it come first, each with the factor that explains it.

Complexity: a capture of the model and some 30 prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gnnplace.costs import (
    IdleNetwork,
    environment,
    with_host,
    with_network,
    with_slow_links,
)
from gnnplace.costs.floors import EAGER, NOTHING, Floor
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.explaining.causes import SlowdownCause, rank_causes
from gnnplace.explaining.in_words import degrees_moved
from gnnplace.explaining.measured_steps import measured_steps, sizes_of
from gnnplace.explaining.plan_explanation import PARTS, PlanChange, PlanExplanation
from gnnplace.launch import launch_plan_of, stage_layers
from gnnplace.plans import (
    ANY_SPLIT,
    WEIGHTS,
    ActionRows,
    Chain,
    Draft,
    MeshFabric,
    ModelCosts,
    Plan,
    PlanSpec,
    Priced,
    Pricer,
    SplitChoice,
    Stage,
    StageCost,
    chain_of_file,
    devices_of_server,
    draft_of_plan,
    draft_of_spec,
    ends_of,
    even_bounds,
    orders_in,
    pipeline,
    pricer_of,
    realized,
    recomputing,
    seconds_of_rows,
    with_framework,
    with_splits,
)
from gnnplace.plans import with_schedule as under
from gnnplace.problem import Cluster
from gnnplace.problem.cluster.headroom import with_slack

TP_COLLECTIVES = 10  # of a layer and micro-batch, with sequence parallelism
LEAST = 0.005  # part of the step that a change must gain to be reported
SCHEDULES = ("1f1b", "zero-bubble", "interleaved:2", "v")


class SlowFabric(MeshFabric):
    """A fabric whose exchanges take a multiple of their time."""

    def __init__(self, cluster: Cluster, factor: float) -> None:
        super().__init__(cluster)
        self.factor = factor

    def collective(self, *args: Any, **options: Any) -> float:
        """Return the seconds of a collective."""
        return self.factor * super().collective(*args, **options)

    def sends(self, *args: Any, **options: Any) -> float:
        """Return the seconds of messages."""
        return self.factor * super().sends(*args, **options)


class IdleFabric(MeshFabric):
    """A fabric whose exchanges take no time."""

    def collective(self, *_: object, **__: object) -> float:
        """Return 0: no collective takes time."""
        return 0.0

    def rate(self, *_: object, **__: object) -> float:
        """Return 0: no byte of a collective takes time."""
        return 0.0


def explain_captured(
    plan: Plan,
    *,
    model: str | None,
    cluster: str | Cluster | None,
    measured: str | None,
    progress: Callable[[str], None] | None,
) -> PlanExplanation:
    """Explain what bounds the step of a captured model's plan. See `explain_plan`."""
    file = plan.file
    steps = None if measured is None else measured_steps(measured, sizes_of(file))
    devices = with_slack(resolve_cluster(cluster or file.cluster_file or file.cluster))
    if progress is not None:
        progress("explaining: capturing the model")
    chain = chain_of_file(file, model or file.model, devices, file.precision)
    draft = draft_of_plan(chain, devices, plan)
    pricer = pricer_of(chain, MeshFabric(devices), draft.size)
    priced = realized(pricer, draft, orders_in(plan))
    if priced is None:
        raise InputError(f"{chain.name}: cannot be cut as the plan says")
    if progress is not None:
        progress("explaining: pricing single changes")
    tried = list(changes_of(plan, priced, pricer))
    parts, lacks = parts_of(priced, pricer), priced.lacking[1] > 0
    better = [
        x for x in tried
        if x.lacking <= 0 and (lacks or x.step_time < (1 - LEAST) * priced.step_time)
    ]  # fmt: skip
    rank = max(range(len(priced.chunks)), key=priced.held)
    name = devices.devices[draft.stages[draft.ranks.index(rank)].mesh.first].name
    low, high = file.interval or (file.step_time or 0.0,) * 2
    scale = priced.step_time / (file.step_time or priced.step_time)
    return PlanExplanation(
        plan, priced.step_time, (low * scale, high * scale), parts, name,
        file.memory[name], priced.memory[rank] + file.memory[name].slack,
        tuple(sorted(better, key=lambda x: x.step_time)), len(tried),
        causes_of(plan, priced, pricer, parts, None if steps is None else steps.seconds), steps,
    )  # fmt: skip


def parts_of(priced: Priced, pricer: Pricer) -> dict[str, float]:
    """Return the seconds of a step by what they are spent on. They add up to the step.

    Args:
        priced: The priced draft with its orders.
        pricer: The pricer that it was priced with.
    """
    chain, fabric, draft = pricer.chain, pricer.fabric, priced.draft
    found, before, actions = dict.fromkeys(PARTS, 0.0), priced.step_time, priced.actions
    steps: list[tuple[str, Pricer, Draft]] = []
    if isinstance(chain.source, ModelCosts):
        quiet_chain, apart_chain = _quiet_chains(chain, fabric)
        quiet = pricer_of(quiet_chain, fabric, draft.size)
        apart = pricer_of(apart_chain, fabric, draft.size)
        steps = [("host", quiet, draft), ("shards", apart, draft)]
        pricer = apart
    calm = replace(
        draft, stages=tuple(replace(s, zero=min(s.zero, 1)) for s in draft.stages)
    )
    plain = replace(
        calm, stages=tuple(replace(s, recompute=frozenset()) for s in calm.stages)
    )
    steps += [("messages", pricer, draft), ("reduction", pricer, draft), ("zero", pricer, calm),
              ("recompute", pricer, plain)]  # fmt: skip
    left: tuple[StageCost, ...] = priced.costs
    for name, own, changed in steps:
        silent = name not in ("host", "shards")
        summed = name in ("host", "shards", "messages")
        made = _without(own, changed, actions, silent=silent, summed=summed)
        if made is None:
            continue
        after, left = made
        found[name], before = before - after, after
    work = [sum(left[c].microbatch for c in own) for own in priced.chunks]
    busiest = max(range(len(work)), key=work.__getitem__)
    found["update"] = max(sum(left[c].update for c in own) for own in priced.chunks)
    found["update"] += pricer.step_seconds(draft)
    found["compute"] = draft.microbatches * work[busiest]
    found["bubble"] = before - found["compute"] - found["update"]
    if found["bubble"] < 0:  # the busiest rank is not the last to update
        found["update"], found["bubble"] = found["update"] + found["bubble"], 0.0
    return found


def _without(
    pricer: Pricer, draft: Draft, actions: ActionRows, *, silent: bool, summed: bool
) -> tuple[float, tuple[StageCost, ...]] | None:
    """Return the seconds of a step and the costs of its stages without some of its exchanges.

    Args:
        pricer: The pricer of the stages.
        draft: The plan.
        actions: Order of every rank's passes.
        silent: Leave out messages between stages.
        summed: Keep the sums of gradients at the end of the step.

    Returns:
        None if a stage cannot be priced.
    """
    costs = tuple(cost for s in draft.stages if (cost := pricer.cost(s)) is not None)
    if len(costs) < len(draft.stages):
        return None
    line = pipeline(pricer, draft, costs)
    ends = ends_of(pricer, draft, costs)
    if not summed:
        ends = tuple(
            sum(costs[c].update for c, r in enumerate(draft.ranks) if r == rank)
            for rank in range(len(ends))
        )
    if silent:
        line = replace(line, sent=(0.0,) * len(line.sent))
    return seconds_of_rows(line, actions, ends) + pricer.step_seconds(draft), costs


def _quiet_chains(chain: Chain, fabric: MeshFabric) -> tuple[Chain, Chain]:
    """Return a chain without launches, and one whose shards exchange nothing besides."""
    framework = chain.framework
    if framework is None:
        idle = IdleFabric(fabric.cluster)
        return without_host(chain, fabric), without_host(chain, idle)
    quiet = with_host(framework, 0.0)
    # The layers of the second exchange nothing; its replicas still do.
    apart = with_framework(chain, with_network(quiet, IdleNetwork))
    return with_framework(chain, quiet), replace(apart, framework=quiet)


def without_host(chain: Chain, fabric: MeshFabric, floor: Floor = NOTHING) -> Chain:
    """Return a captured model whose kernels do not wait for launches, over another fabric.

    Args:
        chain: The model.
        fabric: What its shards exchange over.
        floor: What a launch takes instead of nothing.
    """
    old = chain.source
    assert isinstance(old, ModelCosts)
    source = ModelCosts(
        old.layers, old.cuts, fabric, old.batch, old.precision, old.optimizer
    )
    source.parts.floor = floor
    source.parts.recordings = old.parts.recordings  # a launch changes no kernel
    return replace(chain, source=source, _known={})


def causes_of(
    plan: Plan,
    priced: Priced,
    pricer: Pricer,
    parts: Mapping[str, float],
    measured: float | None = None,
) -> tuple[SlowdownCause, ...]:
    """Return the causes that would make a run slower than predicted, the likeliest first.

    Args:
        plan: The plan that runs.
        priced: The plan as a priced draft.
        pricer: The pricer that it was priced with.
        parts: Seconds of its step, of `parts_of`.
        measured: Seconds of a step of the run; None: every cause at its usual factor.
    """
    chain, fabric, draft, step = (
        pricer.chain,
        pricer.fabric,
        priced.draft,
        priced.step_time,
    )
    framework = chain.framework
    kernels = sum(parts[name] for name in ("compute", "recompute", "bubble"))
    full = tuple(recomputing(chain, s, "full") for s in draft.stages)
    servers = fabric.cluster.num_devices > devices_of_server(fabric)

    def step_on(slower: Chain, network: MeshFabric = fabric) -> float:
        price = realized(pricer_of(slower, network, draft.size), draft, priced.orders)
        return step if price is None else max(price.step_time, step)

    def step_at(cause: str, factor: float) -> float:
        if cause == "outside":
            return step * (1.0 + factor)
        if cause == "clock":
            return step + kernels * (factor - 1.0)
        if cause == "checks":
            return step + _checks(plan, draft, fabric, len(priced.chunks))
        if cause == "recompute":
            price = realized(pricer, replace(draft, stages=full), priced.orders)
            return step if price is None else max(price.step_time, step)
        if framework is not None:
            changed = {
                "across": lambda: with_slow_links(framework, across=factor),
                "inside": lambda: with_slow_links(framework, inside=factor),
                "host": lambda: with_host(framework, factor),
                "overlap": lambda: replace(framework, hides="none"),
            }
            return step_on(with_framework(chain, changed[cause]()))
        if cause == "overlap" or not isinstance(chain.source, ModelCosts):
            return step  # nothing overlaps in a captured model's prices
        if cause == "host":
            launches = replace(
                EAGER,
                view=factor * EAGER.view,
                forward=factor * EAGER.forward,
                backward=factor * EAGER.backward,
            )
            return step_on(without_host(chain, fabric, launches))
        if (cause == "across") != servers:
            return step  # one network joins all
        slow = SlowFabric(fabric.cluster, factor)
        return step_on(replace(without_host(chain, slow, EAGER), _known={}), slow)

    return rank_causes(step_at, step, measured, servers=servers)


def _checks(plan: Plan, draft: Draft, fabric: MeshFabric, ranks: int) -> float:
    """Return the seconds of a step that checks of its collectives take.

    Args:
        plan: The plan.
        draft: The plan as a draft.
        fabric: The devices.
        ranks: The number of pipeline ranks.
    """
    checks = environment("checked-collectives").constants
    layers, _ = stage_layers(plan.file)
    shards = draft.stages[0].mesh.shards
    inside = (
        TP_COLLECTIVES * draft.microbatches * sum(layers or ()) / ranks * (shards > 1)
    )
    devices = fabric.cluster.num_devices
    count = (
        shards * (inside + checks["checks_end"].value)
        + checks["checks_world"].value * devices
    )
    return checks["check"].value * count


def changes_of(plan: Plan, priced: Priced, pricer: Pricer) -> Iterator[PlanChange]:
    """Yield plans that differ in one word, each priced, without those that cannot be made.

    Args:
        plan: The plan that is changed.
        priced: The plan as a priced draft.
        pricer: The pricer that it was priced with.
    """
    pricers = {pricer.size: pricer}
    slack = max(entry.slack for entry in plan.file.memory.values())
    for told, draft in (
        *_of_draft(priced.draft, pricer),
        *_of_words(plan, priced.draft, pricer),
    ):
        if draft.size not in pricers:
            pricers[draft.size] = pricer_of(pricer.chain, pricer.fabric, draft.size)
        candidate = realized(pricers[draft.size], draft)
        if candidate is not None:
            memory = max(candidate.held(p) for p in range(len(candidate.chunks)))
            yield PlanChange(
                told, candidate.step_time, memory + slack, candidate.lacking[1]
            )


def _of_draft(draft: Draft, pricer: Pricer) -> Iterator[tuple[str, Draft]]:
    """Yield drafts with one change that keeps the sizes of meshes and of micro-batches."""
    stages = draft.stages
    plain = replace(draft, rules=None, schedule=draft.schedule.replace(":searched", ""))
    rows: list[tuple[str, tuple[Stage, ...]]] = []
    if any(s.mesh.replicas > 1 for s in stages):
        rows += [
            (f"zero={z}", tuple(replace(s, zero=z) for s in stages)) for z in range(4)
        ]
    rows += [(f"recompute={word}", tuple(recomputing(pricer.chain, s, word) for s in stages))
             for word in ("none", "selective", "full")]  # fmt: skip
    rows += _cut_evenly(draft, pricer)
    yield from (
        (told, replace(plain, stages=made)) for told, made in rows if made != stages
    )
    for schedule in SCHEDULES:
        other = _scheduled(plain, pricer.chain, schedule)
        if other is not None:
            yield f"schedule={schedule}", other
    if max(s.mesh.shards for s in stages) > 1:
        if all(s.mesh.outer == 1 and s.choice.border != "examples" for s in stages):
            cut = stages[-1].choice.border == "tokens"
            choice = SplitChoice(WEIGHTS, border="whole" if cut else "tokens")
            yield f"sp={'off' if cut else 'on'}", with_splits(pricer, plain, (choice,))
        on = not any(s.choice.regather for s in stages)
        made = [replace(s, choice=replace(s.choice, regather=on and s.mesh.shards > 1))
                for s in stages]  # fmt: skip
        yield f"regather={'on' if on else 'off'}", replace(plain, stages=tuple(made))
        told = "the fastest split of layers that fits (shards=N)"
        one = tuple(replace(s, mesh=replace(s.mesh, outer=1)) for s in stages)
        yield told, with_splits(pricer, replace(plain, stages=one), ANY_SPLIT)


def _cut_evenly(
    draft: Draft, pricer: Pricer
) -> Iterator[tuple[str, tuple[Stage, ...]]]:
    """Yield the stages that are as even as can be, if all stages have one mesh."""
    stages = draft.stages
    if len(stages) < 2 or len({(s.mesh.replicas, s.mesh.shards) for s in stages}) > 1:
        return
    choice = replace(stages[0].choice, labels=None, once=1 / draft.microbatches)
    bounds = even_bounds(pricer, stages[0].mesh, len(stages), choice)
    yield (
        "stages that are as even as can be (without layers=)",
        draft.cut_at(bounds).stages,
    )


def _scheduled(draft: Draft, chain: Chain, schedule: str) -> Draft | None:
    """Return the draft under another schedule.

    Returns:
        None if it is the draft's own schedule, or if it would need other stages.
    """
    if schedule == draft.schedule or len(draft.stages) < 2:
        return None
    if draft.schedule == "1f1b":
        return under(chain, draft, schedule)
    alike = {"1f1b", "zero-bubble"}
    return (
        replace(draft, schedule=schedule)
        if {schedule, draft.schedule} <= alike
        else None
    )


def _of_words(plan: Plan, draft: Draft, pricer: Pricer) -> Iterator[tuple[str, Draft]]:
    """Yield drafts with another micro-batch size or other numbers of replicas, shards or stages."""
    spread, batch = plan.file.stages[0].spread, plan.file.batch
    size, replicas = (
        plan.file.microbatch_size // spread,
        draft.stages[0].mesh.replicas * spread,
    )
    for other in (size * 2, size // 2):
        if other and batch % (other * replicas) == 0:
            whole = other * replicas
            yield f"microbatch_size={other}", replace(
                draft, size=whole, microbatches=batch // whole, rules=None,
                schedule=draft.schedule.replace(":searched", ""),
            )  # fmt: skip
    try:
        base, _ = launch_plan_of(plan)
    except GnnplaceError:
        return  # the stages have unlike meshes
    split = (
        "tp" if base.cp > 1 or base.ep > 1 or _is_megatron(draft, pricer) else "shards"
    )
    again = base.recompute if base.recompute in ("none", "selective") else "full"
    regather = True if draft.stages[0].choice.regather else None
    spec = PlanSpec(cp=base.cp, ep=base.ep, microbatch_size=size, recompute=again)
    for told, count in degrees_moved(
        {"dp": base.dp or 1, split: base.tp, "pp": base.pp}
    ):
        is_split = count[split] > 1
        candidate = replace(
            spec,
            dp=count["dp"],
            tp=count.get("tp", 1),
            shards=count.get("shards") if is_split else None,
            pp=count["pp"],
            zero=base.zero if count["dp"] > 1 else 0,
            regather=regather if is_split else None,
            schedule=base.full_schedule if count["pp"] > 1 else "1f1b",
        )
        try:
            made = draft_of_spec(pricer.chain, pricer.fabric.cluster, candidate)
        except GnnplaceError:
            continue  # a batch or a model that these numbers do not divide
        yield told, made


def _is_megatron(draft: Draft, pricer: Pricer) -> bool:
    """Return whether the draft's split over shards costs as much as Megatron's."""
    if draft.stages[0].mesh.shards == 1:
        return True
    own = draft.stages[0].choice
    choice = SplitChoice(WEIGHTS, border=own.border, regather=own.regather)
    other = with_splits(pricer, draft, (choice,))
    costs = [
        (pricer.cost(a), pricer.cost(b))
        for a, b in zip(draft.stages, other.stages, strict=True)
    ]
    return all(a == b for a, b in costs)
