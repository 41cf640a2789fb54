"""`DecoderSizes`: the sizes of a decoder of text, from its Hugging Face configuration.

Three kinds of layers are known: *gated* ones with rotary positions, root-mean-square norms and no
biases (Llama, Touvron et al., 2023, arXiv 2302.13971; Mistral, Qwen2, OLMo, Granite), and *plain*
ones with two matrices of feed-forward, layer norms and biases (GPT-2, MPT, BLOOM, OPT, GPT-NeoX;
Nemotron, Parmar et al., 2024, arXiv 2402.16819, with squared ReLU and without biases of products);
and gated ones with *experts* (Mixtral, Qwen3-MoE, DeepSeek-V2 and V3 with latent attention).
`decoders.kinds` says which `model_type` of transformers has which, and its norms and biases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from gnnplace.errors import InputError
from gnnplace.models import default_batch, find_model, require_planned
from gnnplace.plans.decoders.adapters import Adapters, parse_adapters
from gnnplace.plans.decoders.kinds import EACH_HEAD, KINDS, LayerKind

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PretrainedConfig

CAUSAL = ("ForCausalLM", "LMHeadModel")  # what classes of such models end with


@dataclass(frozen=True)
class ExpertLayers:
    """Layers whose feed-forward is a choice of experts.

    Sources: Mixtral, Jiang et al., 2024, arXiv 2401.04088; DeepSeek-V2, 2024, arXiv 2405.04434.

    Attributes:
        count: Experts of a layer.
        active: Experts of a token.
        width: Inner width of an expert.
        shared: Inner width of what every token passes besides; 0: nothing.
        dense: Number of first layers, which have a plain feed-forward instead.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    dense: int = 0


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose queries, keys and values pass through narrow ones (DeepSeek-V2).

    Source: DeepSeek-V2, 2024, arXiv 2405.04434.

    Attributes:
        queries: Width of the narrow queries; 0: they are made at once.
        keys: Width of the narrow keys and values.
        rotary: Width of a head's part with rotary positions.
        values: Width of a head's values.
    """

    queries: int
    keys: int
    rotary: int
    values: int


@dataclass(frozen=True)
class Linear:
    """A matrix product of a layer with its weights.

    Attributes:
        inputs: Columns of its matrix.
        outputs: Rows of its matrix.
        is_wide: Whether tensor-parallel shards divide its outputs; else its inputs.
        count: Matrices of these sizes, which experts have.
        members: The tensors that it makes, as adapters name them; several where one matrix makes
            them.
    """

    inputs: int
    outputs: int
    is_wide: bool = True
    count: int = 1
    members: tuple[str, ...] = ()

    def adapter_shapes(self, rank: int, shards: int = 1) -> tuple[tuple[int, int], ...]:
        """Return rows and columns of an adapter's two matrices, A and B, on a shard.

        Args:
            rank: Rank of the adapter.
            shards: Shards of the matrix beside it. The side that they divide is divided, the other
                is whole.
        """
        if self.is_wide:
            inputs = self.inputs
        else:
            inputs = -(-self.inputs // shards)
        if self.is_wide:
            outputs = -(-self.outputs // shards)
        else:
            outputs = self.outputs
        return (rank, inputs), (outputs, rank)


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder and of the examples that it is trained on.

    Attributes:
        layers: The number of layers.
        hidden: Width of the stream between layers.
        heads: Heads of queries.
        kv_heads: Heads of keys and values; fewer where queries share them.
        feed_forward: Inner width of the feed-forward.
        length: Tokens of an example.
        vocabulary: Rows of the embedding, before padding.
        gated: Whether layers have two matrices up and one down and norms without biases; else one
            up, one down.
        tied: Whether the head has the embedding's weights.
        batch: Examples of a step, where a plan says nothing else.
        positions: Learned positions; 0 where they are rotary or added to scores; None: rotary ones
            of gated layers, else one for each token.
        own_head_size: Width of a head, where it is not the stream's over the heads.
        experts: The experts of layers that have some.
        latent: Widths of latent attention, if the model has it.
        head_norms: Whether each head's queries and keys pass a norm (Qwen3).
        biases: Whether products of plain layers have biases. Gated ones have none.
        vectors: Parameters of a layer's norms and biases; None: those of the plainest kind.
        end_vectors: Parameters of the norms and biases outside of layers; None: the norm before the
            head.
        expert_vectors: Parameters of the biases of a layer's experts.
        adapters: Adapters that are trained instead of these parameters; None: all of them are.
        sample_length: Tokens of a sample where an example packs several that do not attend to one
            another; None: an example is one sample.
        joins_queries: Whether one product makes queries, keys and values.
        joins_gate: Whether one product makes the gate and what it gates.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    length: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    batch: int = 1
    positions: int | None = None
    own_head_size: int | None = None
    experts: ExpertLayers | None = None
    latent: LatentAttention | None = None
    head_norms: bool = False
    biases: bool = True
    vectors: int | None = None
    end_vectors: int | None = None
    expert_vectors: int = 0
    adapters: Adapters | None = None
    sample_length: int | None = None
    # How products are written makes no other model, and no other price of training all of it.
    joins_queries: bool = field(default=False, compare=False)
    joins_gate: bool = field(default=False, compare=False)

    @property
    def head_size(self) -> int:
        """Return the width of a head."""
        return self.own_head_size or self.hidden // self.heads

    @property
    def attended(self) -> int:
        """Return the tokens among which a token attends to those before it."""
        return min(self.sample_length or self.length, self.length)

    @property
    def learned(self) -> int:
        """Return the number of learned positions."""
        if self.positions is not None:
            return self.positions
        if self.gated:
            return 0
        return self.length

    @property
    def kind(self) -> str:
        """Return the plainest `model_type` of transformers that has such layers."""
        if self.latent is not None:
            if self.latent.queries:
                return "deepseek_v3"
            return "deepseek_v2"
        if self.experts is not None:
            is_qwen = self.head_norms or self.experts.width != self.feed_forward
            if is_qwen:
                return "qwen3_moe"
            return "mixtral"
        if not self.gated:
            if self.biases:
                return "gpt2"
            return "nemotron"
        if self.head_norms:
            return "qwen3"
        return "llama"

    @property
    def model(self) -> str:
        """Return the name of a model of these sizes, as `hf:` takes it.

        Raises:
            InputError: If no model of transformers that is known has such layers.
        """
        experts = self.experts
        if (
            experts is not None
            and self.latent is None
            and (experts.shared or experts.dense or not self.gated)
        ):
            raise InputError(
                "sizes of the model: experts beside a feed-forward of all tokens or of the first "
                "layers are known with latent attention alone; name the model"
            )
        keys = {
            **self._width_keys(),
            **self._head_keys(),
            **self._expert_keys(),
            "length": self.length,
            "tie_word_embeddings": self.tied,
        }
        words = (
            f"{key}={'null' if value is None else value}" for key, value in keys.items()
        )
        return f"hf:{self.kind}?{'&'.join(words)}"

    def _width_keys(self) -> dict[str, int]:
        """Return the keys of layers and widths, as a configuration of this kind names them."""
        if self.gated or not self.biases:
            return {
                "num_hidden_layers": self.layers,
                "hidden_size": self.hidden,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "intermediate_size": self.feed_forward,
                "vocab_size": self.vocabulary,
                "max_position_embeddings": self.length,
            }
        return {
            "n_layer": self.layers,
            "n_embd": self.hidden,
            "n_head": self.heads,
            "n_inner": self.feed_forward,
            "vocab_size": self.vocabulary,
            "n_positions": self.length,
        }

    def _head_keys(self) -> dict[str, int | None]:
        """Return the keys of latent attention, or of heads of a width of their own."""
        latent = self.latent
        if latent is None:
            has_width = bool(self.own_head_size or self.head_norms)
            if has_width:
                return {"head_dim": self.head_size}
            return {}
        return {
            "q_lora_rank": latent.queries or None,
            "kv_lora_rank": latent.keys,
            "qk_rope_head_dim": latent.rotary,
            "v_head_dim": latent.values,
            "qk_nope_head_dim": self.head_size - latent.rotary,
            "n_group": 1,
            "topk_group": 1,
        }

    def _expert_keys(self) -> dict[str, int]:
        """Return the keys of experts, and of layers before them without any."""
        experts = self.experts
        if experts is None:
            if self.latent is None:
                return {}
            return {"first_k_dense_replace": self.layers}
        names = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}
        keys = {
            names.get(self.kind, "n_routed_experts"): experts.count,
            "num_experts_per_tok": experts.active,
        }
        if self.kind != "mixtral":
            keys["moe_intermediate_size"] = experts.width
        if self.latent is not None:
            keys["n_shared_experts"] = experts.shared // experts.width
            keys["first_k_dense_replace"] = experts.dense
        return keys

    def with_vectors(self, vectors: int, end_vectors: int) -> DecoderSizes:
        """Return sizes with the parameters of norms and biases, where these are not the plainest.

        Args:
            vectors: Parameters of a layer's norms and biases.
            end_vectors: Parameters of the norms and biases that are in no layer.
        """
        plain = replace(self, vectors=None, end_vectors=None)
        return replace(
            self,
            vectors=None if vectors == plain.layer_vectors else vectors,
            end_vectors=None if end_vectors == plain.last_norm else end_vectors,
        )

    @property
    def queries(self) -> int:
        """Return the width of all heads of queries."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Return the width of all heads of keys."""
        return self.kv_heads * self.head_size

    @property
    def values(self) -> int:
        """Return the width of all heads of values as they meet the output's product."""
        return self.heads * (self.latent.values if self.latent else self.head_size)

    @property
    def attention_matrices(self) -> int:
        """Return the parameters of a layer's attention that tensor parallelism shards."""
        latent = self.latent
        if latent is None:
            return self.hidden * (2 * self.queries + 2 * self.keys)
        queries = (
            self.queries * (latent.queries or self.hidden)
            + self.hidden * latent.queries
        )
        wide = self.heads * (self.head_size - latent.rotary) + self.values
        return (
            queries
            + self.hidden * (latent.keys + latent.rotary + self.values)
            + latent.keys * wide
        )

    @property
    def attention_linears(self) -> tuple[Linear, ...]:
        """Return the products with weights of a layer's attention."""
        latent = self.latent
        hidden = self.hidden
        output = Linear(self.values, hidden, is_wide=False, members=("o",))
        if latent is None and self.joins_queries:
            joined = Linear(
                hidden, self.queries + 2 * self.keys, members=("q", "k", "v")
            )
            return (joined, output)
        if latent is None:
            return (
                Linear(hidden, self.queries, members=("q",)),
                Linear(hidden, self.keys, members=("k",)),
                Linear(hidden, self.keys, members=("v",)),
                output,
            )
        queries: tuple[Linear, ...] = (Linear(hidden, self.queries, members=("q",)),)
        if latent.queries:
            queries = (
                Linear(hidden, latent.queries, members=("q",)),
                Linear(latent.queries, self.queries, members=("q",)),
            )
        # Narrow keys and values are one matrix, and so are those that are made of them.
        narrow = Linear(hidden, latent.keys + latent.rotary, members=("k", "v"))
        width = self.heads * (self.head_size - latent.rotary) + self.values
        wide = Linear(latent.keys, width, members=("k", "v"))
        return (*queries, narrow, wide, output)

    def _feed_forward_linears(self, width: int, count: int = 1) -> tuple[Linear, ...]:
        """Return the products of a feed-forward of a width, or of a number of experts."""
        up = Linear(self.hidden, width, count=count, members=("up",))
        down = Linear(width, self.hidden, is_wide=False, count=count, members=("down",))
        if self.gated and self.joins_gate:
            joined = Linear(self.hidden, 2 * width, count=count, members=("gate", "up"))
            return (joined, down)
        if self.gated:
            return (replace(up, members=("gate",)), up, down)
        return (up, down)

    def linears(self, *, has_experts: bool = False) -> tuple[Linear, ...]:
        """Return the products with weights of a layer.

        Args:
            has_experts: Whether it is a layer with experts.
        """
        experts = self.experts
        if experts is None or not has_experts:
            return (
                *self.attention_linears,
                *self._feed_forward_linears(self.feed_forward),
            )
        router = Linear(self.hidden, experts.count)
        if experts.shared:
            shared = self._feed_forward_linears(experts.shared)
        else:
            shared = ()
        return (*self.attention_linears, router, *shared, *self.expert_linears())

    def dense_linears(self, *, has_experts: bool = False) -> tuple[Linear, ...]:
        """Return the products of a layer that every token passes, but the router's."""
        if has_experts:
            width = self._shared_width
        else:
            width = self.feed_forward
        if width:
            inside = self._feed_forward_linears(width)
        else:
            inside = ()
        return (*self.attention_linears, *inside)

    @property
    def _shared_width(self) -> int:
        """Return the inner width of what every token passes in a layer with experts."""
        if self.experts is not None:
            return self.experts.shared
        return self.feed_forward

    def list_adapted_linears(self, *, has_experts: bool = False) -> tuple[Linear, ...]:
        """Return the products of a layer that have adapters: no router's and no expert's."""
        if has_experts:
            width = self._shared_width
        else:
            width = self.feed_forward
        if width:
            inside = self._feed_forward_linears(width)
        else:
            inside = ()
        linears = (*self.attention_linears, *inside)
        adapters = self.adapters
        if adapters is None:
            return linears
        return tuple(linear for linear in linears if adapters.has(linear.members))

    def expert_linears(self) -> tuple[Linear, ...]:
        """Return the products of a layer's experts, each with the number of these."""
        if self.experts is None:
            return ()
        return self._feed_forward_linears(self.experts.width, self.experts.count)

    def adapter_parameters(self, *, has_experts: bool = False, shards: int = 1) -> int:
        """Return the parameters of a layer's adapters on a shard; 0 where it has none."""
        if self.adapters is None:
            return 0
        parameters = 0
        for linear in self.list_adapted_linears(has_experts=has_experts):
            for rows, columns in linear.adapter_shapes(self.adapters.rank, shards):
                parameters += rows * columns
        return parameters

    @property
    def trained_parameters(self) -> int:
        """Return the number of trained parameters: the adapters', or all."""
        if self.adapters is None:
            return self.parameters
        dense = (self.layers - self.num_expert_layers) * self.adapter_parameters()
        return dense + self.num_expert_layers * self.adapter_parameters(
            has_experts=True
        )

    @property
    def num_expert_layers(self) -> int:
        """Return the number of layers with experts."""
        if self.experts:
            return self.layers - self.experts.dense
        return 0

    @property
    def layer_matrices(self) -> int:
        """Return the parameters of the matrices of a layer without experts, which shards divide."""
        return (
            self.attention_matrices
            + (3 if self.gated else 2) * self.hidden * self.feed_forward
        )

    @property
    def layer_vectors(self) -> int:
        """Return the parameters of a layer's norms and biases, which every shard has."""
        if self.vectors is not None:
            return self.vectors
        if self.latent:
            narrow = self.latent.queries + self.latent.keys
        else:
            narrow = 0
        if self.gated:
            return (
                2 * self.hidden
                + narrow
                + (2 * self.head_size if self.head_norms else 0)
            )
        if not self.biases:
            return 4 * self.hidden
        biases = self.queries + 2 * self.keys + 2 * self.hidden + self.feed_forward
        return 4 * self.hidden + biases

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of a layer without experts."""
        return self.layer_matrices + self.layer_vectors

    @property
    def expert_parameters(self) -> int:
        """Return the parameters of all experts of a layer, without what every token passes."""
        if self.experts is None:
            return 0
        return (
            3 * self.hidden * self.experts.count * self.experts.width
            + self.expert_vectors
        )

    @property
    def beside_experts(self) -> int:
        """Return the sharded parameters of a layer with experts that are not the experts' own.

        These are attention's, the router's and those of the feed-forward of every token.
        """
        experts = self.experts
        if experts is None:
            return 0
        return self.attention_matrices + self.hidden * (
            experts.count + 3 * experts.shared
        )

    @property
    def embedding(self) -> int:
        """Return the parameters of the embedding of words."""
        return self.vocabulary * self.hidden

    @property
    def last_norm(self) -> int:
        """Return the parameters of the last norm, and of biases and norms at the model's ends."""
        if self.end_vectors is not None:
            return self.end_vectors
        return (1 if self.gated else 2) * self.hidden

    @property
    def forward_flops(self) -> float:
        """Return the FLOPs of the products of an example's forward pass.

        Attention counts its whole square of scores, without regard to the causal mask.
        """
        matrices = self.layers * self.attention_matrices + self.embedding
        if self.experts:
            num_dense = self.experts.dense
        else:
            num_dense = self.layers
        factor = 3 if self.gated else 2
        matrices += num_dense * factor * self.hidden * self.feed_forward
        if self.experts is not None:
            inside = self.experts.active * self.experts.width + self.experts.shared
            expert_layer = 3 * self.hidden * inside + self.hidden * self.experts.count
            matrices += (self.layers - num_dense) * expert_layer
        scores = self.layers * self.attended * (self.queries + self.values)
        return 2.0 * self.length * (matrices + scores)

    @property
    def step_flops(self) -> float:
        """Return the FLOPs of the products of an example's forward and backward pass.

        The backward pass has two products for each of the forward pass (Chowdhery et al., 2022,
        PaLM, arXiv 2204.02311, appendix B); of a frozen matrix it has one.
        """
        if self.adapters is None:
            return 3.0 * self.forward_flops
        scores = (
            2.0
            * self.length
            * self.layers
            * self.attended
            * (self.queries + self.values)
        )
        adapters = 2.0 * self.length * self.trained_parameters
        return 2.0 * (self.forward_flops - scores) + 3.0 * (scores + adapters)

    @property
    def parameters(self) -> int:
        """Return the number of parameters in all, without adapters."""
        ends = self.embedding * (1 if self.tied else 2) + self.learned * self.hidden
        num_dense = self.layers - self.num_expert_layers
        expert_layer = self.beside_experts + self.layer_vectors + self.expert_parameters
        layers = (
            num_dense * self.layer_parameters + self.num_expert_layers * expert_layer
        )
        return layers + ends + self.last_norm


