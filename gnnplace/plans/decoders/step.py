"""Seconds of a training step of a decoder under a given plan, by framework.

Forward and backward passes of a stage take what its layers and its head take on the device, and at
least what the host takes to launch them. In M micro-batches, one forward and one backward each
(1F1B, Narayanan et al., 2021, arXiv 2104.04473), ranks with seconds w_r of a micro-batch and
messages of q_r take

    (M - 1) max w_r + sum w_r + 2 sum q_r,

with v chunks a rank the last two over v. Then replicas exchange gradients (in the last backward
pass, where they are hidden) and the optimizer steps. Sharded parameters (ZeRO 2, 3, FSDP, Zhao et
al., 2023, arXiv 2304.11277) are gathered and their gradients scattered in every micro-batch, behind
the layer before or after; what is hidden costs `overlap` of itself. Where ZeRO parts over groups of
g replicas, state is gathered in a group, and a g-th of the gradients summed over groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.collectives import ALL_GATHER, REDUCE_SCATTER
from gnnplace.plans.decoders.layer import PassSeconds, head_passes, hidden, layer_passes
from gnnplace.plans.decoders.setting import (
    PricingSetting,
    captured,
    running,
    state_per_parameter,
)
from gnnplace.plans.decoders.stages import layers_of
from gnnplace.plans.spec import PlanSpec

EXCHANGES = 10  # of a layer over shards, both ways, that the host starts
FULLEST_TENSOR = 0.6  # of a layer's largest matrix, in a bucket that it fills alone


@dataclass(frozen=True, eq=False)
class Cut:
    """A decoder cut into stages, one a rank.

    Attributes:
        layers: of each rank, all chunks together. [ranks]
        parameters: that each of a rank's devices holds: matrices by shard, the rest whole. [ranks]
        chosen: of the layers, those with experts. [ranks]
        experts: of the parameters, those of experts. [ranks]
    """

    layers: FloatArray
    parameters: FloatArray
    chosen: FloatArray
    experts: FloatArray


def cut_of(setting: PricingSetting, spec: PlanSpec) -> Cut:
    """Layers and parameters of every rank.

    Raises:
        InputError: the layers cannot be cut so.
    """
    d, chunks = setting.decoder, spec.num_chunks
    counts = layers_of(d, spec.num_stages, spec.layers or setting.traits["cut"])
    layers = np.array(counts, dtype=np.float64).reshape(chunks, spec.pp).sum(axis=0)
    dense = d.experts.dense if d.experts else d.layers
    ends = np.cumsum(counts)
    many = np.array(counts) - np.clip(dense - (ends - counts), 0, counts)
    chosen = many.astype(np.float64).reshape(chunks, spec.pp).sum(axis=0)
    experts = chosen * d.expert_parameters / spec.ep / spec.tp
    parameters = (layers - chosen) * d.layer_matrices / spec.tp + layers * d.layer_vectors
    parameters += chosen * d.beside_experts / spec.tp + experts
    parameters[0] += d.embedding / spec.tp + d.learned * d.hidden
    if not (d.tied and spec.pp == 1):
        parameters[-1] += d.embedding / spec.tp
    parameters[-1] += d.last_norm
    return Cut(layers, parameters, chosen, experts)


def step_time(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> float:
    """Seconds of a step.

    Args:
        setting: what is priced on.
        spec: the plan, whose batch its replicas and micro-batches divide.
        cut: the stages.
    """
    setting = running(setting, spec.compile, captured(setting, spec))
    batch = spec.batch or setting.decoder.batch
    count = spec.num_microbatches(batch)
    forward, backward = _passes(setting, spec, cut)
    total = _pipelined(setting, spec, forward + backward, count)
    fullest = int(np.argmax(cut.parameters))
    total += _update(setting, spec, cut, fullest)
    if spec.zero < 2:
        total += _replicas(setting, spec, cut, float(backward[fullest]))
    if setting.decoder.tied and spec.pp > 1:
        size = 4.0 * setting.decoder.embedding / spec.tp
        across = spec.num_devices > setting.network.each
        total += setting.network.reduce(2, size, 1 if across else 2)
    if setting.checks is not None:
        each = setting.checks["check"]
        total += setting.checks["checks_world"] * each * spec.num_devices
        total += setting.checks["checks_end"] * each * spec.tp * (spec.tp > 1)
    return total


def tokens_of(setting: PricingSetting, spec: PlanSpec) -> int:
    """Tokens of a micro-batch on a device."""
    return max(1, spec.microbatch_size * setting.decoder.length // spec.cp)


def _passes(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> tuple[FloatArray, FloatArray]:
    """Seconds of a micro-batch on every rank, forward and backward. [ranks] each

    Of a rank's devices the slowest is waited for.
    """
    if not setting.kinds:
        return _alike(setting, spec, cut)
    own = {
        id(one): _alike(replace(setting, kernels=one.kernels), spec, cut)
        for one in setting.kinds.values()
    }
    ranks = setting.on_ranks(spec.num_devices, spec.pp)
    forward, backward = (
        np.array([max(own[id(one)][k][r] for one in here) for r, here in enumerate(ranks)])
        for k in range(2)
    )
    return forward, backward


def _alike(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> tuple[FloatArray, FloatArray]:
    """Seconds of a micro-batch on every rank, were all devices alike. [ranks] each"""
    own, kernels = setting.constants, setting.kernels
    tokens, split = tokens_of(setting, spec), spec.splits_tokens and own["splits_tokens"] > 0
    layer = layer_passes(setting, tokens, spec.tp, spec.cp, split)
    head = head_passes(setting, tokens, spec.tp, split)
    d, root = setting.decoder, PassSeconds(0.0, 0.0)
    if spec.zero >= 2:
        layer, root = _sharded(setting, spec, layer, d.layer_matrices / spec.tp)
    dense = cut.layers - cut.chosen
    forward = dense * layer.forward + root.forward
    backward = dense * layer.backward + _again(spec, dense, layer) + root.backward
    if cut.chosen.any():
        chosen = layer_passes(setting, tokens, spec.tp, spec.cp, split, spec.ep)
        if spec.zero >= 2:
            experts = d.expert_parameters / spec.ep / spec.tp
            chosen, _ = _sharded(setting, spec, chosen, d.beside_experts / spec.tp, experts)
        forward += cut.chosen * chosen.forward
        backward += cut.chosen * chosen.backward + _again(spec, cut.chosen, chosen)
    forward[-1] += head.forward
    backward[-1] += head.backward
    if spec.zero < 2:
        backward += kernels.stream(1.0) * own["accumulate"] * cut.parameters
    host = _host(setting, spec, cut)
    share = own["host_forward"]
    return np.maximum(forward, share * host), np.maximum(backward, (1 - share) * host)


def _again(spec: PlanSpec, layers: FloatArray, layer: PassSeconds) -> FloatArray:
    """Seconds of what is computed again of so many layers of a kind. [ranks]"""
    if spec.recompute_kind == "selective":
        return layers * layer.selective
    if spec.recompute_kind in ("full", "uniform"):
        return layers * layer.again
    if spec.recompute_kind == "block":
        return np.minimum(layers, spec.recompute_layers * spec.num_chunks) * layer.again
    return np.zeros_like(layers)


def _sharded(
    setting: PricingSetting, spec: PlanSpec, layer: PassSeconds, matrices: float,
    experts: float = 0.0,
) -> tuple[PassSeconds, PassSeconds]:  # fmt: skip
    """A layer whose parameters are gathered and gradients scattered behind it; and the root's.

    Args:
        setting: what is priced on.
        spec: the plan.
        layer: seconds of the layer without.
        matrices: parameters of a device's shard of it, but norms, biases and experts.
        experts: those of the device's experts, which have fewer replicas.
    """
    d, network = setting.decoder, setting.network
    count = spec.num_optimizer_shards
    members = replicas_in_server(setting, spec)
    wide = _gradient_bytes(setting, spec)

    def both(parameters: float, over: int = count) -> tuple[float, float]:
        gather = network.exchange(ALL_GATHER, over, 2.0 * parameters, min(members, over))
        return gather, _scattered(setting, spec, wide * parameters, over)

    gather, scatter = both(matrices + d.layer_vectors)
    if experts:
        gather, scatter = np.add(
            (gather, scatter), both(experts, max(1, count // spec.ep))
        ).tolist()
    first, last = both(d.embedding / spec.tp + d.learned * d.hidden)
    late = scatter + (gather if spec.zero == 3 else 0.0)

    def over(work: float, exchange: float) -> float:
        return work + hidden(setting, exchange, work)

    rank = 1.0 / spec.pp
    again = over(layer.backward + layer.again, late) - over(layer.backward, late)
    return PassSeconds(
        over(layer.forward, gather), over(layer.backward, late), again, layer.selective
    ), PassSeconds((gather + first) * rank, (scatter + last) * rank)


def _gradient_bytes(setting: PricingSetting, spec: PlanSpec) -> float:
    """Bytes of a gradient as replicas exchange it."""
    return state_per_parameter(setting, spec.gradients or setting.traits["gradients"])[1]


def replicas_in_server(setting: PricingSetting, spec: PlanSpec) -> int:
    """Devices of a group of replicas in one server; shards are neighbours."""
    each = setting.network.each
    return max(1, min(spec.dp * spec.cp, each // min(spec.tp, each)))


def _host(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> FloatArray:
    """Seconds that the host takes to launch a micro-batch, both ways. [ranks]"""
    own, checks = setting.constants, setting.checks
    ends = np.zeros_like(cut.layers)
    ends[-1] = 1.0
    layer = own["host_layer"] if spec.tp == 1 else own["host_layer_shards"]
    host = cut.layers * layer + (2 * ends + 1) * own["host_pass"]
    host += 2 * own["host_message"] * (spec.pp > 1)
    if checks is not None and spec.tp > 1:
        started = cut.layers * EXCHANGES
        host += (started + 6 * ends + 1) * checks["check"] * spec.tp
        if spec.tp > setting.network.each:
            host += started * (spec.tp - 1) * setting.network.rates["ring_latency"]
    return np.asarray(host)


def _pipelined(setting: PricingSetting, spec: PlanSpec, seconds: FloatArray, count: int) -> float:
    """Seconds of all micro-batches through all ranks."""
    if spec.pp == 1:
        return float(seconds[0]) * count
    own = setting.constants
    size = 2.0 * tokens_of(setting, spec) * setting.decoder.hidden
    split = max(own["splits_tokens"] * (spec.splits_tokens), own["splits_messages"]) > 0
    across = spec.dp * spec.tp * spec.cp >= setting.network.each
    wait = own["message_latency"]
    message = setting.network.message(size / (spec.tp if split else 1), across) + wait
    longest = float(np.maximum(seconds + 2 * wait, message).max())
    filled = float(seconds.sum()) - float(seconds.max()) + 2 * (spec.pp - 1) * message
    return longest * (count - 1) + float(seconds.max()) + filled / spec.num_chunks


def _update(setting: PricingSetting, spec: PlanSpec, cut: Cut, rank: int) -> float:
    """Seconds of the optimizer's step on a rank; experts are parted over fewer replicas."""
    own, parameters = setting.constants, float(cut.parameters[rank])
    experts, parts = float(cut.experts[rank]), spec.num_optimizer_shards
    parted = (parameters - experts) / parts + experts / max(1, parts // spec.ep)
    size = own["update_whole"] * parameters + own["update_part"] * parted
    return setting.kernels.stream(size) + own["host_update"]


def _replicas(setting: PricingSetting, spec: PlanSpec, cut: Cut, backward: float) -> float:
    """Seconds that replicas exchange gradients and parameters for, beyond what is hidden."""
    count = spec.dp * spec.cp
    if count == 1:
        return 0.0
    parameters = float((cut.parameters - cut.experts).max())
    hides = spec.overlap or setting.traits["hides"]
    members = replicas_in_server(setting, spec)
    if hides != "none" or (spec.zero == 0 and setting.constants["ddp"]):
        exchanged = _in_buckets(setting, spec, parameters, members, backward)
    else:
        exchanged = _at_end(setting, spec, parameters, members)
    if count > spec.ep and cut.experts.any():
        few = replace(spec, dp=count // spec.ep, cp=1)
        exchanged += _at_end(setting, few, float(cut.experts.max()), members)
    if spec.zero == 0:
        return exchanged
    return exchanged + _gathered(setting, spec, cut, members, hides)


def _in_buckets(
    setting: PricingSetting, spec: PlanSpec, parameters: float, members: int, backward: float
) -> float:
    """All-reduces of buckets of gradients, hidden in the last backward pass."""
    d, own = setting.decoder, setting.constants
    largest = max(2 * d.feed_forward, d.hidden) * d.hidden / spec.tp
    buckets = max(1.0, parameters / max(own["bucket"], FULLEST_TENSOR * largest))
    size = _gradient_bytes(setting, spec) * parameters / buckets
    once = setting.network.reduce(spec.dp * spec.cp, size, members)
    if setting.checks is not None:
        once = max(once, setting.checks["check"] * spec.dp)
    return hidden(setting, buckets * once, own["hides_reduce"] * backward)


def _at_end(setting: PricingSetting, spec: PlanSpec, parameters: float, members: int) -> float:
    """Gradients summed after the last backward pass: reduced, or scattered if they are parted."""
    size = _gradient_bytes(setting, spec) * parameters
    if spec.zero and setting.constants["scatters"]:
        return _scattered(setting, spec, size, spec.num_optimizer_shards)
    return setting.network.reduce(spec.dp * spec.cp, size, members)


def _scattered(setting: PricingSetting, spec: PlanSpec, size: float, group: int) -> float:
    """So many bytes of gradients that are scattered in a group and summed over all groups."""
    network, members = setting.network, replicas_in_server(setting, spec)
    inside, groups = min(members, group), spec.dp * spec.cp // spec.num_optimizer_shards
    scattered = network.exchange(REDUCE_SCATTER, group, size, inside)
    return scattered + network.reduce(groups, size / group, min(groups, members // inside))


def _gathered(setting: PricingSetting, spec: PlanSpec, cut: Cut, members: int, hides: str) -> float:
    """Parameters that are gathered after a parted step of the optimizer."""
    own, network, count = setting.constants, setting.network, spec.num_optimizer_shards
    members = min(members, count)
    if hides == "reduce+gather":
        return 0.0
    size = 2.0 * float(cut.parameters.max())
    seconds = network.exchange(ALL_GATHER, count, own["gather_bytes"] * size, members)
    if count > members:
        layers = float(cut.layers.max())
        calls = own["gathers_layer"] * layers + min(own["broadcasts_layer"] * layers, count)
        seconds += calls * (count - 1) * network.rates["ring_latency"]
    if setting.checks is not None:
        seconds += 2 * setting.checks["check"] * count
    return seconds
