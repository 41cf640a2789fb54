"""Bytes of a decoder's training step on every rank, by framework.

P parameters of a device, T tokens of a micro-batch, t shards. State is exact: P (p + g + o / z),
p, g and o bytes of a parameter, its gradient and what the optimizer keeps (float32 copy and moments
of half-precision ones), z replicas that ZeRO parts over, DDP's buckets where a framework has them
beside its own gradients, and what a framework gathers split tokens into and never frees. What a
layer keeps for its backward pass is counted by kinds of operations (inputs of products, of norms
and of gates, queries, keys, values and results of fused attention, 4 bytes a head of its sums, or 5
a score where attention is products; Korthikanti et al., 2022, arXiv 2205.05198), over t where
tokens are split; recomputation keeps a layer's input and one layer's all while it is computed
again. The last rank has the logits besides. The allocator's fragmentation is a factor of what comes
and goes; a context of its own a device.

Sharded parameters (FSDP) are whole for the root and for `blocks` layers in flight, the peak is at
the loss or in the last layer's backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.kernels import PRODUCTS
from gnnplace.plans.decoders.setting import PricingSetting, running, state_per_parameter
from gnnplace.plans.decoders.step import Cut, tokens_of
from gnnplace.plans.spec import PlanSpec

GIBIBYTE = 2.0**30
SHARDED = 2  # the ZeRO stage from which gradients are parted in every micro-batch


@dataclass(frozen=True, eq=False)
class RankBytes:
    """Bytes of every rank. [ranks] each

    Attributes:
        state: parameters, gradients, optimizer, buckets.
        allocated: the most that is allocated at an instant.
        reserved: the most that the allocator has reserved.
    """

    state: FloatArray
    allocated: FloatArray
    reserved: FloatArray


def bytes_of(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> RankBytes:
    """Bytes of every rank at their peaks.

    Args:
        setting: what is priced on.
        spec: the plan.
        cut: the stages.
    """
    own = running(setting, spec.compile, "off")
    return (_sharded if spec.zero >= SHARDED else _whole)(own, spec, cut)


def likely_to_fit(setting: PricingSetting, reserved: float) -> float:
    """The probability that so many reserved bytes are had, errors of the log being normal."""
    usable = setting.memory * setting.constants["usable"]
    spread = setting.constants["memory_spread"]
    return 0.5 * (1 + math.erf(math.log(usable / max(reserved, 1.0)) / (spread * math.sqrt(2))))


def _kept(setting: PricingSetting, spec: PlanSpec, chosen: bool = False) -> tuple[float, float]:
    """Bytes that a layer keeps of a micro-batch: with nothing computed again, and its input."""
    d, own = setting.decoder, setting.constants
    tokens, split = tokens_of(setting, spec), spec.splits_tokens and own["splits_tokens"] > 0
    parts = spec.tp if split else 1
    scores = 5.0 * d.heads * d.length / spec.tp if setting.kernels.attention == PRODUCTS else 0.0
    if spec.recompute == "selective":
        scores = 0.0
    if d.gated:
        stream = 12.0 * d.hidden / parts
        inside = (4 * d.keys + own["gated_kept"] * d.feed_forward + 4 * d.heads) / spec.tp
        if d.latent is not None:
            narrow = 4 * d.latent.queries + 4 * d.latent.keys + 2 * d.latent.rotary
            stream = (8.0 * d.hidden + narrow) / parts
            inside += (4 * d.queries + 4 * d.values - 4 * d.keys) / spec.tp
        if spec.recompute == "selective" and own["selective_products"]:
            stream = 4.0 * d.hidden / parts
            inside = (4 * d.queries + 4 * d.keys + 2 * d.feed_forward + 4 * d.heads) / spec.tp
        if chosen and d.experts:
            inside += own["gated_kept"] * (d.experts.shared - d.feed_forward) / spec.tp
            each = own["chosen_inside"] * d.experts.width + own["chosen_kept"] * d.hidden
            inside += d.experts.active * each / spec.tp
    else:
        stream = own["plain_kept_stream"] * d.hidden / parts
        inside = (own["plain_kept_inside"] * d.hidden + 4 * d.heads) / spec.tp
    return tokens * (stream + inside + scores), 2.0 * tokens * d.hidden / parts


def _in_flight(spec: PlanSpec, count: int) -> FloatArray:
    """Micro-batches whose values a rank keeps, in those of all its layers. [ranks]"""
    ranks, chunks = spec.pp, spec.num_chunks
    left = np.arange(ranks, 0, -1, dtype=np.float64)
    if spec.schedule == "gpipe":
        left[:] = count
    if chunks > 1:  # Megatron's warm-up: 2 (p - r - 1) + (v - 1) p + 1 of p v
        left = (2 * (left - 1) + (chunks - 1) * ranks + 1) / chunks
    return np.minimum(left, count)


def _activations(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> tuple[FloatArray, float]:
    """What is kept for backward passes, and one layer's while it is computed again. [ranks]"""
    (whole, small), (chosen, _) = (_kept(setting, spec, kind) for kind in (False, True))
    batch = spec.batch or setting.decoder.batch
    flying = _in_flight(spec, spec.num_microbatches(batch))
    kind, group = spec.recompute_kind, spec.recompute_layers
    if kind in ("none", "selective"):
        return flying * ((cut.layers - cut.chosen) * whole + cut.chosen * chosen), 0.0
    if cut.chosen.any():
        whole = chosen
    if kind == "uniform":
        return flying * np.ceil(cut.layers / group) * small, group * whole
    again = cut.layers
    if kind == "block":
        again = np.minimum(cut.layers, group * spec.num_chunks)
    return flying * (again * small + (cut.layers - again) * whole), whole