def find_decoder(
    model: str | nn.Module, inputs: object = None, num_devices: int = 1
) -> DecoderSizes | None:
    """Return the decoder that a model is, by its name, by its configuration or by its calls.

    Args:
        model: A name of the catalogue, `hf:CONFIG`, whose weights are not made, `module:callable`,
            or a module.
        inputs: Example inputs of a module.
        num_devices: Devices of the cluster, which the default batch of the catalogue depends on.

    Returns:
        Its sizes; None where it is none.

    Raises:
        InputError: An unknown configuration, field or callable, or a model of the catalogue that no
            plan is made for.
    """
    decoder = decoder_or_reason(model, inputs, num_devices)
    if isinstance(decoder, DecoderSizes):
        return decoder
    return None


def decoder_or_reason(
    model: str | nn.Module,
    inputs: object = None,
    num_devices: int = 1,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
) -> DecoderSizes | str:
    """Return the decoder that a model is, or the reason why it is none.

    Args:
        model: The model. This argument and the next ones are those of `find_decoder`.
        inputs: Example inputs of a module.
        num_devices: Devices of the cluster.
        loss: The loss of a module whose output is none.
    """
    if isinstance(model, str):
        decoder = catalogue_decoder(model, num_devices)
    else:
        decoder = None
    if decoder is not None:
        return decoder
    from gnnplace.tracing import make_workload, parse_options

    if isinstance(model, str):
        path, _, query = model.partition("?")
        if path.startswith("hf:") or find_model(path) is not None:
            from gnnplace.zoo import (
                TRANSFORMERS_BATCH,
                TRANSFORMERS_LENGTH,
                transformers_config,
            )

            options = parse_options(query, model)
            length = int(options.pop("length", TRANSFORMERS_LENGTH))
            batch = int(options.pop("batch", TRANSFORMERS_BATCH))
            config = transformers_config(path.removeprefix("hf:"), options)
            classes = config.architectures or ()
            if classes and not str(classes[0]).endswith(CAUSAL):
                return f"{classes[0]} has another head"
            sizes = from_config(model, config, length, batch)
            return sizes or f"layers of {config.model_type}"
    elif inputs is None:
        return "its example inputs are not known"
    workload = make_workload(model, inputs, loss, fake=True)
    from gnnplace.plans.segments.chains import recognise_decoder

    return recognise_decoder(workload)


