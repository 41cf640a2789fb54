"""Seconds of a micro-batch through a layer and through head and loss, by framework.

T tokens, t shards, h hidden size, f feed-forward size. A layer has four matrix products (queries,
keys and values; output; up; down) and their eight gradients, each priced by its shape; fused
attention; and elementwise operations between them (norms, rotary positions, gates, residuals),
priced by their bytes a token and shard, which depend on the framework and on what is compiled
(`costs.frameworks`). The head has three products, and bytes of every logit.

Exchanges of a layer over t shards (Korthikanti et al., 2022, arXiv 2205.05198). With sequence
parallelism each half of the layer has an all-gather before its first product and a reduce-scatter
after its last; the backward pass has the two in reverse and the all-gather once more. Without it
there is one all-reduce in each pass. If an exchange is hidden behind a product, the shorter of the
two costs `overlap` of its seconds. nanotron hides all-gathers in both passes, Megatron those of the
backward pass that a product follows, the others none. With `tp_overlap=on` (user buffers) all
exchanges run in pieces under the products beside them, and what is hidden costs `overlap_shards` of
its seconds.

Adapters beside frozen matrices (`decoders.adapters`): no product computes gradients of frozen
weights. An adapter has two products in each pass and two for its own gradients. Adding its result
and its gradient reads both summands and writes the sum (6 bytes a value). Frozen matrices in 4 bits
are unpacked before every product: their bytes are read, and half-precision numbers written. The
sum, once a step, of gradients of parameters that all shards hold is not counted.

Experts: a shard has the tokens of its part of the batch. An all-to-all over the expert-parallel
groups sends them to their experts. If an expert itself is split over shards, these all-gather each
other's tokens and reduce-scatter the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gnnplace.costs import ALL_GATHER, ALL_TO_ALL, PRODUCTS, REDUCE_SCATTER, Shape
from gnnplace.plans.decoders.adapters import HALF_BYTES
from gnnplace.plans.decoders.setting import PricingSetting

ADDED = 6.0  # bytes of a value that something is added to: two read, one written
NORM = 4.0  # bytes of a value that a norm reads and writes
ADAPTER_LAUNCHES = (3, 6)  # kernels of an adapter forward and backward, sums among them
# Bytes of a half-precision value: read and written; with its gradient read as well.
GELU = (4.0, 6.0)


@dataclass(frozen=True)
class PassSeconds:
    """The seconds of a micro-batch's passes.

    Attributes:
        forward: Seconds of the forward pass.
        backward: Seconds of the backward pass, without recomputation.
        recomputed: Seconds that full recomputation adds to the backward pass.
        selective: Seconds that selective recomputation adds to it.
    """

    forward: float
    backward: float
    recomputed: float = 0.0
    selective: float = 0.0


@lru_cache(maxsize=4096)
def layer_passes(
    setting: PricingSetting,
    tokens: int,
    shards: int,
    context: int,
    split: bool,
    groups: int = 0,
    expert_shards: int = 1,
) -> PassSeconds:
    """Return the seconds of a micro-batch's passes through a layer.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Shards of every matrix.
        context: Shards of the context, whose keys and values are gathered.
        split: Whether tokens are split over the shards between products.
        groups: Shards of the layer's experts; 0: a layer without experts.
        expert_shards: Shards of the matrices of an expert.
    """
    d = setting.decoder
    kernels = setting.framework.kernels
    shapes = layer_products(setting, tokens, shards, groups > 0)
    kernels.predict(list_pass_shapes(shapes))
    forward = [kernels.products([shape]) for shape in shapes]
    inner = [kernels.products([(m, k, n)]) for m, n, k in shapes]
    weights = [kernels.products([(n, k, m)]) for m, n, k in shapes]
    if d.adapters is not None:
        weights = [0.0] * len(shapes)
    adapters = adapter_passes(setting, tokens, shards, has_experts=groups > 0)
    # Attention written out has the whole square of scores, whatever its mask.
    if kernels.attention == PRODUCTS:
        attended = d.length
    else:
        attended = d.attended
    attend = kernels.attend(
        tokens, attended, (d.queries + d.values) / 2 / shards, d.head_size
    )
    passed = _bytes(setting, tokens, shards, split, groups > 0)
    constants = setting.framework.constants
    kind = "gated" if d.gated else "plain"
    gap = kernels.rates["launch"] * constants["gap"]
    front = sum(forward) + attend + kernels.stream(passed[0])
    front += gap * constants[f"{kind}_launches_forward"] + adapters.forward
    back = sum(inner) + sum(weights) + constants["attention_backward"] * attend
    back += kernels.stream(passed[1]) + gap * constants[f"{kind}_launches_backward"]
    back += adapters.backward + adapters.weights
    sends = _exchanges(setting, tokens, shards, split, (forward, inner, weights))
    around = _around(setting, tokens, shards, context, attend)
    if groups:
        expert_passes = _chosen(setting, tokens, shards, groups, expert_shards)
    else:
        expert_passes = PassSeconds(0.0, 0.0)
    of_experts = expert_passes if groups else None
    early = _time_skipped(setting, tokens, forward[-1], of_experts)
    if setting.recomputed_modules:
        selective = _time_modules(
            setting, tokens, shards, split, forward, attend, of_experts
        )
    elif constants["selective_products"]:
        # Every other product: the output's, and half of what widens.
        selective = front - attend - sum(forward) + forward[1] + sum(forward[2:3]) / 2
    else:
        selective = attend
    front += sends[0] + around[0] + expert_passes.forward
    return PassSeconds(
        front,
        back + sends[1] + around[1] + expert_passes.backward,
        front - early,
        selective,
    )


def num_own_norms(setting: PricingSetting, has_experts: bool) -> int:
    """Return the norms of a layer that are modules of their own.

    Those are the norm before latent attention and the norm before experts. Transformer Engine has
    the others within the product that follows (Megatron-Core's `gpt_layer_specs.py`).

    Args:
        setting: The sizes.
        has_experts: Whether the layer has experts.
    """
    return (setting.decoder.latent is not None) + has_experts


def _time_skipped(
    setting: PricingSetting,
    tokens: int,
    last_product: float,
    expert_passes: PassSeconds | None,
) -> float:
    """Return the seconds that a checkpoint which stops early does not compute again.

    It leaves out what follows the last tensor that is kept: the sum with the residual, and the last
    product or what brings the rows of experts back.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        last_product: Seconds of the layer's last product.
        expert_passes: Seconds of the experts' passes, or None for a layer without experts.
    """
    last = last_product
    if expert_passes is not None:
        last = expert_passes.forward - expert_passes.recomputed
    summing = setting.framework.kernels.stream(ADDED * tokens * setting.decoder.hidden)
    return setting.framework.constants["early_stop"] * (last + summing)


def _time_modules(
    setting: PricingSetting,
    tokens: int,
    shards: int,
    split: bool,
    products: Sequence[float],
    attend: float,
    expert_passes: PassSeconds | None,
) -> float:
    """Return the seconds of the modules of a layer that are recomputed one by one.

    What each module computes again is that of Megatron-Core's `recompute_modules`: norms of their
    own, the up projections of latent attention with their rotary positions, the feed-forward of a
    layer without experts and the norm within it, all of the experts' layer with its dispatch, the
    experts' activation function, or the experts that every token passes.

    Args:
        setting: The sizes, the devices, the framework, and the modules.
        tokens: Tokens of the micro-batch on a device.
        shards: Shards of every matrix.
        split: Whether tokens are split over the shards between products.
        products: Seconds of the forward products, in the order of `layer_products`.
        attend: Seconds of attention.
        expert_passes: Seconds of the experts' passes, or None for a layer without experts.
    """
    d = setting.decoder
    constants = setting.framework.constants
    stream = d.hidden / shards if split else float(d.hidden)
    experts = None if expert_passes is None else d.experts
    inside = (d.feed_forward if experts is None else experts.shared) / shards
    num_wide = 4 if inside else 2
    feed_forward = sum(products[2:num_wide])
    latent = list(products[num_wide:])
    router = 0.0 if experts is None else latent.pop()
    # Bytes of the elementwise kernels of each module, as `_bytes` has them for the whole layer.
    if d.gated:
        between = constants["inside_forward"] * inside
        rotary = constants["gated_queries"] * d.queries / shards
        rotary += constants["gated_keys"] * d.keys / shards
    else:
        between = GELU[0] * inside
        rotary = 0.0
    traffic = dict.fromkeys(setting.recomputed_modules, 0.0)
    seconds = dict.fromkeys(setting.recomputed_modules, 0.0)
    seconds["core_attn"] = attend
    traffic["layernorm"] = (
        num_own_norms(setting, expert_passes is not None) * NORM * stream
    )
    seconds["mla_up_proj"] = sum(latent)
    traffic["mla_up_proj"] = rotary
    if experts is None or expert_passes is None:
        seconds["mlp"] = feed_forward
        traffic["mlp"] = between + NORM * stream
    else:
        rows = experts.active / shards
        of_rows = 12 * d.hidden + constants["chosen_forward"] * experts.width
        seconds["shared_experts"] = feed_forward
        traffic["shared_experts"] = between
        traffic["moe_act"] = ADDED * rows * experts.width
        seconds["moe"] = expert_passes.recomputed + router + feed_forward
        traffic["moe"] = between + rows * of_rows
    kernels = setting.framework.kernels
    return sum(
        seconds.get(module, 0.0) + kernels.stream(tokens * traffic.get(module, 0.0))
        for module in setting.recomputed_modules
    )


@dataclass(frozen=True)
class AdapterSeconds:
    """Seconds of a layer's adapters, and of unpacking the frozen matrices beside them.

    Attributes:
        forward: Seconds of the forward pass.
        backward: Seconds of the gradients of activations.
        weights: Seconds of the adapters' own gradients.
    """

    forward: float = 0.0
    backward: float = 0.0
    weights: float = 0.0


@lru_cache(maxsize=4096)
def adapter_passes(
    setting: PricingSetting, tokens: int, shards: int, *, has_experts: bool
) -> AdapterSeconds:
    """Return the seconds of a layer's adapters; none where all parameters are trained.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Shards of every matrix.
        has_experts: Whether the layer has experts.
    """
    sizes = setting.decoder
    framework = setting.framework
    if sizes.adapters is None:
        return AdapterSeconds()
    kernels = framework.kernels
    rank = sizes.adapters.rank
    gap = kernels.rates["launch"] * framework.constants["gap"]
    forward = 0.0
    backward = 0.0
    weights = 0.0
    for linear in sizes.list_adapted_linears(has_experts=has_experts):
        (_, inputs), (outputs, _) = linear.adapter_shapes(rank, shards)
        forward += kernels.products([(tokens, rank, inputs), (tokens, outputs, rank)])
        forward += kernels.stream(ADDED * tokens * outputs) + gap * ADAPTER_LAUNCHES[0]
        backward += kernels.products([(tokens, rank, outputs), (tokens, inputs, rank)])
        backward += kernels.stream(ADDED * tokens * inputs) + gap * ADAPTER_LAUNCHES[1]
        weights += kernels.products([(outputs, rank, tokens), (rank, inputs, tokens)])
    if sizes.adapters.is_quantized:  # matrices without adapters are unpacked, too
        element_bytes = sizes.adapters.matrix_bytes + HALF_BYTES
        for linear in sizes.dense_linears(has_experts=has_experts):
            unpacking = kernels.stream(
                element_bytes * linear.inputs * linear.outputs / shards
            )
            forward += unpacking
            backward += unpacking
    return AdapterSeconds(forward, backward, weights)


def layer_products(
    setting: PricingSetting, tokens: int, shards: int, chosen: bool
) -> list[Shape]:
    """Return rows, columns and summed length of each matrix product of a layer.

    The first four are queries, keys and values; attention's output; up; down. Products of latent
    attention and the router come last, since shards exchange nothing around them. A layer with
    experts has what every token passes for its feed-forward, if there is any.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Shards of every matrix.
        chosen: Whether the layer has experts.
    """
    d = setting.decoder
    parts = [d.queries + 2 * d.keys, d.values]
    latent_shapes: list[Shape] = []
    if d.latent is not None:
        latent = d.latent
        shared = d.heads * (d.head_size - d.latent.rotary) + d.values
        parts[0] = (latent.queries or d.queries) + latent.keys + latent.rotary
        latent_shapes = [(tokens, -(-shared // shards), latent.keys)]
        latent_shapes += (
            [(tokens, -(-d.queries // shards), latent.queries)]
            if latent.queries
            else []
        )
    if chosen and d.experts:
        inner = d.experts.shared
    else:
        inner = d.feed_forward
    joined, own_width, inside = (-(-size // shards) for size in (*parts, inner))
    up = (2 if d.gated else 1) * inside
    wide: list[Shape] = [(tokens, joined, d.hidden), (tokens, d.hidden, own_width)]
    if inside:
        wide.append((tokens, up, d.hidden))
        wide.append((tokens, d.hidden, inside))
    if chosen and d.experts:
        latent_shapes.append((tokens, d.experts.count, d.hidden))
    return wide + latent_shapes


def list_pass_shapes(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes of all passes of products: forward, and both gradients' of each."""
    inner = [(m, k, n) for m, n, k in shapes]
    return [*shapes, *inner, *((n, k, m) for m, n, k in shapes)]


def _bytes(
    setting: PricingSetting, tokens: int, shards: int, split: bool, chosen: bool
) -> tuple[float, float]:
    """Return the bytes that a layer moves beside products and attention.

    Norms, dropout and residuals of tokens that are not split run on every shard in full.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Tensor-parallel shards.
        split: Whether tokens are split over the shards between products.
        chosen: Whether the layer has experts.

    Returns:
        Bytes of the forward and of the backward pass.
    """
    d = setting.decoder
    constants = setting.framework.constants
    if split:
        stream = d.hidden / shards
    else:
        stream = float(d.hidden)
    if not d.gated:
        # GELU's bytes, as if the width were 4 h.
        apart = d.feed_forward / shards - 4.0 * stream
        forward = constants["plain_forward"] * stream + GELU[0] * apart
        return tokens * forward, tokens * (
            constants["plain_backward"] * stream + GELU[1] * apart
        )
    queries = d.queries / shards
    keys = d.keys / shards
    inside = (d.experts.shared if chosen and d.experts else d.feed_forward) / shards
    shared = constants["gated_queries"] * queries + constants["gated_keys"] * keys
    forward = (
        constants["gated_forward"] * stream
        + shared
        + constants["inside_forward"] * inside
    )
    backward = (
        constants["gated_backward"] * stream
        + shared
        + constants["inside_backward"] * inside
    )
    # Rows are sorted, gated and added up again; this is never compiled.
    if chosen and d.experts:
        rows = d.experts.active / shards
        forward += rows * (
            12 * d.hidden + constants["chosen_forward"] * d.experts.width
        )
        backward += rows * (
            16 * d.hidden + constants["chosen_backward"] * d.experts.width
        )
    return tokens * forward, tokens * backward


def _chosen(
    setting: PricingSetting, tokens: int, shards: int, groups: int, expert_shards: int
) -> PassSeconds:
    """Return the seconds of the experts of a layer, with the exchanges of tokens around them.

    Every expert is priced with equally many rows.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Shards that each have a part of these tokens.
        groups: Shards of the layer's experts.
        expert_shards: Shards of the matrices of an expert.
    """
    d = setting.decoder
    kernels = setting.framework.kernels
    network = setting.framework.network
    experts = d.experts
    assert experts is not None
    local_experts = experts.count // groups
    width = -(-experts.width // expert_shards)
    rows = max(1, tokens * expert_shards // shards * experts.active // local_experts)
    shapes = [(rows, 2 * width, d.hidden), (rows, d.hidden, width)]
    kernels.predict(list_pass_shapes(shapes))
    forward = local_experts * kernels.products(shapes)
    backward = local_experts * kernels.products([(m, k, n) for m, n, k in shapes])
    if d.adapters is None:  # else experts are frozen
        backward += local_experts * kernels.products([(n, k, m) for m, n, k in shapes])
    elif d.adapters.quantizes_experts:  # all experts of the device are unpacked
        element_bytes = d.adapters.expert_bytes + HALF_BYTES
        unpacking = kernels.stream(element_bytes * local_experts * 3 * width * d.hidden)
        forward += unpacking
        backward += unpacking
    size = 2.0 * tokens * experts.active * d.hidden / shards
    dispatch_seconds = _dispatch(setting, size, groups, expert_shards)
    sent = 2 * dispatch_seconds
    if expert_shards > 1:
        members = min(expert_shards, network.per_server)
        gathered = size * expert_shards
        sent += network.exchange(ALL_GATHER, expert_shards, gathered, members)
        sent += network.exchange(REDUCE_SCATTER, expert_shards, gathered, members)
    recomputed = forward + sent
    if not setting.framework.constants["combine_keeps"]:
        recomputed -= dispatch_seconds
    return PassSeconds(forward + sent, backward + sent, recomputed)


def _dispatch(
    setting: PricingSetting, size: float, groups: int, expert_shards: int
) -> float:
    """Return the seconds to send rows to their experts.

    Args:
        setting: The sizes, the devices and the framework.
        size: Bytes of the rows of a device, once for each of a token's experts.
        groups: Shards of the layer's experts.
        expert_shards: Shards of the matrices of an expert, which are neighbours.
    """
    framework = setting.framework
    network = framework.network
    experts = setting.decoder.experts
    assert experts is not None
    members = max(1, min(groups, network.per_server // expert_shards))
    if not framework.constants["dispatch_once"]:
        return network.exchange(ALL_TO_ALL, groups, size, members)
    # A row goes once to each server, and there once to each group, that has any of its experts.
    row = size / experts.active
    staying = row * _count_reached(setting, groups)
    if groups <= members:
        return network.exchange(ALL_TO_ALL, groups, staying, members)
    leaving = row * _count_reached(setting, groups / members)
    return network.dispatch(
        groups, leaving, staying, members, network.rates["card_gather"]
    )


def _count_reached(setting: PricingSetting, num_parts: float) -> float:
    """Return how many of equal parts of the experts have any expert of a token, in the mean.

    Experts are chosen at random, or in turn: then token t has the k experts from number k t on.

    Args:
        setting: The sizes, the devices and the framework.
        num_parts: Groups of devices, or servers, that each have as many neighbouring experts.
    """
    experts = setting.decoder.experts
    assert experts is not None
    if not setting.framework.constants["experts_in_turn"]:
        return num_parts * (1 - (1 - 1 / num_parts) ** experts.active)
    # Borders of parts that lie inside of a token's run of experts, in a period of both.
    per_part = max(1, int(experts.count / num_parts))
    period = math.lcm(per_part, experts.active)
    borders_inside = period // per_part - 1
    return min(num_parts, 1 + borders_inside * experts.active / period)


def _exchanges(
    setting: PricingSetting,
    tokens: int,
    shards: int,
    split: bool,
    products: tuple[list[float], list[float], list[float]],
) -> tuple[float, float]:
    """Return the seconds of a layer's collectives among shards that no computation hides.

    Without sequence parallelism activations are all-reduced. With it they are all-gathered before
    and reduce-scattered after each pair of matrix products.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Tensor-parallel shards.
        split: Whether tokens are split over the shards between products (sequence parallelism).
        products: Seconds of each product: forward, of the gradient of its input, and of its weight.

    Returns:
        Seconds of the forward and of the backward pass.
    """
    if shards == 1:
        return 0.0, 0.0
    framework = setting.framework
    size = 2.0 * tokens * setting.decoder.hidden
    network = framework.network
    constants = framework.constants
    members = min(shards, network.per_server)
    forward, inner, weights = products
    # Attention, and the feed-forward that every token passes, if the layer has one.
    halves = min(2, len(forward) // 2)
    if not split:
        reduced = network.reduce(shards, size, members)
        return halves * reduced, halves * reduced
    gather = network.exchange(ALL_GATHER, shards, size, members)
    scatter = network.exchange(REDUCE_SCATTER, shards, size, members)
    wide = (0, 2)[:halves]
    narrow = (1, 3)[:halves]
    front = 0.0
    back = 0.0
    if framework.hides_shards:
        share = constants["overlap_shards"]
        for first, second in zip(wide, narrow, strict=True):
            front += framework.hidden_seconds(gather, forward[first], share)
            front += framework.hidden_seconds(scatter, forward[second], share)
            back += framework.hidden_seconds(gather, inner[second], share)
            back += framework.hidden_seconds(gather, inner[first], share)
            back += framework.hidden_seconds(scatter, weights[first], share)
        return front, back
    for first, second in zip(wide, narrow, strict=True):
        front += scatter
        if constants["hides_gathers"]:
            front += framework.hidden_seconds(gather, forward[first] / shards)
            back += framework.hidden_seconds(gather, inner[second] / shards)
        else:
            front += gather
            back += gather
        if constants["hides_backward"]:
            back += framework.hidden_seconds(gather, inner[first])
            back += framework.hidden_seconds(scatter, weights[first])
        else:
            back += gather + scatter
    return front, back


def _around(
    setting: PricingSetting, tokens: int, shards: int, context: int, attend: float
) -> tuple[float, float]:
    """Return the seconds of passing keys and values around the context ring.

    Args:
        setting: The sizes, the devices and the framework.
        tokens: Tokens of the micro-batch on a device.
        shards: Tensor-parallel shards.
        context: Context-parallel shards.
        attend: Seconds of attention's forward pass, which hides the exchange.

    Returns:
        Seconds of the forward and of the backward pass that attention does not hide.
    """
    if context == 1:
        return 0.0, 0.0
    network = setting.framework.network
    size = 2.0 * 2 * tokens * context * setting.decoder.keys / shards
    members = max(1, min(context, network.per_server // shards))
    gather_seconds = network.exchange(ALL_GATHER, context, size, members)
    return setting.framework.hidden_seconds(
        gather_seconds, attend
    ), setting.framework.hidden_seconds(2 * gather_seconds, 2.5 * attend)


@lru_cache(maxsize=4096)
def head_passes(
    setting: PricingSetting, tokens: int, shards: int, split: bool
) -> PassSeconds:
    """Return the seconds of the head and the loss. Arguments are those of `layer_passes`."""
    d = setting.decoder
    kernels = setting.framework.kernels
    constants = setting.framework.constants
    rows = -(-d.vocabulary // shards)
    kernels.predict(list_pass_shapes([(tokens, rows, d.hidden)]))
    product = kernels.products([(tokens, rows, d.hidden)])
    inner = kernels.products([(tokens, d.hidden, rows)])
    if d.adapters is not None:
        weights = 0.0
    else:
        weights = kernels.products([(rows, d.hidden, tokens)])
    logits = tokens * d.vocabulary / shards
    front = product + kernels.stream(constants["logit_forward"] * logits)
    back = inner + weights + kernels.stream(constants["logit_backward"] * logits)
    if shards > 1:
        network = setting.framework.network
        size = 2.0 * tokens * d.hidden
        members = min(shards, network.per_server)
        front += 3 * network.reduce(shards, 4.0 * tokens, members)
        if split:
            gather = network.exchange(ALL_GATHER, shards, size, members)
            scatter = network.exchange(REDUCE_SCATTER, shards, size, members)
            framework = setting.framework
            front += gather
            if framework.hides_shards:
                front -= gather
                front += framework.hidden_seconds(
                    gather, product, constants["overlap_shards"]
                )
            back += framework.hidden_seconds(gather, inner)
            back += framework.hidden_seconds(scatter, weights)
        else:
            back += network.reduce(shards, size, members)
    return PassSeconds(front, back)