def _whole(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> RankBytes:
    """Of parameters that every replica has."""
    d, own = setting.decoder, setting.constants
    count, parts = spec.dp * spec.cp, spec.num_optimizer_shards
    told = spec.gradients or setting.traits["gradients"]
    parameter, gradient, optimizer = state_per_parameter(setting, told)
    buckets = own["bucket_bytes"] if count > 1 and spec.zero == 0 else 0.0
    if setting.precision == "16-master":
        gradient += own["half_gradient"]
        optimizer += own["half_gradient_parted"]
    elif told == "fp32":
        gradient += own["both_gradients"]
    state = cut.parameters * (parameter + gradient + optimizer / parts + buckets)
    state = state + cut.experts * optimizer * (1 / max(1, parts // spec.ep) - 1 / parts)
    if spec.tp > 1:
        state = state + own["gather_buffers"] * tokens_of(setting, spec) * d.hidden
    activations, again = _activations(setting, spec, cut)
    tokens, shards = tokens_of(setting, spec), spec.tp
    if spec.pp == 1:
        gathered = own["gathered_alone"] * (1 - 1 / shards)
        activations = activations + gathered * tokens * 4.0 * d.hidden * cut.layers
    head = np.zeros_like(state)
    head[-1] = tokens * (own["logit_kept"] * d.vocabulary + 4 * d.hidden) / shards
    inside = tokens * (4 * (2 if d.gated else 1) * d.feed_forward + 2 * d.hidden) / shards
    stream = tokens * 6.0 * d.hidden
    gradients = own["gradient_passing"] * parameter * cut.parameters
    gradients += own["layer_gradients"] * d.layer_matrices / shards
    passing = own["passing"] * stream + np.maximum(head, own["passing"] * inside)
    moving = activations + again + passing + gradients
    updating = state + own["update_part_passing"] * cut.parameters / parts
    if spec.zero and count > 1:
        updating = updating + cut.parameters * own["update_passing"] * (2 + 1.0 / parts)
    context = own["context"] * GIBIBYTE
    flying = own["fragmentation"] * (activations + again) + (moving - activations - again)
    allocated = np.maximum(state + moving, updating) + setting.workspace
    return RankBytes(state, allocated, np.maximum(state + flying, updating) + context)


def _sharded(setting: PricingSetting, spec: PlanSpec, cut: Cut) -> RankBytes:
    """Of parameters and gradients that replicas part (FSDP)."""
    d, own = setting.decoder, setting.constants
    count = spec.num_optimizer_shards
    told = spec.gradients or setting.traits["gradients"]
    parameter, gradient, optimizer = state_per_parameter(setting, told)
    parted = (cut.parameters - cut.experts) / count + cut.experts / max(1, count // spec.ep)
    state = (parameter + gradient + optimizer) * parted
    dense = layer = d.layer_matrices / spec.tp + d.layer_vectors
    if d.experts:
        layer = (d.beside_experts + d.expert_parameters / spec.ep) / spec.tp + d.layer_vectors
    inside = (cut.layers - cut.chosen) * dense + cut.chosen * layer
    root = cut.parameters - inside
    largest = np.maximum(dense * (cut.layers > cut.chosen), layer * (cut.chosen > 0))
    whole = 2.0 * root + 2.0 * (own["blocks"] * largest if spec.zero == 3 else inside)
    activations, again = _activations(setting, spec, cut)
    tokens = tokens_of(setting, spec)
    head = np.zeros_like(state)
    head[-1] = tokens * (own["logit_kept"] * d.vocabulary + 4.0 * d.hidden) / spec.tp
    wide = 4.0 if gradient == 4.0 else 0.0
    gradients = 2.0 * root + (4.0 + wide) * largest
    late = activations + again + 16.0 * tokens * d.hidden / spec.tp + gradients
    allocated = state + whole + np.maximum(activations + head, late)
    return RankBytes(state, allocated, allocated + own["context"] * GIBIBYTE)