def with_adapters(sizes: DecoderSizes, words: str | None) -> DecoderSizes:
    """Return sizes with the adapters that are trained, in the words of `--lora`; None: none.

    Raises:
        InputError: If a word cannot be read, or the model's layers have no such products.
    """
    if words is None:
        return replace(sizes, adapters=None)
    adapters = parse_adapters(words)
    if adapters.quantizes_experts and sizes.experts is None:
        raise InputError(f"--lora {words}: expert_bits: the model has no experts")
    adapted = replace(sizes, adapters=adapters)
    if adapted.num_expert_layers:
        kinds = {True}
    else:
        kinds = set[bool]()
    kinds |= {False} if adapted.num_expert_layers < sizes.layers else set()
    products = {
        name
        for has_experts in kinds
        for linear in adapted.list_adapted_linears(has_experts=has_experts)
        for name in linear.members
    }
    missing = [name for name in adapters.targets if name not in products]
    if missing:
        if sizes.experts:
            remark = "; its experts have no adapters"
        else:
            remark = ""
        raise InputError(
            f"--lora {words}: no layer of the model has a product {missing[0]!r}{remark}"
        )
    return adapted


def catalogue_decoder(model: str, num_devices: int = 1) -> DecoderSizes | None:
    """Return the sizes of a model of the catalogue by its name, without torch; None if not known.

    An example has as many tokens as `?length=` says, or the catalogue's default length; a step as
    many examples as `?batch=` says, or the catalogue's default batch.

    Args:
        model: A name of the catalogue, after which `?length=` and `?batch=` may follow.
        num_devices: Devices of the cluster.

    Raises:
        InputError: If the model has layers that no plan is made for, or a number cannot be read.
    """
    name, _, query = model.partition("?")
    row = find_model(name)
    if row is None:
        return None
    require_planned(row)
    options = dict(part.partition("=")[::2] for part in query.split("&") if part)
    length = options.pop("length", row.length)
    batch = options.pop("batch", None)
    if options or length is None or (Path(name) / "config.json").is_file():
        return None
    try:
        tokens = int(length)
        if batch is None:
            examples = default_batch(tokens, num_devices)
        else:
            examples = int(batch)
    except ValueError:
        raise InputError(f"{model}: length and batch must be whole numbers") from None
    if tokens < 1 or examples < 1:
        raise InputError(f"{model}: length and batch must be positive")
    config = SimpleNamespace(model_type=row.type, **row.config)
    decoder = from_config(row.name, config, tokens, examples)
    if decoder is not None and decoder.positions and tokens > decoder.positions:
        raise InputError(
            f"{model}: it has learned positions for {decoder.positions:,} tokens; give a shorter "
            "length"
        )
    return decoder


