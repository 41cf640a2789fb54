"""Plans from what a search found or somebody gives: actions, parts, memory, interval, reason."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gnnplace.costs import DEFAULT_FRAMEWORK
from gnnplace.errors import InputError
from gnnplace.plans.decoders.costs import DecoderCosts
from gnnplace.plans.job import Progress, SearchOptions
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.order.rows import with_messages
from gnnplace.plans.order.rows import words as action_words
from gnnplace.plans.plan import (
    InputEntry,
    MemoryEntry,
    Plan,
    PlanFile,
    RecognisedEntry,
    RecomputeEntry,
    StageEntry,
)
from gnnplace.plans.search.draft import (
    Draft,
    Priced,
    find_fullest_memory,
    list_meshes,
    rank_bytes,
    realize_draft,
)
from gnnplace.plans.search.drafts import BASELINES
from gnnplace.plans.search.framework_pricing import FrameworkPricer, make_pricer
from gnnplace.plans.search.search import FoundPlans, search
from gnnplace.plans.search.space import micro_batch_sizes
from gnnplace.plans.search.stage import Stage, StageCost
from gnnplace.plans.segments.chain import Chain, is_captured
from gnnplace.plans.spec import PlanSpec, parse_spec
from gnnplace.problem import Cluster

if TYPE_CHECKING:
    from gnnplace.plans.segments.block_costs import Recognition

UNLIKE = (
    "its stages have unlike numbers of replicas: it is predicted, and cannot be run; "
    "--runnable finds the best that can"
)
NINE_IN_TEN = 1.645  # standard deviations that hold nine in ten, on both sides


def find_plans(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions | None = None,
    *,
    progress: Progress | None = None,
) -> list[Plan]:
    """Search the best plans, the fastest first. If nothing fits, one plan says why.

    Args:
        chain: The model as a chain of segments, with their prices.
        cluster: The devices in topology order.
        options: The budget, the number of plans, and whether they must be runnable.
        progress: Called with a line for each step.
    """
    options = options or SearchOptions()
    result = _search(chain, cluster, options, progress)
    if not result.best:
        return [_nothing(chain, cluster)]
    return [
        make_plan(chain, cluster, priced, result)
        for priced in result.best[: options.top]
    ]


def find_baselines(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions | None = None,
    *,
    progress: Progress | None = None,
) -> dict[str, Plan | None]:
    """Search the best plan and the fastest plan of every baseline, or None where none fits.

    Arguments are those of `find_plans`.
    """
    result = _search(
        chain, cluster, options or SearchOptions(), progress, all_baselines=True
    )
    rows: dict[str, Priced | None] = {"plan": result.best[0] if result.best else None}
    rows |= {name: result.baselines.get(name) for name in BASELINES}
    return {
        name: None if priced is None else make_plan(chain, cluster, priced, result)
        for name, priced in rows.items()
    }


def _search(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions,
    progress: Progress | None,
    *,
    all_baselines: bool = False,
) -> FoundPlans:
    """Search plans from the fastest plans in words, where a capture is priced by its sizes.

    Args:
        chain: The model as a chain of segments, with their prices.
        cluster: The devices in topology order.
        options: The budget, and whether plans must be runnable.
        progress: Called with a line for each step.
        all_baselines: Whether baselines have micro-batches of any size.
    """
    seeds: list[Draft] = []
    if chain.framework is not None and is_captured(chain.source):
        # Imported late, because it reads captures.
        from gnnplace.plans.seeds import seed_drafts

        seeds = seed_drafts(chain, cluster)
    return search(
        chain,
        cluster,
        options,
        seeds=seeds,
        all_baselines=all_baselines,
        progress=progress,
    )


def make_plan(
    chain: Chain, cluster: Cluster, priced: Priced, found: FoundPlans | None = None
) -> Plan:
    """Build the plan of a priced draft.

    Args:
        chain: The model as a chain of segments, with their prices.
        cluster: The devices that it is planned for.
        priced: What was searched or given.
        found: The search that it comes from, whose lower bound the plan states.
    """
    draft = priced.draft
    step = priced.step_time
    low, high = _interval(priced)
    if chain.alternative is not None:
        ratio = _alternative_step(chain.alternative, priced) / step
        low = min(low, low * ratio)
        high = max(high, high * ratio)
    rank, lack = priced.lacking
    fullest = find_fullest_memory(priced)
    if lack <= 0:
        reason = None
    else:
        reason = fullest.lack_text(fullest.device)
    # Bare costs are counted without a spread; a framework's have the probability that they fit.
    fits = float(lack <= 0)
    if chain.framework is not None:
        fits = chain.framework.fit_probability(priced.held(rank), priced.memory[rank])
    bound, one_stage_bound = (
        (None, None) if found is None else (found.bound, found.bound_of_one)
    )
    file = PlanFile(
        format="gnnplace-plan",
        version=2,
        model=chain.name,
        fingerprint=chain.fingerprint,
        cluster=cluster.name,
        batch=chain.batch,
        microbatch_size=draft.size // draft.stages[0].mesh.replicas,
        precision=chain.precision,
        loss=chain.loss,
        optimizer=chain.optimizer,
        lora=_lora_words(chain),
        framework=DEFAULT_FRAMEWORK
        if chain.framework is None
        else chain.framework.name,
        source="captured" if chain.framework is None else chain.source.basis,
        recognised=None
        if chain.recognition is None
        else _make_recognised_entry(chain.recognition),
        inputs=[InputEntry(name=n, shape=list(x), dtype=t) for n, x, t in chain.inputs],
        schedule=draft.schedule,
        stages=[
            _entry(chain, cluster, draft, k, costs)
            for k, costs in enumerate(priced.costs)
        ],
        ranks=list(draft.ranks),
        actions=action_words(with_messages(priced.orders, draft.ranks)),
        flops=count_model_flops(priced.pricer.chain, chain.batch),
        step_time=step,
        interval=[low, high],
        lower_bound=bound,
        one_stage_bound=one_stage_bound,
        claim=_claim(bound, one_stage_bound, step),
        parts=_parts(priced),
        memory=_memory(priced, cluster),
        fits=fits,
        sent=list(priced.line.sent),
        ends=list(priced.ends),
        frontier=[
            list(p) for p in _frontier(found.best if found is not None else (priced,))
        ],
    )
    if chain.mixes:
        whole_batch = f"the batch stays whole: {chain.mixes}"
    else:
        whole_batch = ""
    unlike = len({stage.mesh.replicas for stage in draft.stages}) > 1
    notices = [*chain.notices, whole_batch, UNLIKE if unlike else ""]
    if chain.framework is not None:
        notices.append(offloading_notice(priced))
    return Plan(
        file,
        reason,
        notices=tuple(notice for notice in notices if notice),
        parameters=chain.parameters,
        fullest=fullest,
    )


def _make_recognised_entry(recognition: Recognition) -> RecognisedEntry:
    """Return what of a captured model's step is recognised, as a plan's file says it."""
    return RecognisedEntry(
        share=recognition.share,
        unrecognised=list(recognition.unrecognised),
        written_out=list(recognition.written_out),
    )


def _alternative_step(alternative: Chain, priced: Priced) -> float:
    """Return the seconds of a step at the other price of modules that have two.

    They are the step's own where the model as it was captured cannot be split so.

    Args:
        alternative: The model at these other prices.
        priced: The plan.
    """
    fabric = priced.pricer.fabric
    draft = priced.draft
    pricer = make_pricer(alternative, fabric, draft.size)
    repriced = realize_draft(pricer, draft, priced.orders)
    if repriced is None:
        return priced.step_time
    return repriced.step_time


def offloading_notice(priced: Priced) -> str:
    """Return a line on what lies in the servers' memory, or "" if everything is on GPUs.

    Only state counts. Copies under way and the program itself come on top of it.
    """
    pricer = priced.pricer
    stages = priced.draft.stages
    if (
        not isinstance(pricer, FrameworkPricer)
        or not pricer.framework.offloading.optimizer
    ):
        return ""
    sizes = [stage.mesh.count * pricer.host_bytes(stage) for stage in stages]
    num_devices = sum(mesh.count for mesh in list_meshes(priced.draft))
    servers = -(-num_devices // pricer.framework.network.per_server)
    offload = pricer.framework.offload
    return (
        f"offload={offload}: each server's own memory holds {sum(sizes) / servers / 1e9:,.0f} GB; "
        "no published run with it was compared"
    )


def _lora_words(chain: Chain) -> str | None:
    """Return the adapters that are trained, as `--lora` takes them."""
    if not isinstance(chain.source, DecoderCosts):
        return None
    adapters = chain.source.setting.decoder.adapters
    if adapters is None:
        return None
    return str(adapters)


def count_model_flops(chain: Chain, batch: int | None = None) -> float | None:
    """Return the FLOPs of a model's products in a step: three times those of its forward pass.

    The backward pass has two products for each of the forward pass, and what is recomputed does not
    count (Chowdhery et al., 2022, PaLM, arXiv 2204.02311, appendix B). Gradients of frozen
    parameters do not count either.

    Args:
        chain: The model as a chain of segments, as it was priced.
        batch: Examples of a step of a model that is priced by its sizes; None: the chain's.

    Returns:
        None if the chain has given costs.
    """
    if isinstance(chain.source, DecoderCosts):
        return chain.source.setting.decoder.step_flops * (batch or chain.batch)
    if not is_captured(chain.source):
        return None
    return 3.0 * sum(rule.flops for rule in chain.source.layers.rules)


def _claim(bound: float | None, one: float | None, step: float) -> str:
    if bound is None or one is None:
        return ""
    space = "contiguous stages on slices of the cluster, with the micro-batches that were tried"
    if bound >= step * (1 - 1e-9):
        return f"optimal among {space}, by predicted times"
    claim = f"no plan of {space} takes less than the bound, by predicted times"
    if one >= step * (1 - 1e-9):
        return f"{claim}, and none with one stage a rank takes less than this plan"
    return f"{claim}, and none with one stage a rank is more than {1 - one / step:.1%} faster"


def _entry(
    chain: Chain, cluster: Cluster, draft: Draft, number: int, costs: StageCost
) -> StageEntry:
    stage = draft.stages[number]
    kind = cluster.devices[stage.mesh.first].kind
    examples = draft.size // stage.mesh.replicas
    source = chain.source
    split = stage.mesh.shards > 1
    segments = chain.segments[stage.first : stage.last]
    recomputed = [chain.segments[s].name for s in sorted(stage.recompute)]
    return StageEntry(
        modules=list(dict.fromkeys(m for segment in segments for m in segment.modules)),
        members=[name for segment in segments for name in segment.members],
        devices=stage.mesh.nested(cluster),
        zero=stage.zero,
        recompute=RecomputeEntry(
            kind="none"
            if not recomputed
            else "selective"
            if stage.attention
            else "full",
            modules=recomputed,
            layers=stage.together if recomputed else 0,
        ),
        border=stage.choice.border if split else "whole",
        regather=split and stage.choice.regather,
        placements=source.placements(
            kind, stage.mesh.axes, examples, stage.first, stage.last, stage.choice
        )
        if split and is_captured(source)
        else {},
        saved=costs.saved,
        seconds=[costs.forward, costs.backward, costs.weights],
    )


def _frontier(plans: Sequence[Priced]) -> list[tuple[float, float]]:
    """Return the plans that no other beats in both memory and time.

    Returns:
        Bytes of the fullest device and seconds of a step, by rising bytes.
    """
    points = []
    for plan in plans:
        fullest = max(plan.held(rank) for rank in range(len(plan.chunks)))
        points.append((fullest, plan.step_time))
    points.sort()
    frontier: list[tuple[float, float]] = []
    for memory, seconds in points:
        if not frontier or seconds < frontier[-1][1]:
            frontier.append((memory, seconds))
    return frontier


def _interval(priced: Priced) -> tuple[float, float]:
    """Return the interval of the step time.

    With a framework it holds four in five of the framework's published steps. With bare costs it
    holds nine in ten, if errors of the costs go together.
    """
    framework = priced.pricer.chain.framework
    if framework is not None:
        num_devices = sum(mesh.count for mesh in list_meshes(priced.draft))
        stage = priced.draft.stages[0]
        sums = priced.pricer.sums(stage.mesh, choice=stage.choice)
        has_experts = sums is not None and bool(sums.costs.experts.any())
        return framework.step_interval(priced.step_time, num_devices, has_experts)
    seconds = [c.microbatch for c in priced.costs]
    pairs = zip(priced.costs, seconds, strict=True)
    weighed = sum(cost.error * weight for cost, weight in pairs)
    error = weighed / sum(seconds)
    factor = math.exp(NINE_IN_TEN * error)
    return priced.step_time / factor, priced.step_time * factor


def _parts(priced: Priced) -> dict[str, float]:
    """Return the seconds of the busiest rank by what they are spent on."""
    busiest: dict[str, float] = {}
    most_seconds = -1.0
    for rank in range(len(priced.chunks)):
        parts = _sum_rank_parts(priced, rank)
        seconds = sum(parts.values())
        if seconds > most_seconds:
            busiest = parts
            most_seconds = seconds
    # What a framework takes once a step belongs to the optimizer.
    step_seconds = priced.pricer.step_seconds(priced.draft)
    bubble = max(priced.step_time - most_seconds - step_seconds, 0.0)
    return {**busiest, "update": busiest["update"] + step_seconds, "bubble": bubble}


def _sum_rank_parts(priced: Priced, rank: int) -> dict[str, float]:
    """Return the seconds that one rank is busy by what they are spent on."""
    microbatch = 0.0
    recomputed = 0.0
    gathered = 0.0
    reduction = 0.0
    update = 0.0
    for chunk in priced.chunks[rank]:
        costs = priced.costs[chunk]
        microbatch += costs.microbatch
        recomputed += costs.recomputed
        gathered += costs.gathered
        reduction += costs.reduction
        update += costs.update
    count = priced.draft.microbatches
    return {
        "compute": count * (microbatch - recomputed - gathered),
        "recompute": count * recomputed,
        "zero": count * gathered,
        "reduction": reduction,
        "update": update,
    }


def _memory(priced: Priced, cluster: Cluster) -> dict[str, MemoryEntry]:
    """Return the bytes of every device by what holds them."""
    entries = {}
    bytes_of_ranks = rank_bytes(priced)
    # A framework's own terms count what libraries take, which a device reserves otherwise.
    is_framework = priced.pricer.chain.framework is not None
    for rank, mesh in enumerate(list_meshes(priced.draft)):
        memory = bytes_of_ranks[rank]
        for index in mesh.devices:
            device = cluster.devices[index]
            entries[device.name] = MemoryEntry(
                state=memory.state,
                activations=priced.saved[rank],
                working=memory.allocated - memory.state - priced.saved[rank],
                slack=memory.reserved
                - memory.allocated
                + (0.0 if is_framework else device.reserve),
            )
    return entries


def _bytes(size: float) -> str:
    if size >= 1e8:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.2f} MB"


def _nothing(chain: Chain, cluster: Cluster) -> Plan:
    """Return the leanest plan on all devices, with a reason that says why nothing fits.

    Raises:
        InputError: If no plan of the model can be made on the cluster.
    """
    fabric = MeshFabric(cluster)
    best: Priced | None = None
    for size in [chain.batch] if chain.mixes else micro_batch_sizes(chain.batch)[-1:]:
        pricer = make_pricer(chain, fabric, size)
        for stages in range(1, min(cluster.num_devices, len(chain)) + 1):
            bounds = [round(k * len(chain) / stages) for k in range(stages + 1)]
            chunks = [
                Stage(a, b, Mesh(k, 1, 1), 0, frozenset(range(a, b)))
                for k, (a, b) in enumerate(itertools.pairwise(bounds))
            ]
            draft = Draft(size, chain.batch // size, "1f1b", tuple(chunks))
            priced = realize_draft(pricer, draft)
            if priced and (best is None or priced.lacking[1] < best.lacking[1]):
                best = priced
    if best is None:
        raise InputError(f"{chain.name}: it cannot be planned on {cluster.name!r}")
    plan = make_plan(chain, cluster, best)
    state = sum(c.state for c in best.costs)
    memory = float(cluster.memory.sum())
    if state > memory:  # no split of the state helps
        count = math.ceil(state / (memory / cluster.num_devices))
        return replace(
            plan,
            reason="nothing fits: parameters, gradients and optimizer state are "
            f"{_bytes(state)} in all, and {cluster.num_devices} devices have {_bytes(memory)}; "
            f"take at least {count} such devices, or a precision or an optimizer with less state",
        )
    if chain.mixes:
        reason_for_whole = f"the batch stays whole, since {chain.mixes}; "
    else:
        reason_for_whole = ""
    lacks = (
        plan.reason
        or "it fits, and the search had no time to find it: give more --budget"
    )
    return replace(
        plan, reason=f"{reason_for_whole}nothing fits; the leanest plan: {lacks}"
    )


def price_given_plan(
    chain: Chain, cluster: Cluster, given: str | PlanSpec | Plan
) -> Plan:
    """Price a plan that the user gives and return it as a plan.

    Args:
        chain: The model as a chain of segments, with their prices.
        cluster: The devices in topology order.
        given: The plan in words, parsed words, or a plan that was read. See `price_given_draft`.

    Raises:
        InputError: If a word is wrong, or does not fit the model or the cluster.
        MismatchError: If a plan that was read is of another model or other devices.
    """
    return make_plan(chain, cluster, price_given_draft(chain, cluster, given))


def price_given_draft(
    chain: Chain, cluster: Cluster, given: str | PlanSpec | Plan
) -> Priced:
    """Price a plan that the user gives and return it as a priced draft.

    Args:
        chain: The model as a chain of segments, with their prices.
        cluster: The devices in topology order.
        given: The plan in words, such as
            "dp=2,tp=2,pp=2,microbatch_size=4,recompute=full,zero=1,schedule=1f1b", with
            "layers=12+12" or "layers=equal" where the stages are known; or a plan that was read.

    Raises:
        InputError: The message names the word that is wrong, or what does not fit the model or the
            cluster.
    """
    # Imports torch, which a search by sizes does without.
    from gnnplace.plans.given import draft_plan, draft_spec, read_orders

    fabric = MeshFabric(cluster)
    if isinstance(given, Plan):
        draft = draft_plan(chain, cluster, given)
    else:
        if isinstance(given, str):
            spec = parse_spec(given)
        else:
            spec = given
        draft = draft_spec(chain, cluster, spec)
    words = f"dp=1,microbatch_size={draft.size * draft.microbatches}"
    if chain.mixes and (draft.microbatches > 1 or draft.stages[0].mesh.replicas > 1):
        raise InputError(
            f"{chain.name}: the batch cannot be cut into micro-batches or replicas: "
            f"{chain.mixes}; leave it whole ({words}), or say --accept-other-loss to cut it anyway"
        )
    if isinstance(given, Plan):
        orders = read_orders(given)
    else:
        orders = None
    priced = realize_draft(make_pricer(chain, fabric, draft.size), draft, orders)
    if priced is None:
        raise InputError(f"{chain.name}: cannot be cut as given")
    return priced
