"""`DecoderCosts`: seconds and bytes of a decoder's segments on a mesh, by its sizes; its chain.

The segments are the embedding, every layer, and the head with the loss. Layers of one kind cost the
same. Seconds come from `decoders.layer`: kernels, exchanges of tensor-parallel and context-parallel
shards, experts' products and all-to-alls. The activations that a layer saves for its backward pass
are counted by operation: inputs of products, norms and gates; queries, keys, values and results of
fused attention, with 4 bytes a head for its sums; or 5 bytes a score if attention is written out as
products (Korthikanti et al., 2022, arXiv 2205.05198).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import PRODUCTS, list_newton_schulz_products
from gnnplace.plans.decoders.adapters import HALF_BYTES
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.layer import (
    adapter_passes,
    head_passes,
    layer_passes,
    layer_products,
    num_own_norms,
)
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.segments.chain import (
    FASTEST,
    Basis,
    Chain,
    Degrees,
    Segment,
    SegmentCosts,
    SplitChoice,
    Tied,
    find_degrees,
)

EXCHANGES = 10  # exchanges of a layer over shards, both ways, that the host starts
PLAIN_KEPT = (
    4.0  # bytes a value inside of a feed-forward without gate: before and after GELU
)
ERROR = 0.05  # expected relative error of a segment's seconds
EMBEDDING, DENSE_LAYER, EXPERT_LAYER, HEAD = range(4)  # kinds of segments


class KeptBytes(NamedTuple):
    """The bytes of a micro-batch that a layer keeps for its backward pass.

    Attributes:
        everything: Bytes without recomputation.
        selective: Bytes with selective recomputation, which computes attention again.
        entering: Bytes of the layer's input.
    """

    everything: float
    selective: float
    entering: float


@dataclass(eq=False)
class DecoderCosts:
    """The prices of a decoder's segments on meshes, from its sizes.

    Attributes:
        setting: The sizes and the framework that runs them.
    """

    is_captured: ClassVar[bool] = False
    basis: ClassVar[Basis] = "sizes"

    setting: PricingSetting
    _on_kind: dict[str, PricingSetting] = field(init=False, default_factory=dict)

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Return the costs of every segment, or None if the degrees do not divide the decoder.

        Arguments are those of `plans.segments.chain.CostSource.costs`.
        """
        sizes = self.setting.decoder
        degrees = find_degrees(axes, choice)
        if degrees is None or not _divides(sizes, degrees, examples):
            return None
        tokens = max(1, examples // degrees.replicas * sizes.length // degrees.cp)
        return _segment_costs(
            self._make_kind_setting(kind), degrees, tokens, choice.border != "whole"
        )

    def degrees(
        self, kind: str, axes: tuple[int, ...], examples: int, choice: SplitChoice
    ) -> Degrees:
        """Return the degrees of parallelism of a split.

        Arguments are those of `plans.segments.chain.CostSource.degrees`.
        """
        degrees = find_degrees(axes, choice)
        assert degrees is not None, choice
        return degrees

    def _make_kind_setting(self, kind: str) -> PricingSetting:
        """Return the setting with the kernels of a kind of device."""
        if kind not in self._on_kind:
            framework = self.setting.framework.with_kernels_of(kind)
            self._on_kind[kind] = replace(self.setting, framework=framework)
        return self._on_kind[kind]


def _divides(sizes: DecoderSizes, degrees: Degrees, examples: int) -> bool:
    """Return whether a mesh's degrees of parallelism divide a decoder."""
    if sizes.experts:
        num_experts = sizes.experts.count
    else:
        num_experts = 1
    fewer_heads, divided = sorted((sizes.kv_heads, degrees.tp))
    return not (
        sizes.heads % degrees.tp
        or divided % fewer_heads
        or sizes.length % degrees.cp
        or examples % degrees.replicas
        or num_experts % degrees.ep
    )


def _segment_costs(
    setting: PricingSetting, degrees: Degrees, tokens: int, border_split: bool
) -> SegmentCosts:
    """Return the costs of every segment.

    Args:
        setting: The sizes, and the framework on the device.
        degrees: How the mesh cuts one replica's work.
        tokens: Tokens of a micro-batch on a device.
        border_split: Whether tokens are split between the products of a layer.
    """
    sizes = setting.decoder
    constants = setting.framework.constants
    tp = degrees.tp
    split = (border_split or degrees.tp == 1) and constants["splits_tokens"] > 0
    num_layers = sizes.layers
    if sizes.experts:
        dense = sizes.experts.dense
    else:
        dense = num_layers
    columns = {name: np.zeros(num_layers + 2) for name in LAYER_COLUMNS}
    for kind, layers in (
        (DENSE_LAYER, slice(1, 1 + dense)),
        (EXPERT_LAYER, slice(1 + dense, num_layers + 1)),
    ):
        if layers.start < layers.stop:
            for name, value in _layer_costs(
                setting, kind, degrees, tokens, split
            ).items():
                columns[name][layers] = value
    for name, value in _head_costs(setting, tp, tokens, split).items():
        columns[name][-1] = value

    # The embedding takes no time that is seen; tied, it is the head's table.
    table = sizes.embedding / tp + sizes.learned * sizes.hidden
    if sizes.adapters is None:
        columns["parameters"][0] = table
    else:
        columns["frozen_bytes"][0] = HALF_BYTES * table
    if sizes.tied:
        columns["tied"][[0, -1]] = sizes.embedding / tp
    columns["host"][1:-1] = _time_layer_launches(setting, tp)
    columns["working"] += _working(setting, tp, tokens) + columns["unpacked"]
    outside = columns["parameters"] - columns["experts"]
    none = np.zeros(num_layers + 2)
    # Gradients of what all devices of the outer axis hold are summed over it.
    is_summed = degrees.cp * degrees.replicas > 1
    if is_summed:
        summed = np.array([none, outside, none])
    else:
        summed = np.zeros((1, num_layers + 2))
    return SegmentCosts(error=np.full(num_layers + 2, ERROR), summed=summed, **columns)


LAYER_COLUMNS = (
    "forward",
    "backward",
    "weights",
    "recomputed",
    "attention",
    "saved",
    "scores",
    "entering",
    "working",
    "loss",
    "parameters",
    "experts",
    "matrices",
    "largest",
    "tied",
    "host",
    "update",
    "frozen_bytes",
    "frozen_experts",
    "unpacked",
)


def _layer_costs(
    setting: PricingSetting, kind: int, degrees: Degrees, tokens: int, split: bool
) -> dict[str, float]:
    """Return the columns of a layer; arguments as of `_segment_costs`."""
    sizes = setting.decoder
    kernels = setting.framework.kernels
    has_experts = kind == EXPERT_LAYER
    tp = degrees.tp
    groups = degrees.ep if has_experts else 0
    passes = layer_passes(
        setting, tokens, tp, degrees.cp, split, groups, degrees.expert_tp
    )
    shapes = layer_products(setting, tokens, tp, has_experts)
    weights = sum(
        kernels.products([(columns, inner, rows)]) for rows, columns, inner in shapes
    )
    if sizes.adapters is not None:  # frozen matrices have no gradients
        weights = adapter_passes(setting, tokens, tp, has_experts=has_experts).weights
    layer_kept = compute_saved_bytes(setting, tokens, tp, split, has_experts)
    freed = layer_kept.everything - layer_kept.selective
    if setting.recomputed_modules:
        freed = tokens * _count_freed_bytes(setting, tp, split, has_experts)
    experts = 0.0
    matrices = float(sizes.layer_matrices)
    if has_experts:
        experts = sizes.expert_parameters / degrees.ep / degrees.expert_tp
        matrices = float(sizes.beside_experts)
    update = 0.0
    if setting.framework.optimizer_kind.is_orthogonal:
        update = _orthogonal_seconds(setting, degrees, has_experts=has_experts)
    trained = {
        "parameters": matrices / tp + sizes.layer_vectors + experts,
        "experts": experts,
        "matrices": matrices / tp + experts,
        "largest": max(2 * sizes.feed_forward, sizes.hidden) * sizes.hidden / tp,
    }
    if sizes.adapters is not None:
        trained = _adapter_columns(sizes, degrees, has_experts=has_experts)
        trained["frozen_experts"] = sizes.adapters.expert_bytes * experts
        trained["frozen_bytes"] = sizes.adapters.matrix_bytes * matrices / tp
        trained["frozen_bytes"] += (
            trained["frozen_experts"] + HALF_BYTES * sizes.layer_vectors
        )
    return {
        **trained,
        "forward": passes.forward,
        "backward": passes.backward - weights,
        "weights": weights,
        "recomputed": passes.recomputed,
        "attention": passes.selective,
        "saved": layer_kept.everything,
        "scores": freed,
        "entering": layer_kept.entering,
        "update": update,
    }


def _adapter_columns(
    sizes: DecoderSizes, degrees: Degrees, *, has_experts: bool
) -> dict[str, float]:
    """Return the columns of what is trained in a layer with adapters.

    Args:
        sizes: Sizes of the decoder, with adapters.
        degrees: Shards of its matrices and experts.
        has_experts: Whether the layer has experts.
    """
    adapters = sizes.adapters
    assert adapters is not None
    largest = 0
    for linear in sizes.list_adapted_linears(has_experts=has_experts):
        for rows, columns in linear.adapter_shapes(adapters.rank, degrees.tp):
            largest = max(largest, rows * columns)
    # Packed matrices are unpacked one at a time; those of all experts are one tensor.
    unpacked = 0.0
    if adapters.is_quantized:
        dense = sizes.dense_linears(has_experts=has_experts)
        unpacked = max(linear.inputs * linear.outputs for linear in dense) / degrees.tp
    if has_experts and adapters.quantizes_experts:
        for linear in sizes.expert_linears():
            if sizes.gated and not sizes.joins_gate and linear.is_wide:
                joined = 2
            else:
                joined = 1
            stacked = joined * linear.count * linear.inputs * linear.outputs
            unpacked = max(unpacked, stacked / degrees.ep / degrees.expert_tp)
    elements = float(
        sizes.adapter_parameters(has_experts=has_experts, shards=degrees.tp)
    )
    return {
        "parameters": elements,
        "experts": 0.0,
        "matrices": elements,
        "largest": float(largest),
        "unpacked": HALF_BYTES * unpacked,
    }


def _orthogonal_seconds(
    setting: PricingSetting, degrees: Degrees, *, has_experts: bool
) -> float:
    """Return the seconds in which Muon orthogonalizes the updates of a layer.

    Devices that have parts of a matrix take whole ones in turn.
    """
    kernels = setting.framework.kernels
    seconds = 0.0
    adapters = setting.decoder.adapters
    if adapters is not None:
        for linear in setting.decoder.list_adapted_linears(has_experts=has_experts):
            for rows, columns in linear.adapter_shapes(adapters.rank):
                seconds += (
                    kernels.products(list_newton_schulz_products(rows, columns))
                    / degrees.tp
                )
        return seconds
    for linear in setting.decoder.linears(has_experts=has_experts):
        products = kernels.products(
            list_newton_schulz_products(linear.outputs, linear.inputs)
        )
        if linear.count == 1:
            devices = degrees.tp
        else:
            devices = degrees.ep * degrees.expert_tp
        seconds += linear.count * products / devices
    return seconds


def _head_costs(
    setting: PricingSetting, tp: int, tokens: int, split: bool
) -> dict[str, float]:
    """Return the cost columns of the head and the loss. Arguments are those of `_segment_costs`."""
    sizes = setting.decoder
    framework = setting.framework
    passes = head_passes(setting, tokens, tp, split)
    rows = -(-sizes.vocabulary // tp)
    is_frozen = sizes.adapters is not None
    if is_frozen:
        weights = 0.0
    else:
        weights = framework.kernels.products([(rows, sizes.hidden, tokens)])
    elements = sizes.embedding / tp + sizes.last_norm
    host = 2 * framework.constants["host_pass"]
    if framework.checks is not None and tp > 1:
        host += 6 * framework.checks["check"] * tp
    logits = framework.constants["logit_kept"] * sizes.vocabulary
    return {
        "forward": passes.forward,
        "backward": passes.backward - weights,
        "weights": weights,
        "loss": tokens * (logits + 4.0 * sizes.hidden) / tp,
        "parameters": 0.0 if is_frozen else elements,
        "frozen_bytes": HALF_BYTES * elements if is_frozen else 0.0,
        "host": host,
    }


def _time_layer_launches(setting: PricingSetting, tp: int) -> float:
    """Return the seconds that the host takes to launch a layer's passes."""
    framework = setting.framework
    constants = framework.constants
    checks = framework.checks
    network = framework.network
    if tp == 1:
        host = constants["host_layer"]
    else:
        host = constants["host_layer_shards"]
    if checks is not None and tp > 1:
        host += EXCHANGES * checks["check"] * tp
        if tp > network.per_server:
            host += EXCHANGES * (tp - 1) * network.rates["ring_latency"]
    return host


def _working(setting: PricingSetting, tp: int, tokens: int) -> FloatArray:
    """Return the bytes of values and gradients at work in each segment, without ZeRO 2 or 3."""
    sizes = setting.decoder
    constants = setting.framework.constants
    widened = 4 * (2 if sizes.gated else 1) * sizes.feed_forward + 2 * sizes.hidden
    inside = constants["passing"] * tokens * widened / tp
    logits = (
        tokens * (constants["logit_kept"] * sizes.vocabulary + 4 * sizes.hidden) / tp
    )
    working = np.full(sizes.layers + 2, inside)
    working[-1] = max(inside, logits)
    working += constants["passing"] * tokens * 6.0 * sizes.hidden
    matrices = sizes.layer_matrices / tp
    if sizes.adapters is not None:
        matrices = sizes.adapter_parameters(shards=tp)
    return working + constants["layer_gradients"] * matrices


def compute_saved_bytes(
    setting: PricingSetting, tokens: int, tp: int, split: bool, has_experts: bool
) -> KeptBytes:
    """Return the bytes that a layer keeps of a micro-batch for its backward pass.

    Args:
        setting: The sizes, and the framework that keeps them.
        tokens: Tokens of the micro-batch on a device.
        tp: Shards of every matrix.
        split: Whether tokens are split over the shards between products.
        has_experts: Whether the layer has experts.
    """
    sizes = setting.decoder
    constants = setting.framework.constants
    parts = tp if split else 1
    adapters = _count_adapter_bytes(sizes, has_experts=has_experts)
    scores = _count_score_bytes(setting, tp)
    entering = 2.0 * tokens * sizes.hidden / parts
    if not sizes.gated:
        stream = constants["plain_kept_stream"] * sizes.hidden / parts
        inside = (constants["plain_kept_inside"] * sizes.hidden + 4 * sizes.heads) / tp
        lean = stream + inside + adapters
        return KeptBytes(tokens * (lean + scores), tokens * lean, entering)
    stream = 12.0 * sizes.hidden / parts
    gate = constants["gated_kept"] * sizes.feed_forward
    inside = (4 * sizes.keys + gate + 4 * sizes.heads) / tp
    if sizes.latent is not None:
        latent = sizes.latent
        narrow = 4 * latent.queries + 4 * latent.keys + 2 * latent.rotary
        stream = (8.0 * sizes.hidden + narrow) / parts
        inside += (4 * sizes.queries + 4 * sizes.values - 4 * sizes.keys) / tp
    lean_stream = stream
    lean_inside = inside
    if constants["selective_products"]:  # every other product is computed again, too
        lean_stream = 4.0 * sizes.hidden / parts
        lean_inside = 4 * sizes.queries + 4 * sizes.keys + 2 * sizes.feed_forward
        lean_inside = (lean_inside + 4 * sizes.heads) / tp
    experts = 0.0
    if has_experts and sizes.experts:
        mixture = sizes.experts
        experts = constants["gated_kept"] * (mixture.shared - sizes.feed_forward) / tp
        experts += mixture.active * _count_row_bytes(setting, mixture) / tp
    return KeptBytes(
        tokens * (stream + inside + experts + adapters + scores),
        tokens * (lean_stream + lean_inside + experts + adapters),
        entering,
    )


def _count_freed_bytes(
    setting: PricingSetting, tp: int, split: bool, has_experts: bool
) -> float:
    """Return the bytes a token that a layer need not keep, because modules are recomputed.

    A module keeps its input. Norms, the up projections of latent attention and the experts'
    activation function keep no output either: the product that reads it gets it anew
    (Megatron-Core's `CheckpointWithoutOutput`).

    Args:
        setting: The sizes, the framework, and the modules.
        tp: Shards of every matrix.
        split: Whether tokens are split over the shards between products.
        has_experts: Whether the layer has experts.
    """
    sizes = setting.decoder
    if sizes.gated:
        width_bytes = setting.framework.constants["gated_kept"]
    else:
        width_bytes = PLAIN_KEPT
    stream_shards = tp if split else 1
    normed = HALF_BYTES * sizes.hidden / stream_shards
    freed = {"layernorm": num_own_norms(setting, has_experts) * normed}
    freed["core_attn"] = _count_score_bytes(setting, tp)
    if sizes.latent is not None:
        projected = 2 * sizes.queries + sizes.values
        freed["mla_up_proj"] = HALF_BYTES * projected / tp
    if not has_experts or sizes.experts is None:
        freed["mlp"] = width_bytes * sizes.feed_forward / tp + normed
    else:
        mixture = sizes.experts
        rows = mixture.active / tp
        shared = width_bytes * mixture.shared / tp
        freed["shared_experts"] = shared
        freed["moe_act"] = HALF_BYTES * rows * mixture.width
        freed["moe"] = rows * _count_row_bytes(setting, mixture) + shared
    return sum(freed.get(module, 0.0) for module in setting.recomputed_modules)


def _count_score_bytes(setting: PricingSetting, tp: int) -> float:
    """Return the bytes a token that attention keeps for its weights; 0 if attention is fused.

    Each weight takes 5 bytes: two each before and after dropout, and one of dropout's mask
    (Korthikanti et al., 2022, arXiv 2205.05198, section 4.1).
    """
    if setting.framework.kernels.attention != PRODUCTS:
        return 0.0
    sizes = setting.decoder
    return 5.0 * sizes.heads * sizes.length / tp


def _count_row_bytes(setting: PricingSetting, mixture: ExpertLayers) -> float:
    """Return the bytes that an expert keeps of each row that is sent to it."""
    constants = setting.framework.constants
    inside = constants["chosen_inside"] * mixture.width
    return inside + constants["chosen_kept"] * setting.decoder.hidden


def _count_adapter_bytes(sizes: DecoderSizes, *, has_experts: bool) -> float:
    """Return the bytes a token that a layer keeps for its adapters.

    That is what the first matrix of each makes, and the second's gradient reads. What a product
    without an adapter reads is counted as if it were kept.
    """
    if sizes.adapters is None:
        return 0.0
    return (
        2.0
        * sizes.adapters.rank
        * len(sizes.list_adapted_linears(has_experts=has_experts))
    )


def decoder_chain(setting: PricingSetting, name: str = "decoder") -> Chain:
    """Return a decoder as the planner's chain.

    Args:
        setting: The sizes, and the framework that runs them.
        name: What the model is called.
    """
    sizes = setting.decoder
    num_layers = sizes.layers
    if sizes.experts:
        dense = sizes.experts.dense
    else:
        dense = num_layers
    layers = [f"model.layers.{k}" for k in range(num_layers)]
    names = ["model.embed_tokens", *layers, "lm_head"]
    layer_kinds = (
        DENSE_LAYER if k < dense else EXPERT_LAYER for k in range(num_layers)
    )
    kinds = [EMBEDDING, *layer_kinds, HEAD]
    segments = tuple(
        Segment(name=module, members=(module,), modules=(module,), kind=kind)
        for module, kind in zip(names, kinds, strict=True)
    )
    stream = 2.0 * sizes.length * sizes.hidden
    table = Tied("embedding", (0, num_layers + 1), float(sizes.embedding))
    return Chain(
        name=name,
        fingerprint="",
        segments=segments,
        border=np.array([0.0, *[stream] * (num_layers + 1), 0.0]),
        source=DecoderCosts(setting),
        batch=sizes.batch,
        precision=setting.framework.precision,
        optimizer=setting.framework.optimizer,
        tied=(table,) if sizes.tied and sizes.adapters is None else (),
        framework=setting.framework,
    )
