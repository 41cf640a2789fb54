"""A model of any sizes for torchtitan, which the module of configurations registers itself.

torchtitan's registries have a few sizes of each family. A module with a plan may add its own to
them: `llama3_configs` and its like are dictionaries of functions, and `model_registry` looks a name
up there. Written for torchtitan b5bcd76c (`models/llama3/__init__.py`,
`models/qwen3/__init__.py`, `models/deepseek_v3/__init__.py`, `models/common/config_utils.py`).

Layers of Llama (Mistral, Qwen2 with its biases, Phi-3) are built of the blocks of `llama3`; those
with norms of heads or with experts (Qwen3, Mixtral) of the blocks of `qwen3`; those of DeepSeek
(Kimi-K2, Moonlight) by `build_mla_moe_layers` of `deepseek_v3`. All sizes stand in one literal,
`MODEL`, which is what is read back.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.keys import Keys
from gnnplace.launch.layer_details import (
    BESIDE_LLAMA,
    LLAMA,
    SIGMOID,
    TORCHTITAN_TYPES,
    YARN,
    LayerDetails,
)
from gnnplace.plans import DecoderSizes, ExpertLayers, LatentAttention

FLAVOR = "gnnplace"
"""The name that the module registers its model by."""
MODEL = "MODEL"
"""The name of the literal with the sizes."""
TYPES = ("llama", "mistral", "qwen2", "phi3", "qwen3", "mixtral", "qwen3_moe")
"""Types of models of the catalogue whose layers are those of torchtitan's blocks."""
DEEPSEEK_TYPES = ("deepseek_v2", "deepseek_v3")
LLAMA_SCALING = {
    "factor": "scaling_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
"""Keys of Llama's rotary scaling in a `config.json`, and torchtitan's."""

YARN_SCALING = {
    "factor": "rope_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "original_max_position_embeddings": "original_seq_len",
}
"""Keys of YaRN's rotary scaling in a `config.json`, and torchtitan's."""

Value = int | float | bool | str


@dataclass(frozen=True)
class Family:
    """A family of torchtitan's models whose blocks a model of any sizes is built of.

    Attributes:
        name: Its folder in `torchtitan/models`.
        model: The class of its model.
        block: The class of its blocks.
        rope: The class of its rotary positions, in whose order it loads weights.
        base: The function of a configuration that a plan begins with.
        expert_base: The base for a model with experts.
        option: The arguments of a function of its registry behind the first, and their defaults.
        registry: The dictionary of its functions.
    """

    name: str
    model: str
    block: str
    rope: str
    base: str
    expert_base: str
    option: str
    registry: str

    def find_base(self, sizes: DecoderSizes) -> str:
        """Return the function whose configuration a plan for a model of these sizes begins with."""
        return self.base if sizes.experts is None else self.expert_base


LLAMA3 = Family(
    name="llama3",
    model="Llama3Model",
    block="Llama3TransformerBlock",
    rope="ComplexRoPE",
    base="llama3_8b",
    expert_base="llama3_8b",
    option='tp_gemm_backend="default"',
    registry="llama3_configs",
)
QWEN3 = Family(
    name="qwen3",
    model="Qwen3Model",
    block="Qwen3TransformerBlock",
    rope="CosSinRoPE",
    base="qwen3_14b",
    expert_base="qwen3_30b_a3b",
    option='moe_comm_backend="standard"',
    registry="qwen3_configs",
)
DEEPSEEK = Family(
    name="deepseek_v3",
    model="DeepSeekV3Model",
    block="DeepSeekV3TransformerBlock",
    rope="ComplexRoPE",
    base="deepseek_v3_671b",
    expert_base="deepseek_v3_671b",
    option="moe_comm_backend, non_blocking_capacity_factor=None, num_mtp_layers=0",
    registry="deepseekv3_configs",
)

PARTS = '''
WEIGHTS = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}


def _norm(size):
    return RMSNorm.Config(
        normalized_shape=size, param_init={"weight": nn.init.ones_}, **MODEL["norm"]
    )


def _residual(layer):
    """Initialize what is added to the stream by the depth of its layer."""
    std = depth_scaled_std(0.02, layer)
    return {"weight": partial(nn.init.trunc_normal_, std=std), "bias": nn.init.zeros_}
'''
EXPERT_WEIGHTS = """

def _expert_weights(layer):
    return {
        "w1_EFD": WEIGHTS["weight"],
        "w2_EDF": _residual(layer)["weight"],
        "w3_EFD": WEIGHTS["weight"],
    }
"""
LATENT = """

def _layers(attn_backend, moe_comm_backend, capacity_factor):
    layers = build_mla_moe_layers(
        **MODEL["layers"],
        dim=MODEL["dim"],
        attn_backend=attn_backend,
        moe_comm_backend=moe_comm_backend,
        non_blocking_capacity_factor=capacity_factor,
        linear_init=WEIGHTS,
        norm_init={"weight": nn.init.ones_},
        depth_init=_residual,
        depth_experts_init=_expert_weights,
        rope=ComplexRoPE.Config(
            dim=MODEL["layers"]["qk_rope_head_dim"],
            max_context_length=MODEL["max_context_length"],
            **MODEL["rope"],
        ),
    )
    for layer in layers:
        for _, norm, _, _ in layer.traverse(RMSNorm.Config):
            norm.eps = MODEL["norm"].get("eps", norm.eps)
    return layers
"""
ATTENTION = """

def _attention(layer, inner_attention):
    attention = make_gqa_config(
        dim=MODEL["dim"],
        n_heads=MODEL["n_heads"],
        n_kv_heads=MODEL["n_kv_heads"],
        head_dim=MODEL["head_dim"],
        wqkv_param_init=WEIGHTS,
        wo_param_init=_residual(layer),
        inner_attention=inner_attention,
        fuse_qkv=True,
        rope=$rope.Config(
            dim=MODEL["head_dim"],
            max_context_length=MODEL["max_context_length"],
            **MODEL["rope"],
        ),
        qk_norm=_norm(MODEL["head_dim"]) if MODEL["qk_norm"] else None,
    )
    attention.qkv_linear.wqkv.bias = MODEL["qkv_bias"]
    return attention
"""
DENSE = """

def _feed_forward(layer):
    return {
        "feed_forward": make_ffn_config(
            dim=MODEL["dim"],
            hidden_dim=MODEL["hidden_dim"],
            w1_param_init=WEIGHTS,
            w2w3_param_init=_residual(layer),
        )
    }
"""
EXPERTS = """

def _feed_forward(layer):
    return {
        "moe": make_moe_config(
            num_experts=MODEL["num_experts"],
            router=make_router_config(
                dim=MODEL["dim"],
                num_experts=MODEL["num_experts"],
                gate_param_init=WEIGHTS,
                top_k=MODEL["top_k"],
                score_func="softmax",
                route_norm=True,
            ),
            routed_experts=make_routed_experts_config(
                dim=MODEL["dim"],
                hidden_dim=MODEL["moe_hidden_dim"],
                num_experts=MODEL["num_experts"],
                top_k=MODEL["top_k"],
                param_init=_expert_weights(layer),
                comm_backend="standard",
            ),
        )
    }
"""
REGISTERED = """

def _model(attn_backend, $option):
    is_tied = MODEL["enable_weight_tying"]
    return $model.Config(
        dim=MODEL["dim"],
        vocab_size=MODEL["vocab_size"],
        enable_weight_tying=is_tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=MODEL["vocab_size"],
            embedding_dim=MODEL["dim"],
            param_init={"weight": skip_param_init if is_tied else WEIGHTS["weight"]},
        ),
        norm=_norm(MODEL["dim"]),
        lm_head=Linear.Config(
            in_features=MODEL["dim"], out_features=MODEL["vocab_size"], param_init=WEIGHTS
        ),
        layers=$layers,
    )


$registry["$flavor"] = _model
"""
LAYERS = """

def _layers(attn_backend):
    inner_attention = get_attention_config(attn_backend)
    return [
        $block.Config(
            attention_norm=_norm(MODEL["dim"]),
            ffn_norm=_norm(MODEL["dim"]),
            attention=_attention(layer, inner_attention),
            **_feed_forward(layer),
        )
        for layer in range(MODEL["n_layers"])
    ]
"""


def find_block_family(sizes: DecoderSizes, details: LayerDetails | None) -> Family:
    """Return the family whose blocks a model is built of.

    Args:
        sizes: Sizes of the model.
        details: What else its layers have, where that is known.

    Raises:
        InfeasibleError: torchtitan has no code for such layers.
    """
    if sizes.latent is not None:
        return _check_deepseek(sizes, details)
    if details is not None and details.type not in TYPES:
        feature = BESIDE_LLAMA.get(details.type, "layers of its own")
        if details.type in TORCHTITAN_TYPES:
            raise InfeasibleError(
                f"torchtitan: has {details.type} of its own sizes alone ({feature}); take "
                "another launcher"
            )
        raise InfeasibleError(
            f"torchtitan: has no code for {details.type}: {feature}; take another launcher"
        )
    scaling = "" if details is None else str(details.scaling.get("rope_type", ""))
    experts = sizes.experts
    reason = ""
    if not sizes.gated or sizes.learned:
        reason = "layers with learned positions or a feed-forward without a gate"
    elif experts is not None and (
        experts.shared or experts.dense or sizes.expert_vectors
    ):
        reason = "experts beside a feed-forward of all tokens, or with biases"
    elif sizes.layer_vectors not in (_vectors(sizes, False), _vectors(sizes, True)):
        reason = "norms or biases beside those of Llama and Qwen"
    elif sizes.last_norm != sizes.hidden:
        reason = "a norm or biases at its ends beside those of Llama and Qwen"
    elif details is not None and details.rotary_part < 1:
        reason = f"rotary positions of {details.rotary_part:g} of a head"
    elif scaling not in ("", LLAMA):
        reason = f"rotary scaling {scaling} in its blocks of Llama and Qwen3"
    if reason:
        raise InfeasibleError(
            f"torchtitan: has no code for {reason}; take another launcher"
        )
    return LLAMA3 if experts is None and not sizes.head_norms else QWEN3


def _check_deepseek(sizes: DecoderSizes, details: LayerDetails | None) -> Family:
    """Return the family of DeepSeek's layers.

    Raises:
        InfeasibleError: torchtitan's are others, or what the router does is not known.
    """
    experts, reason = sizes.experts, ""
    scaling = "" if details is None else str(details.scaling.get("rope_type", ""))
    if details is not None and details.type not in DEEPSEEK_TYPES:
        reason = f"has no code for {details.type} with latent attention"
    elif experts is None or experts.shared % experts.width or not experts.shared:
        reason = "has latent attention with shared experts of the others' width alone"
    elif sizes.tied or not sizes.gated or sizes.vectors or sizes.expert_vectors:
        reason = "has latent attention without biases and tied embeddings alone"
    elif details is None or details.router is None:
        reason = (
            "must be told how experts are chosen, which is known by a model's name "
            "alone; give --model"
        )
    elif scaling not in ("", YARN):
        reason = f"has no code for rotary scaling {scaling} in DeepSeek's layers"
    if reason:
        raise InfeasibleError(f"torchtitan: {reason}")
    return DEEPSEEK


def _vectors(sizes: DecoderSizes, has_biases: bool) -> int:
    """Return the parameters of a layer's norms, and of the biases of its queries and keys."""
    biases = sizes.queries + 2 * sizes.keys if has_biases else 0
    return replace(sizes, vectors=None).layer_vectors + biases


def model_literal(
    sizes: DecoderSizes, details: LayerDetails | None
) -> dict[str, object]:
    """Return the literal with a model's sizes, by torchtitan's names.

    Args:
        sizes: Sizes of the model.
        details: The layers' rotary positions and norms. torchtitan's defaults count where they are
            not known.
    """
    norm: dict[str, Value] = {}
    rope: dict[str, Value] = {}
    if details is not None and details.norm_epsilon is not None:
        norm["eps"] = details.norm_epsilon
    if details is not None and details.rotary_base is not None:
        rope["theta"] = float(details.rotary_base)
    if details is not None and details.scaling.get("rope_type") == LLAMA:
        rope["scaling"] = "llama"
        scaling = details.scaling
        rope |= {
            name: scaling[key] for key, name in LLAMA_SCALING.items() if key in scaling
        }
    if sizes.latent is not None:
        return _deepseek_literal(sizes, details, norm, rope)
    literal: dict[str, object] = {
        "dim": sizes.hidden,
        "n_layers": sizes.layers,
        "n_heads": sizes.heads,
        "n_kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "hidden_dim": sizes.feed_forward,
        "vocab_size": sizes.vocabulary,
        "max_context_length": sizes.length,
        "enable_weight_tying": sizes.tied,
        "qk_norm": sizes.head_norms,
        "qkv_bias": sizes.layer_vectors == _vectors(sizes, True),
        "norm": norm,
        "rope": rope,
    }
    if sizes.experts is not None:
        literal |= {
            "num_experts": sizes.experts.count,
            "top_k": sizes.experts.active,
            "moe_hidden_dim": sizes.experts.width,
        }
    return literal


def _deepseek_literal(
    sizes: DecoderSizes,
    details: LayerDetails | None,
    norm: Mapping[str, Value],
    rope: dict[str, Value],
) -> dict[str, object]:
    """Return the literal of a model of DeepSeek's layers.

    `layers` are arguments of torchtitan's `build_mla_moe_layers`. The factor of scores by YaRN is
    of `mscale_all_dim`, as in DeepSeek's own code.
    """
    latent, experts = sizes.latent, sizes.experts
    router = None if details is None else details.router
    assert latent is not None
    assert experts is not None
    assert router is not None
    assert details is not None
    # Rotary positions are of the part of a head that has them.
    scaling = details.scaling
    if scaling.get("rope_type") == YARN:
        rope["scaling"] = "yarn"
        rope |= {
            name: scaling[key] for key, name in YARN_SCALING.items() if key in scaling
        }
    # Experts' weights are scaled to sum to one where scores are sigmoids, as in DeepSeek-V3.
    layers: dict[str, object] = {
        "n_layers": sizes.layers,
        "n_dense_layers": experts.dense,
        "n_heads": sizes.heads,
        "q_lora_rank": latent.queries,
        "kv_lora_rank": latent.keys,
        "qk_nope_head_dim": sizes.head_size - latent.rotary,
        "qk_rope_head_dim": latent.rotary,
        "v_head_dim": latent.values,
        "mscale": float(scaling.get("mscale_all_dim", 1.0)),
        "dense_hidden_dim": sizes.feed_forward,
        "moe_hidden_dim": experts.width,
        "num_experts": experts.count,
        "num_shared_experts": experts.shared // experts.width,
        "router_top_k": experts.active,
        "router_score_func": router.score,
        "router_route_scale": router.scale,
        "router_route_norm": router.score == SIGMOID,
    }
    if router.groups > 1:
        layers["router_num_expert_groups"] = router.groups
        layers["router_num_limited_groups"] = router.chosen_groups
    return {
        "dim": sizes.hidden,
        "vocab_size": sizes.vocabulary,
        "max_context_length": sizes.length,
        "enable_weight_tying": False,
        "layers": layers,
        "norm": norm,
        "rope": rope,
    }


def model_imports(family: Family, sizes: DecoderSizes) -> list[str]:
    """Return the statements that import what `model_lines` needs."""
    helpers = ["get_attention_config", "make_gqa_config"]
    registered = [family.model, family.registry, "model_registry"]
    if family is DEEPSEEK:
        helpers = []
        registered.append("build_mla_moe_layers")
    elif sizes.experts is None:
        helpers.append("make_ffn_config")
    else:
        helpers += [
            "make_moe_config",
            "make_routed_experts_config",
            "make_router_config",
        ]
    listed = "".join(f"    {name},\n" for name in sorted(helpers))
    package = f"torchtitan.models.{family.name}"
    blocks = [
        f"from torchtitan.models.common.config_utils import (\n{listed})",
        f"from {package}.model import {family.block}",
    ]
    return [
        "from functools import partial",
        "from torch import nn",
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
        f"from torchtitan.models.common import {family.rope}, Embedding, Linear, RMSNorm",
        *(blocks if helpers else []),
        "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init",
        f"from {package} import {', '.join(sorted(registered))}",
        f"from {package}.config_registry import {family.find_base(sizes)}",
    ]


def model_lines(
    family: Family, sizes: DecoderSizes, details: LayerDetails | None
) -> list[str]:
    """Return the lines of a module that register a model of these sizes.

    Args:
        family: The family, as `find_block_family` returns it.
        sizes: Sizes of the model.
        details: The layers' rotary positions and norms, where they are known.
    """
    entries = model_literal(sizes, details).items()
    literal = ["{", *(f'    "{key}": {value!r},' for key, value in entries), "}"]
    unknown = (
        details is None or details.rotary_base is None or details.norm_epsilon is None
    )
    comment = (
        "# Empty `norm` and `rope` have torchtitan's defaults: set them to the model's."
    )
    layers = "_layers(attn_backend)"
    if family is DEEPSEEK:
        parts = [PARTS, EXPERT_WEIGHTS, LATENT, REGISTERED]
        layers = "_layers(attn_backend, moe_comm_backend, non_blocking_capacity_factor)"
    elif sizes.experts is None:
        parts = [PARTS, ATTENTION, DENSE, LAYERS, REGISTERED]
    else:
        parts = [PARTS, EXPERT_WEIGHTS, ATTENTION, EXPERTS, LAYERS, REGISTERED]
    builders = Template("".join(parts)).substitute(
        rope=family.rope,
        option=family.option,
        model=family.model,
        block=family.block,
        registry=family.registry,
        layers=layers,
        flavor=FLAVOR,
    )
    head = [comment] if unknown else []
    return [*head, f"{MODEL} = " + "\n".join(literal), *builders.rstrip().split("\n")]


def config_lines(details: LayerDetails | None) -> list[str]:
    """Return the statements that give a configuration the registered model."""
    name = "" if details is None else details.name.rpartition("/")[2]
    return [
        f'config.model_spec = model_registry("{FLAVOR}")',
        'loss = CrossEntropyLoss.Config(global_vocab_size=MODEL["vocab_size"])',
        "config.loss = ChunkedLossWrapper.Config(loss_fn=loss)",
        f'config.hf_assets_path = "./assets/hf/{name or "model"}"',
    ]


def read_model(statements: Sequence[ast.stmt], source: str) -> DecoderSizes | None:
    """Return the sizes of the model that a module registers, or None if it registers none.

    Args:
        statements: The statements of the module.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If the literal has no such sizes.
    """
    for statement in statements:
        if isinstance(statement, ast.Assign) and _assigns_model(statement):
            try:
                literal = ast.literal_eval(statement.value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                raise FormatError(
                    f"{source}: {MODEL}: must be a literal with sizes"
                ) from None
            keys = Keys({MODEL: literal}, source)
            return (
                _deepseek_sizes(keys)
                if keys.has(f"{MODEL}.layers")
                else _read_sizes(keys)
            )
    return None


def _assigns_model(statement: ast.Assign) -> bool:
    target = statement.targets[0]
    return isinstance(target, ast.Name) and target.id == MODEL


def _read_sizes(keys: Keys) -> DecoderSizes:
    """Return the sizes that the literal says.

    Raises:
        FormatError: If one is missing, or is no positive whole number.
    """

    def count(name: str) -> int:
        return keys.needed(f"{MODEL}.{name}")

    experts: ExpertLayers | None = None
    if keys.has(f"{MODEL}.num_experts"):
        experts = ExpertLayers(
            count("num_experts"), count("top_k"), count("moe_hidden_dim")
        )
    head_size = count("head_dim")
    has_own_size = head_size * count("n_heads") != count("dim")
    sizes = DecoderSizes(
        layers=count("n_layers"),
        hidden=count("dim"),
        heads=count("n_heads"),
        kv_heads=count("n_kv_heads"),
        feed_forward=count("hidden_dim"),
        length=count("max_context_length"),
        vocabulary=count("vocab_size"),
        tied=keys.switch(f"{MODEL}.enable_weight_tying"),
        own_head_size=head_size if has_own_size else None,
        experts=experts,
        head_norms=keys.switch(f"{MODEL}.qk_norm"),
    )
    if keys.switch(f"{MODEL}.qkv_bias"):
        return replace(sizes, vectors=_vectors(sizes, True))
    return sizes


def _deepseek_sizes(keys: Keys) -> DecoderSizes:
    """Return the sizes that the literal of a model of DeepSeek's layers says.

    Raises:
        FormatError: If one is missing, or is no whole number.
    """

    def count(name: str, least: int = 1) -> int:
        return keys.needed(f"{MODEL}.layers.{name}", least)

    experts = ExpertLayers(
        count=count("num_experts"),
        active=count("router_top_k"),
        width=count("moe_hidden_dim"),
        shared=count("num_shared_experts") * count("moe_hidden_dim"),
        dense=count("n_dense_layers", 0),
    )
    latent = LatentAttention(
        queries=count("q_lora_rank", 0),
        keys=count("kv_lora_rank"),
        rotary=count("qk_rope_head_dim"),
        values=count("v_head_dim"),
    )
    return DecoderSizes(
        layers=count("n_layers"),
        hidden=keys.needed(f"{MODEL}.dim"),
        heads=count("n_heads"),
        kv_heads=count("n_heads"),
        feed_forward=count("dense_hidden_dim"),
        length=keys.needed(f"{MODEL}.max_context_length"),
        vocabulary=keys.needed(f"{MODEL}.vocab_size"),
        own_head_size=count("qk_nope_head_dim") + latent.rotary,
        experts=experts,
        latent=latent,
    )