def from_config(
    name: str, config: PretrainedConfig, length: int, batch: int = 1
) -> DecoderSizes | None:
    """Return sizes by a configuration's fields, or None if its layers are of another kind.

    Args:
        name: What the decoder is called.
        config: A configuration of `transformers`, or an object with the same fields.
        length: Tokens of an example.
        batch: Examples of a step.

    Raises:
        InputError: If its heads do not divide a width, or its weights are quantized.
    """
    if getattr(config, "quantization_config", None):
        raise InputError(
            f"{name}: its weights are quantized, and plans price weights of 2 or 4 bytes a number; "
            "give the model unquantized"
        )
    kind = KINDS.get(config.model_type)
    if kind is None or not kind.describes(config):
        return None
    hidden = int(config.hidden_size)
    heads = int(config.num_attention_heads)
    latent = _latent(config) if kind.latent else None
    # The width of a head is what queries have; values of latent attention have their own.
    head_size = int(getattr(config, "head_dim", None) or hidden // heads)
    if latent is not None:
        head_size = int(config.qk_nope_head_dim) + latent.rotary
    elif getattr(config, "head_dim", None) is None and hidden % heads:
        raise InputError(
            f"{name}: hidden size {hidden} is no multiple of {heads} heads"
        )
    sizes = DecoderSizes(
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        feed_forward=_feed_forward(config, hidden),
        length=length,
        vocabulary=int(config.vocab_size),
        gated=kind.gated,
        tied=bool(getattr(config, "tie_word_embeddings", True)),
        batch=batch,
        positions=_count_learned_positions(config, kind),
        own_head_size=None if head_size * heads == hidden else head_size,
        experts=_experts(config) if kind.experts else None,
        latent=latent,
        head_norms=kind.find_head_norms(config) == EACH_HEAD,
        biases=config.model_type != "nemotron"
        or bool(config.attention_bias or config.mlp_bias),
        joins_queries=kind.joins_queries,
        joins_gate=kind.joins_gate,
    )
    return _with_vectors(sizes, config, kind)


def _with_vectors(
    sizes: DecoderSizes, config: PretrainedConfig, kind: LayerKind
) -> DecoderSizes:
    """Return sizes with the parameters of the kind's norms and biases, where these are others."""
    if sizes.latent:
        narrow = sizes.latent.queries + sizes.latent.keys
    else:
        narrow = 0
    vectors = narrow + kind.layer_vectors(
        config,
        hidden=sizes.hidden,
        feed_forward=sizes.feed_forward,
        queries=sizes.queries,
        keys=sizes.keys,
        head_size=sizes.head_size,
    )
    end_vectors = kind.end_vectors(config, sizes.hidden, sizes.vocabulary)
    expert_vectors = 0
    if sizes.experts is not None and kind.expert_bias:
        expert_vectors = sizes.experts.count * (2 * sizes.experts.width + sizes.hidden)
    return replace(
        sizes.with_vectors(vectors, end_vectors), expert_vectors=expert_vectors
    )


def _count_learned_positions(config: PretrainedConfig, kind: LayerKind) -> int | None:
    """Return rows of the table of positions, or None if a gated model has none."""
    if not kind.learned_positions:
        return None if kind.gated else 0
    # OPT's table begins with two rows that no token has.
    return int(config.max_position_embeddings) + kind.spare_positions


def _kv_heads(config: PretrainedConfig, heads: int) -> int:
    """Return heads of keys and values, by the fields that types have for them."""
    if getattr(config, "num_key_value_heads", None):
        return int(config.num_key_value_heads)
    if not getattr(config, "multi_query", False):
        return heads
    is_grouped = getattr(config, "new_decoder_architecture", False)  # a field of Falcon
    if is_grouped:
        return int(config.num_kv_heads)
    return 1


def _experts(config: PretrainedConfig) -> ExpertLayers:
    """Return the layers with experts, by the fields that their types have."""
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    count = next(int(getattr(config, name)) for name in names if hasattr(config, name))
    width = int(
        getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    )
    shared = int(getattr(config, "n_shared_experts", None) or 0) * width
    shared = int(getattr(config, "shared_expert_intermediate_size", None) or shared)
    if config.model_type == "llama4_text":
        shared = width
    dense = int(getattr(config, "first_k_dense_replace", 0))
    return ExpertLayers(count, int(config.num_experts_per_tok), width, shared, dense)


def _latent(config: PretrainedConfig) -> LatentAttention:
    """Return the widths of DeepSeek's attention."""
    return LatentAttention(
        int(config.q_lora_rank or 0),
        int(config.kv_lora_rank),
        int(config.qk_rope_head_dim),
        int(config.v_head_dim),
    )


def _feed_forward(config: PretrainedConfig, hidden: int) -> int:
    """Return the width inside of the feed-forward; by default four times the stream's."""
    for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"):
        if getattr(config, name, None):
            return int(getattr(config, name))
    return int(getattr(config, "expansion_ratio", 4) * hidden)
