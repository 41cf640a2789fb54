"""The price of a plan in words for a model known by its sizes, or the reason why it cannot run.

The plan becomes a draft on the model's chain (`draft_sized_spec`), which the planner's own pricer
prices as the framework trains it (`plans.search.framework_pricing`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache

from gnnplace.costs import (
    NOTHING,
    Framework,
    RunningWords,
    list_untested_properties,
    make_running_framework,
)
from gnnplace.errors import InputError
from gnnplace.plans.decoders.costs import decoder_chain
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.decoders.stages import cut_layers
from gnnplace.plans.mesh import Mesh
from gnnplace.plans.order.orders import chunk_ranks
from gnnplace.plans.search.draft import (
    Draft,
    Priced,
    list_meshes,
    rank_bytes,
    rank_parts,
    realize_draft,
)
from gnnplace.plans.search.framework_pricing import FrameworkPricer
from gnnplace.plans.search.stage import Stage
from gnnplace.plans.segments.chain import WEIGHTS, Chain, SplitChoice
from gnnplace.plans.spec import (
    PARTIAL,
    RECOMPUTED_MODULES,
    PlanSpec,
    check_recomputed_ranks,
)

LIKELY = 0.5
"""The probability from which on a plan is said to fit."""


@dataclass(frozen=True)
class PlanAnswer:
    """The price of a plan. Fields are None if it cannot be priced.

    Attributes:
        step_time: Predicted seconds of a step.
        low: Lower end of the interval that holds four in five of such steps. It is wider away from
            published runs.
        high: Upper end of the interval.
        lower_bound: Seconds that no plan is below; None where nothing is searched.
        feasible: Whether it can be and fits.
        reason: Why not; empty where it is.
        state: Bytes of parameters, gradients, optimizer and buckets, on the fullest device.
        state_first: The same bytes on the first rank, with the workspaces that frameworks' logs
            have too.
        state_last: The same bytes on the last rank, with these workspaces.
        allocated: The most bytes allocated at an instant, on the fullest device.
        peak: The most bytes reserved at an instant, on the same device.
        fits: The probability that the device has them.
        tokens_per_second: Tokens a second of all devices.
        untested: What the plan has that no published run of its framework had; empty where nothing.
    """

    step_time: float | None = None
    low: float | None = None
    high: float | None = None
    lower_bound: float | None = None
    feasible: bool = False
    reason: str = ""
    state: float | None = None
    state_first: float | None = None
    state_last: float | None = None
    allocated: float | None = None
    peak: float | None = None
    fits: float | None = None
    tokens_per_second: float | None = None
    untested: str = ""


def price(setting: PricingSetting, spec: PlanSpec) -> PlanAnswer:
    """Price a plan in words. A plan that cannot be priced has a reason."""
    try:
        priced = price_spec(setting, spec)
    except InputError as error:
        return PlanAnswer(reason=str(error))
    return make_plan_answer(setting, priced)


def price_spec(setting: PricingSetting, spec: PlanSpec) -> Priced:
    """Return the priced draft of a plan in words.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The plan.

    Raises:
        InputError: If the plan does not fit the model, the cluster or the framework.
    """
    check_framework(setting, spec)
    draft = draft_sized_spec(setting, spec)
    priced = realize_draft(make_spec_pricer(setting, spec), draft)
    if priced is None:
        raise InputError(f"{setting.cluster.name!r}: the model cannot be cut as given")
    return priced


def make_spec_pricer(setting: PricingSetting, spec: PlanSpec) -> FrameworkPricer:
    """Return the pricer of the stages of a plan in words.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The plan; its micro-batch and how it runs count.
    """
    words = RunningWords(
        compiled=spec.compile,
        graphs=find_captured_launches(setting, spec),
        gradients=spec.gradients or "",
        hides=spec.overlap or "",
        # nanotron's asynchronous shards are its own constants.
        offload=spec.offload,
        accumulates=spec.offload != NOTHING
        and spec.num_microbatches(spec.batch or setting.decoder.batch) > 1,
        hides_shards=spec.tp_overlap
        and not setting.framework.constants["hides_gathers"],
    )
    framework = make_running_framework(setting.framework, words)
    if spec.sample_length is not None:
        setting = _with_samples(setting, spec.sample_length)
    if spec.recomputed_modules:
        setting = _with_modules(setting, spec.recomputed_modules)
    return _pricer(setting, framework, spec.dp * spec.microbatch_size)


@lru_cache(maxsize=64)
def _with_samples(setting: PricingSetting, length: int) -> PricingSetting:
    """Return the setting with examples that pack samples of so many tokens."""
    decoder = replace(setting.decoder, sample_length=length)
    return replace(setting, decoder=decoder)


@lru_cache(maxsize=64)
def _with_modules(setting: PricingSetting, modules: tuple[str, ...]) -> PricingSetting:
    """Return the setting with modules that are recomputed one by one."""
    return replace(setting, recomputed_modules=modules)


@lru_cache(maxsize=1024)
def _pricer(
    setting: PricingSetting, framework: Framework, size: int
) -> FrameworkPricer:
    """Return the pricer of stages for micro-batches of so many examples, over all replicas."""
    return FrameworkPricer(_chain(setting, framework), setting.fabric, size)


@lru_cache(maxsize=256)
def _chain(setting: PricingSetting, framework: Framework) -> Chain:
    """Return the model as a chain, as a framework runs it."""
    return decoder_chain(replace(setting, framework=framework))


def find_captured_launches(setting: PricingSetting, spec: PlanSpec) -> str:
    """Return which launches run inside CUDA graphs.

    They are the plan's `cuda_graphs`, else the framework's default where nothing changes from step
    to step that a graph holds.
    """
    usual = setting.framework.traits.cuda_graphs[0]
    is_pipeline, has_experts = spec.pp > 1, setting.decoder.experts is not None
    changes = is_pipeline or has_experts or setting.framework.checks is not None
    return spec.cuda_graphs or ("off" if changes else usual)


def draft_sized_spec(setting: PricingSetting, spec: PlanSpec) -> Draft:
    """Return the draft of a plan in words on a decoder's chain.

    Replicas, context-parallel and expert-parallel devices are the outer axis of a stage's mesh,
    tensor-parallel shards the inner one.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The plan.

    Raises:
        InputError: If the layers cannot be cut so.
    """
    sizes = setting.decoder
    ranks = chunk_ranks(spec.schedule, spec.pp)
    stages: list[Stage] = []
    for rank, (first, last) in zip(
        ranks, find_stage_segments(setting, spec), strict=True
    ):
        stages.append(make_sized_stage(sizes, spec, rank, first, last))
    size = spec.dp * spec.microbatch_size
    microbatches = spec.num_microbatches(spec.batch or sizes.batch)
    return Draft(size, microbatches, spec.schedule, tuple(stages))


def count_stage_layers(setting: PricingSetting, spec: PlanSpec) -> tuple[int, ...]:
    """Return the layers of every stage of a plan in words. [stages]

    Raises:
        InputError: If the layers cannot be cut so.
    """
    rule = spec.layers or setting.framework.traits.cut
    return cut_layers(setting.decoder, spec.num_stages, rule)


def find_stage_segments(
    setting: PricingSetting, spec: PlanSpec
) -> list[tuple[int, int]]:
    """Return the first segment of every stage and the one after its last. [stages]

    The embedding is of the first stage, the head of the last; errors as of `count_stage_layers`.
    """
    counts = count_stage_layers(setting, spec)
    bounds = [0, *(1 + count for count in itertools.accumulate(counts))]
    bounds[-1] = setting.decoder.layers + 2
    return list(itertools.pairwise(bounds))


def make_sized_stage(
    sizes: DecoderSizes, spec: PlanSpec, rank: int, first: int, last: int
) -> Stage:
    """Return one stage of a plan in words on a decoder's chain.

    Args:
        sizes: Sizes of the decoder.
        spec: The plan.
        rank: The pipeline rank that has the stage.
        first: Its first segment.
        last: The segment after its last.
    """
    outer = math.lcm(spec.cp, spec.ep)
    devices_of_rank = spec.dp * spec.cp * spec.tp
    kind = spec.recompute_kind
    layers = range(max(first, 1), min(last, sizes.layers + 1))
    if kind == "none":
        layers = range(0)
    elif kind == "block":
        layers = layers[: spec.recompute_layers(rank)]
    is_partial = kind in PARTIAL
    if kind == "none" or is_partial:
        together = 0
    elif kind == "uniform":
        together = spec.recompute_layers(rank)
    else:
        together = 1
    return Stage(
        first=first,
        last=last,
        mesh=Mesh(
            rank * devices_of_rank, spec.dp * spec.cp // outer, outer * spec.tp, outer
        ),
        zero=spec.zero,
        recompute=frozenset(layers),
        together=together,
        attention=is_partial,
        choice=SplitChoice(
            style=WEIGHTS,
            border="tokens" if spec.splits_tokens else "whole",
            context=spec.cp,
            experts=spec.ep,
            expert_shards=spec.etp or 0,
        ),
        zero_group=spec.zero_group,
    )


def make_plan_answer(setting: PricingSetting, priced: Priced) -> PlanAnswer:
    """Return the answer with the figures of a priced plan."""
    pricer = priced.pricer
    framework = pricer.chain.framework
    assert framework is not None
    ranks = rank_bytes(priced)
    limits = [pricer.usable_memory(mesh) for mesh in list_meshes(priced.draft)]
    fullest = max(
        range(len(ranks)), key=lambda rank: ranks[rank].reserved / limits[rank]
    )
    memory, usable = ranks[fullest], limits[fullest]
    fits = framework.fit_probability(memory.reserved, usable)
    reason = ""
    if fits < LIKELY:
        reason = rank_parts(priced, fullest).lack_text(f"a device of rank {fullest}")
    seconds = priced.step_time
    draft = priced.draft
    tokens = draft.size * draft.microbatches * setting.decoder.length
    num_devices = sum(mesh.count for mesh in list_meshes(draft))
    has_experts = setting.decoder.experts is not None
    low, high = framework.step_interval(seconds, num_devices, has_experts)
    kinds = tuple(framework.kinds) or (framework.kernels.kind,)
    unlike = list_untested_properties(
        framework.name, kinds, num_devices, has_experts, framework.offload
    )
    return PlanAnswer(
        step_time=seconds,
        low=low,
        high=high,
        feasible=not reason,
        reason=reason,
        state=memory.state,
        state_first=ranks[0].state + framework.workspace,
        state_last=ranks[-1].state + framework.workspace,
        allocated=memory.allocated,
        peak=memory.reserved,
        fits=fits,
        tokens_per_second=tokens / seconds,
        untested=", ".join(unlike),
    )


def device_peaks(setting: PricingSetting, spec: PlanSpec) -> dict[str, float]:
    """Return the bytes that every used device reserves at its fullest, by its name.

    They are none where the plan cannot be priced.
    """
    try:
        priced = price_spec(setting, spec)
    except InputError:
        return {}
    names = [device.name for device in setting.cluster.devices]
    return {
        names[index]: memory.reserved
        for mesh, memory in zip(
            list_meshes(priced.draft), rank_bytes(priced), strict=True
        )
        for index in mesh.devices
    }


def check_framework(setting: PricingSetting, spec: PlanSpec) -> None:
    """Check that a framework can train a decoder by a plan on the cluster.

    Raises:
        InputError: If numbers do not divide, or the framework lacks something of the plan.
    """
    sizes, cluster, framework = setting.decoder, setting.cluster, setting.framework
    traits, name = framework.traits, framework.name
    if spec.num_devices > cluster.num_devices:
        raise InputError(
            f"dp x tp x cp x pp is {spec.num_devices}; {cluster.name!r} has {cluster.num_devices} "
            "devices"
        )
    if (spec.shards or 1) > 1 or spec.regather:
        word = "shards" if spec.shards else "regather"
        raise InputError(
            f"{word}: any split is priced from a capture; give it alone, in words"
        )
    # What must divide: experts, examples, heads, tokens.
    _check_experts(sizes, spec)
    batch = spec.batch or sizes.batch
    if batch % (spec.dp * spec.microbatch_size):
        raise InputError(
            f"a batch of {batch} is no multiple of {spec.dp} replicas x {spec.microbatch_size} "
            "examples"
        )
    for name_of_size, size, shards in (
        ("heads", sizes.heads, spec.tp),
        ("tokens of an example", sizes.length, spec.cp),
    ):
        if size % shards:
            raise InputError(
                f"{size} {name_of_size} are no multiple of {shards} shards"
            )
    if max(sizes.kv_heads, spec.tp) % min(sizes.kv_heads, spec.tp):
        raise InputError(
            f"{sizes.kv_heads} heads of keys and {spec.tp} shards do not divide"
        )
    # What the framework has: ZeRO stages, groups, schedules, modes.
    if spec.zero not in traits.zero_stages:
        stages = ", ".join(map(str, traits.zero_stages))
        raise InputError(f"zero={spec.zero}: {name} has {stages}")
    group, replicas = spec.zero_group, spec.dp * spec.cp
    if group and spec.zero not in traits.zero_groups:
        stages = " or ".join(map(str, traits.zero_groups)) or "none"
        raise InputError(
            f"zero_group={group}: {name} shares over groups with a zero of {stages}"
        )
    if group and (replicas % group or group % spec.ep):
        raise InputError(
            f"zero_group={group}: must divide {replicas} replicas, and ep divide it"
        )
    if spec.schedule_name not in traits.schedules:
        raise InputError(f"schedule={spec.schedule}: {name} has none of that name")
    _check_modes(setting, spec)
    if spec.num_stages > sizes.layers:
        raise InputError(
            f"{spec.num_stages} stages, but the model has {sizes.layers} layers"
        )


def _check_modes(setting: PricingSetting, spec: PlanSpec) -> None:
    """Check how a plan runs: samples, recomputation, compiled layers, captured launches.

    Raises:
        InputError: If the framework has it not, or what is captured would change.
    """
    length = setting.decoder.length
    if (spec.sample_length or 1) > length:
        raise InputError(
            f"sample_length={spec.sample_length}: examples have {length} tokens"
        )
    framework = setting.framework
    if spec.recomputes_by_rank and not framework.traits.recomputes_by_rank:
        raise InputError(
            f"recompute={spec.recompute}: {framework.name} recomputes as many layers of every rank"
        )
    check_recomputed_ranks(spec)
    _check_modules(setting, spec)
    kind, graphs = find_captured_launches(setting, spec), framework.traits.cuda_graphs
    if spec.compile and not framework.traits.compiles:
        raise InputError(
            f"compile=on: {framework.name} compiles no whole layers; leave it out"
        )
    if spec.tp_overlap and not framework.traits.overlaps_shards:
        raise InputError(
            f"tp_overlap=on: {framework.name} hides no collectives of shards"
        )
    if spec.tp_overlap and spec.tp > 1 and not spec.splits_tokens:
        raise InputError("tp_overlap=on: needs split tokens; leave out sp=off")
    _check_offload(setting, spec)
    if kind not in graphs:
        raise InputError(
            f"cuda_graphs={kind}: {framework.name} has {', '.join(graphs)}"
        )
    changing = "which rows an expert gets" if setting.decoder.experts else ""
    if not changing and framework.checks is not None:
        changing = "what a check of a collective waits for"
    if kind != "off" and changing:
        raise InputError(
            f"cuda_graphs={kind}: {changing} changes with every step; leave it out"
        )
    if kind == "iteration" and spec.pp > 1 and framework.name != "megatron-lm":
        raise InputError(
            f"cuda_graphs=iteration: {framework.name} captures no stages; take pp=1"
        )


def list_own_modules(sizes: DecoderSizes) -> tuple[str, ...]:
    """Return the modules of `RECOMPUTED_MODULES` that some layer of a decoder has."""
    experts = sizes.experts
    has_latent = sizes.latent is not None
    has_module = {
        "core_attn": True,
        "layernorm": has_latent or experts is not None,
        "mla_up_proj": has_latent,
        "mlp": experts is None or experts.dense > 0,
        "moe": experts is not None,
        "moe_act": experts is not None,
        "shared_experts": experts is not None and experts.shared > 0,
    }
    return tuple(name for name in RECOMPUTED_MODULES if has_module[name])


def _check_modules(setting: PricingSetting, spec: PlanSpec) -> None:
    """Check that a framework can recompute the modules that a plan names, and a layer has them.

    Raises:
        InputError: If it cannot, or no layer has such a module.
    """
    modules = spec.recomputed_modules
    sizes, framework = setting.decoder, setting.framework
    if modules and not framework.traits.recomputes_modules:
        raise InputError(
            f"recompute={spec.recompute}: {framework.name} recomputes no single modules; take "
            "none, selective, full, block:K or uniform:K"
        )
    # Megatron-Core takes the others without an effect.
    needed = {"mla_up_proj", "moe", "moe_act", "shared_experts"}
    missing = needed - set(list_own_modules(sizes))
    for module in modules:
        if module in missing:
            raise InputError(
                f"recompute={spec.recompute}: the model's layers have no {module}"
            )
    if "moe" in modules and {"moe_act", "shared_experts"}.intersection(modules):
        raise InputError(
            f"recompute={spec.recompute}: moe has all of its parts recomputed; leave out moe_act "
            "and shared_experts"
        )


def _check_offload(setting: PricingSetting, spec: PlanSpec) -> None:
    """Check that a framework can keep on the host what a plan says.

    Raises:
        InputError: If it cannot, or parameters that are whole on every device are to leave it.
    """
    traits, name = setting.framework.traits, setting.framework.name
    offload = spec.offload.partition(":")[0]
    if offload != "none" and offload not in traits.offloads:
        values = ", ".join(traits.offloads) or "none"
        raise InputError(f"offload={spec.offload}: {name} has {values}")
    if "optimizer" in offload and setting.framework.optimizer_kind.quantized:
        raise InputError(
            f"offload={spec.offload}: {setting.framework.optimizer} steps on GPUs alone; take adamw"
        )
    if "parameters" in offload and spec.zero < 3:
        raise InputError(
            f"offload={spec.offload}: parameters are whole on devices; take zero=3"
        )


def _check_experts(sizes: DecoderSizes, spec: PlanSpec) -> None:
    """Check that experts can be divided over the devices of a plan.

    Raises:
        InputError: If numbers do not divide.
    """
    experts, shards = sizes.experts, spec.expert_shards
    if experts is None and (spec.ep > 1 or spec.etp):
        raise InputError(f"{'ep' if spec.ep > 1 else 'etp'}: the model has no experts")
    if experts is None:
        return
    if spec.tp % shards or experts.width % shards:
        raise InputError(
            f"etp={shards}: must divide tp, which is {spec.tp}, and the {experts.width} columns of "
            "an expert"
        )
    count = spec.dp * spec.cp
    if experts.count % spec.expert_groups or count % spec.ep:
        counted = (
            "" if shards == spec.tp else f" in {spec.expert_groups} groups over tp, too"
        )
        raise InputError(
            f"ep={spec.ep}: must divide {experts.count} experts and dp x cp, which is "
            f"{count}{counted}"
        )
