"""`LayerKind`: norms, biases and feed-forward of the layers that a `model_type` has.

Each was read from the class of that type in transformers; `tests/models` compares the parameter
count of every model of the catalogue with that class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

EACH_HEAD, ALL_HEADS = "each head", "all heads"
"""What a norm of queries and of keys passes: one head with weights for all, or all with theirs."""


class Configuration(Protocol):
    """A configuration of transformers; other fields are read by their names."""

    model_type: str


@dataclass(frozen=True)
class LayerKind:
    """The norms, biases and feed-forward of a kind of layer.

    A field that is a `str` names the field of the configuration that says whether it is so.

    Attributes:
        gated: Whether the feed-forward has two matrices up and one down, instead of one up.
        norms: Norms of the stream in a layer.
        norm_weights: Vectors of a norm: 1, or 2 with a bias; 0 for norms without parameters.
        head_norms: What norms of queries and keys pass, or "".
        head_norms_if: A field that must be true for them.
        qkv_bias: Whether products that make queries, keys and values have biases.
        output_bias: Whether attention's output has biases.
        up_bias: Whether the feed-forward's products have biases.
        head_bias: Whether the head has biases.
        embedding_norm: Whether a norm follows the embedding.
        learned_positions: Whether positions are learned.
        spare_positions: Rows of their table beyond the positions.
        experts: Whether layers choose among experts.
        expert_bias: Whether the experts' products and the router have biases.
        latent: Whether attention goes by way of narrow queries and keys.
        beside: The number of further vectors of a layer that are as wide as the stream.
        sinks: Whether each head has a sink of attention.
        joins_queries: Whether one product makes queries, keys and values.
        joins_gate: Whether one product makes the gate and what it gates.
        unlike: Fields whose value, if it is another, makes layers that sizes cannot say.
    """

    gated: bool = True
    norms: int = 2
    norm_weights: int = 1
    head_norms: str = ""
    head_norms_if: str = ""
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    up_bias: bool | str = False
    head_bias: bool | str = False
    embedding_norm: bool = False
    learned_positions: bool = False
    spare_positions: int = 0
    experts: bool = False
    expert_bias: bool = False
    latent: bool = False
    beside: int = 0
    sinks: bool = False
    joins_queries: bool = False
    joins_gate: bool = False
    unlike: tuple[tuple[str, object], ...] = ()

    def describes(self, config: Configuration) -> bool:
        """Return whether sizes can say the layers of a configuration."""
        return all(
            getattr(config, name, value) in (value, None) for name, value in self.unlike
        )

    def find_head_norms(self, config: Configuration) -> str:
        """Return what norms of queries and keys pass, or ""."""
        if self.head_norms_if and not getattr(config, self.head_norms_if, False):
            return ""
        return self.head_norms

    def layer_vectors(
        self,
        config: Configuration,
        *,
        hidden: int,
        feed_forward: int,
        queries: int,
        keys: int,
        head_size: int,
    ) -> int:
        """Return the parameters of a layer's norms and biases, without the experts'.

        Args:
            config: The model's configuration.
            hidden: Width of the stream.
            feed_forward: Width inside of the feed-forward.
            queries: Width of all heads of queries.
            keys: Width of all heads of keys.
            head_size: Width of a head.
        """
        num_norms = self.norms
        if config.model_type == "falcon":
            num_norms = _falcon_norms(config)
        vectors = num_norms * self.norm_weights * hidden + self.beside * hidden
        norms_of_heads = self.find_head_norms(config)
        if norms_of_heads == EACH_HEAD:
            vectors += 2 * head_size
        elif norms_of_heads == ALL_HEADS:
            vectors += queries + keys
        if _is_set(self.qkv_bias, config):
            vectors += queries + 2 * keys
        if _is_set(self.output_bias, config):
            vectors += hidden
        if _is_set(self.up_bias, config):
            vectors += (2 if self.gated else 1) * feed_forward + hidden
        if self.sinks:
            vectors += queries // head_size
        if self.expert_bias:
            # The biases of the router.
            vectors += int(getattr(config, "num_local_experts", 0))
        return vectors

    def end_vectors(self, config: Configuration, hidden: int, vocabulary: int) -> int:
        """Return the parameters of norms and biases that are in no layer.

        Args:
            config: The model's configuration.
            hidden: Width of the stream.
            vocabulary: Rows of the head.
        """
        num_norms = 2 if self.embedding_norm else 1
        if _is_set(self.head_bias, config):
            head_bias = vocabulary
        else:
            head_bias = 0
        return num_norms * self.norm_weights * hidden + head_bias


def _is_set(bias: bool | str, config: Configuration) -> bool:
    """Return whether a product has a bias: as the kind, or as a field of the configuration says."""
    if isinstance(bias, str):
        return bool(getattr(config, bias, False))
    return bias


def _falcon_norms(config: Configuration) -> int:
    """Return the norms of one of Falcon's layers, by its architecture."""
    if not getattr(config, "parallel_attn", True):
        return 2
    if getattr(config, "new_decoder_architecture", False):
        return int(getattr(config, "num_ln_in_parallel_attn", None) or 2)
    return 1


