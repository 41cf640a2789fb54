"""What a plan of a decoder takes: seconds, their interval, bytes, whether it fits; or why not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.memory import bytes_of, likely_to_fit
from gnnplace.plans.decoders.setting import PricingSetting, captured
from gnnplace.plans.decoders.step import cut_of, step_time
from gnnplace.plans.spec import PlanSpec

LIKELY = 0.5
WHOLE = ("nanotron", "megatron-deepspeed")  # whose ZeRO parts over all replicas


@dataclass(frozen=True)
class PlanAnswer:
    """What a plan takes; None where it cannot be priced.

    Attributes:
        step_time: seconds.
        low: of the interval that holds four in five of the framework's published steps.
        high: likewise its end.
        lower_bound: seconds that no plan is below; None where nothing is searched.
        feasible: whether it can be and fits.
        reason: why not; empty where it is.
        state: bytes of parameters, gradients, optimizer and buckets, on the fullest device.
        state_first: those of the first rank, with the workspaces that frameworks' logs have too.
        state_last: those of the last rank, likewise.
        allocated: the most bytes allocated at an instant, on the fullest device.
        peak: the most bytes reserved at an instant, there.
        fits: the probability that it has them.
        tokens_per_second: of all devices.
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


def price(setting: PricingSetting, spec: PlanSpec) -> PlanAnswer:
    """What a plan takes, or why it cannot be."""
    try:
        _check(setting, spec)
        cut = cut_of(setting, spec)
    except InputError as error:
        return PlanAnswer(reason=str(error))
    seconds, own = step_time(setting, spec, cut), setting.constants
    held = bytes_of(setting, spec, cut)
    ranks = setting.on_ranks(spec.num_devices, spec.pp)
    limits = np.array([min(one.memory for one in here) for here in ranks])
    k = int(np.argmax(held.reserved / limits))
    peak, here = float(held.reserved[k]), replace(setting, memory=float(limits[k]))
    fits = likely_to_fit(here, peak)
    tokens = (spec.batch or setting.decoder.batch) * setting.decoder.length
    reason = "" if fits >= LIKELY else _lacks(here, peak, float(held.state[k]), k)
    first, last = (float(held.state[rank]) + setting.workspace for rank in (0, -1))
    return PlanAnswer(
        seconds, seconds * own["low"], seconds * own["high"], None, not reason, reason,
        float(held.state[k]), first, last,
        float(held.allocated[k]), peak, fits, tokens / seconds,
    )  # fmt: skip


def _lacks(setting: PricingSetting, peak: float, state: float, rank: int) -> str:
    """What binds, in words."""
    usable = setting.memory * setting.constants["usable"]
    mend = (
        "take more shards, stages or a higher zero"
        if state > peak / 2
        else "recompute, or take smaller micro-batches or more shards"
    )
    return (
        f"a device of rank {rank} lacks {(peak - usable) / 1e9:.1f} GB: it reserves "
        f"{peak / 1e9:.1f} GB, {state / 1e9:.1f} GB of them state, and has {usable / 1e9:.1f} GB; "
        f"{mend}"
    )


def _check(setting: PricingSetting, spec: PlanSpec) -> None:
    """Whether a plan can be.

    Raises:
        InputError: what does not divide, or what the framework has not.
    """
    d, cluster, traits = setting.decoder, setting.cluster, setting.traits
    if spec.num_devices > cluster.num_devices:
        raise InputError(
            f"dp x tp x cp x pp is {spec.num_devices}; {cluster.name!r} has {cluster.num_devices} "
            "devices"
        )
    if (spec.shards or 1) > 1 or spec.regather:
        told = "shards" if spec.shards else "regather"
        raise InputError(f"{told}: any split is priced from a capture; give it alone, in words")
    _check_experts(d, spec)
    batch = spec.batch or d.batch
    if batch % (spec.dp * spec.microbatch_size):
        raise InputError(
            f"a batch of {batch} is no multiple of {spec.dp} replicas x {spec.microbatch_size} "
            "examples"
        )
    for what, size, shards in (
        ("heads", d.heads, spec.tp),
        ("tokens of an example", d.length, spec.cp),
    ):
        if size % shards:
            raise InputError(f"{size} {what} are no multiple of {shards} shards")
    if max(d.kv_heads, spec.tp) % min(d.kv_heads, spec.tp):
        raise InputError(f"{d.kv_heads} heads of keys and {spec.tp} shards do not divide")
    if str(spec.zero) not in traits["zeros"]:
        raise InputError(f"zero={spec.zero}: {setting.name} has {', '.join(traits['zeros'])}")
    group, replicas = spec.zero_group, spec.dp * spec.cp
    if group and (setting.name in WHOLE or not spec.zero or replicas % group or group % spec.ep):
        raise InputError(
            f"zero_group={group}: must divide {replicas} replicas, parted by a zero from 1 on; not "
            f"of {', '.join(WHOLE)}"
        )
    if spec.schedule_name not in traits["schedules"]:
        raise InputError(f"schedule={spec.schedule}: {setting.name} has none of that name")
    _check_modes(setting, spec)
    if spec.num_stages > d.layers:
        raise InputError(f"{spec.num_stages} stages, but the model has {d.layers} layers")


def _check_modes(setting: PricingSetting, spec: PlanSpec) -> None:
    """Whether layers can be compiled, or launches captured.

    Raises:
        InputError: the framework has it not, or what is captured would change.
    """
    kind, graphs = captured(setting, spec), setting.traits["graphs"]
    if spec.compile and not setting.traits["compiles"]:
        raise InputError(f"compile=on: {setting.name} compiles no whole layers; leave it out")
    if kind not in graphs:
        raise InputError(f"cuda_graphs={kind}: {setting.name} has {', '.join(graphs)}")
    told = "which rows an expert gets" if setting.decoder.experts else ""
    told = told or ("what a check of a collective waits for" if setting.checks else "")
    if kind != "off" and told:
        raise InputError(f"cuda_graphs={kind}: {told} changes with every step; leave it out")
    if kind == "iteration" and spec.pp > 1 and setting.name != "megatron-lm":
        raise InputError(f"cuda_graphs=iteration: {setting.name} captures no stages; take pp=1")


def _check_experts(decoder: DecoderSizes, spec: PlanSpec) -> None:
    """Whether experts can be parted so.

    Raises:
        InputError: what does not divide.
    """
    own, count = decoder.experts, spec.dp * spec.cp
    if own is None and spec.ep > 1:
        raise InputError("ep: the model has no experts")
    if own is not None and (own.count % spec.ep or count % spec.ep):
        raise InputError(
            f"ep={spec.ep}: must divide {own.count} experts and dp x cp, which is {count}"
        )