_ROUTED: tuple[tuple[str, object], ...] = (
    ("decoder_sparse_step", 1),
    ("mlp_only_layers", []),
)
_LLAMA = LayerKind(
    qkv_bias="attention_bias", output_bias="attention_bias", up_bias="mlp_bias"
)
_QWEN3 = LayerKind(
    head_norms=EACH_HEAD, qkv_bias="attention_bias", output_bias="attention_bias"
)
_GEMMA2 = LayerKind(norms=4, qkv_bias="attention_bias", output_bias="attention_bias")
_GPT2 = LayerKind(
    gated=False,
    norm_weights=2,
    qkv_bias=True,
    output_bias=True,
    up_bias=True,
    learned_positions=True,
    joins_queries=True,
    unlike=(("add_cross_attention", False),),
)
_LATENT = LayerKind(experts=True, latent=True, unlike=(("attention_bias", False),))

KINDS: Mapping[str, LayerKind] = {
    "llama": _LLAMA,
    "mistral": LayerKind(),
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "gemma": LayerKind(qkv_bias="attention_bias", output_bias="attention_bias"),
    "gemma2": _GEMMA2,
    "gemma3_text": LayerKind(
        norms=4,
        head_norms=EACH_HEAD,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "phi3": LayerKind(joins_queries=True, joins_gate=True),
    "qwen2": LayerKind(qkv_bias=True),
    "qwen3": _QWEN3,
    "olmo": LayerKind(
        norm_weights=0, qkv_bias="attention_bias", output_bias="attention_bias"
    ),
    "olmo2": LayerKind(
        head_norms=ALL_HEADS, qkv_bias="attention_bias", output_bias="attention_bias"
    ),
    "glm": LayerKind(qkv_bias="attention_bias", joins_gate=True),
    "glm4": LayerKind(norms=4, qkv_bias="attention_bias", joins_gate=True),
    "stablelm": LayerKind(
        norm_weights=2, qkv_bias="use_qkv_bias", unlike=(("qk_layernorm", False),)
    ),
    "mixtral": LayerKind(experts=True),
    "granitemoe": LayerKind(
        experts=True, qkv_bias="attention_bias", output_bias="attention_bias"
    ),
    "phimoe": LayerKind(
        norm_weights=2,
        experts=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        head_bias="lm_head_bias",
    ),
    "olmoe": LayerKind(
        experts=True,
        head_norms=ALL_HEADS,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "qwen2_moe": LayerKind(experts=True, qkv_bias=True, beside=1, unlike=_ROUTED),
    "qwen3_moe": LayerKind(
        experts=True,
        head_norms=EACH_HEAD,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        unlike=_ROUTED,
    ),
    "glm4_moe": LayerKind(
        experts=True,
        head_norms=EACH_HEAD,
        head_norms_if="use_qk_norm",
        qkv_bias="attention_bias",
    ),
    "minimax_m2": LayerKind(experts=True, head_norms=ALL_HEADS),
    "llama4_text": LayerKind(
        experts=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        unlike=(("interleave_moe_layer_step", 1),),
    ),
    "gpt_oss": LayerKind(
        experts=True,
        expert_bias=True,
        sinks=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": LayerKind(
        gated=False,
        norm_weights=2,
        output_bias=True,
        up_bias=True,
        learned_positions=True,
    ),
    "gpt_neox": LayerKind(
        gated=False,
        joins_queries=True,
        norm_weights=2,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        up_bias=True,
    ),
    "gptj": LayerKind(
        gated=False, norms=1, norm_weights=2, up_bias=True, head_bias=True
    ),
    "phi": LayerKind(
        gated=False,
        norms=1,
        norm_weights=2,
        qkv_bias=True,
        output_bias=True,
        up_bias=True,
        head_bias=True,
        unlike=(("qk_layernorm", False),),
    ),
    "bloom": LayerKind(
        gated=False,
        joins_queries=True,
        norm_weights=2,
        qkv_bias=True,
        output_bias=True,
        up_bias=True,
        embedding_norm=True,
    ),
    "opt": LayerKind(
        gated=False,
        norm_weights=2,
        qkv_bias="enable_bias",
        output_bias="enable_bias",
        up_bias="enable_bias",
        learned_positions=True,
        spare_positions=2,
        unlike=(
            ("do_layer_norm_before", True),
            ("layer_norm_elementwise_affine", True),
            ("_remove_final_layer_norm", False),
        ),
    ),
    "mpt": LayerKind(gated=False, joins_queries=True),
    "falcon": LayerKind(
        gated=False,
        norm_weights=2,
        qkv_bias="bias",
        output_bias="bias",
        up_bias="bias",
        joins_queries=True,
    ),
    "starcoder2": LayerKind(
        gated=False,
        norm_weights=2,
        qkv_bias="use_bias",
        output_bias="use_bias",
        up_bias="use_bias",
    ),
    "nemotron": LayerKind(
        gated=False,
        norm_weights=2,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        up_bias="mlp_bias",
    ),
}
"""Kinds of layers by `model_type`."""
