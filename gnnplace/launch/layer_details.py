"""Details of a model's layers besides their sizes, for launch files.

Sizes decide the cost of a step, and different models may share them. Rotary base and scaling, the
epsilon of norms, and biases of queries, keys and values do not change the cost, but they make the
model this one: they are read from the catalogue and written if a launcher has keys for them. Other
features of a type's layers (`FEATURES`), and what the catalogue does not know, are lines of the
answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gnnplace.models import CatalogueModel, find_model

LLAMA, YARN = "llama3", "yarn"
SIGMOID, SOFTMAX = "sigmoid", "softmax"
QUERY_BIASES = ("qwen2", "qwen2_moe", "glm4_moe")
"""Types whose queries, keys and values have biases, and nothing else of a gated layer."""
PLAIN = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen3_moe",
    "phi3",
    "gpt2",
    "deepseek_v2",
    "deepseek_v3",
)
"""Types whose layers are those of the launchers, apart from what `LayerDetails` has."""
FEATURES: Mapping[str, str] = {
    "bloom": "positions added to scores (ALiBi), a norm behind the embedding",
    "falcon": "attention beside the feed-forward, one key and value head",
    "gemma": "GELU gates, norms of weights plus one, a scaled embedding",
    "gemma2": "GELU gates, norms behind blocks, soft caps of scores and logits, windows of every "
    "other layer",
    "gemma3_text": "GELU gates, norms behind blocks, windows and a second rotary base of most "
    "layers",
    "glm": "rotary positions of half of a head, interleaved",
    "glm4": "norms behind blocks, rotary positions of half of a head",
    "glm4_moe": "rotary positions of half of a head, a router of sigmoids with a bias",
    "gpt_bigcode": "one key and value head, learned positions",
    "gpt_neo": "windows of every other layer, scores that are not scaled",
    "gpt_neox": "attention beside the feed-forward, rotary positions of a part of a head",
    "gpt_oss": "sinks of attention, windows of every other layer, a gate that is clamped",
    "gptj": "attention beside the feed-forward, rotary positions of a part of a head",
    "granite": "multipliers of the embedding, scores, residuals and logits",
    "granitemoe": "multipliers of the embedding, scores, residuals and logits",
    "llama4_text": "attention in chunks, layers without positions, a gate on the expert's input",
    "minimax_m2": "norms over all queries and keys, a router of sigmoids with a bias",
    "mpt": "positions added to scores (ALiBi), no biases",
    "nemotron": "a squared ReLU, norms of weights plus one, rotary positions of half of a head",
    "olmo": "norms without weights",
    "olmo2": "norms behind blocks and over all queries and keys",
    "olmoe": "norms over all queries and keys",
    "opt": "ReLU",
    "phi": "attention beside the feed-forward, rotary positions of a part of a head",
    "phimoe": "a router that draws, norms with biases",
    "qwen2_moe": "a gate of the shared expert",
    "smollm3": "layers without positions",
    "stablelm": "rotary positions of a part of a head, norms with biases",
    "starcoder2": "a GELU without a gate, biases, rotary positions",
}
"""What layers of a type have that no file here says."""
TORCHTITAN_TYPES = ("gpt_oss",)
"""Types of `FEATURES` that torchtitan has configurations of, with all that their layers have."""
BESIDE_LLAMA: Mapping[str, str] = {
    "gpt2": "learned positions, biases and a feed-forward without a gate",
    "qwen3": "norms of each head's queries and keys",
    "qwen3_moe": "norms of each head's queries and keys, and experts",
    "mixtral": "experts",
    "deepseek_v2": "latent attention and experts",
    "deepseek_v3": "latent attention and experts",
    **FEATURES,
}
"""What layers of a type have that Llama's have not."""


@dataclass(frozen=True)
class Router:
    """How a layer of DeepSeek's chooses the experts of a token.

    Source: DeepSeek-V2, 2024, arXiv 2405.04434; DeepSeek-V3, 2024, arXiv 2412.19437.

    Attributes:
        score: What scores pass through, `sigmoid` (with a bias that balances them) or `softmax`.
        scale: The factor of the chosen experts' weights.
        groups: Groups that experts are in; 1: all are in one.
        chosen_groups: Groups that a token's experts may be of.
    """

    score: str
    scale: float
    groups: int = 1
    chosen_groups: int = 1


@dataclass(frozen=True)
class LayerDetails:
    """Properties of a model's layers other than their sizes.

    Attributes:
        type: The `model_type` of transformers.
        rotary_base: Base of rotary positions; None if it is not known or there are none.
        norm_epsilon: Epsilon of the norms; None if it is not known.
        rotary_scaling: The `rope_scaling` of a `config.json`; empty for none.
        query_biases: Whether queries, keys and values have biases, unlike other products.
        rotary_part: The part of a head that has rotary positions.
        router: How experts are chosen, of DeepSeek's layers; None if it is not known.
        name: Name of the model in the catalogue; empty if it is not in it.
    """

    type: str
    rotary_base: float | None = None
    norm_epsilon: float | None = None
    rotary_scaling: tuple[tuple[str, Any], ...] = ()
    query_biases: bool = False
    rotary_part: float = 1.0
    router: Router | None = None
    name: str = ""

    @property
    def scaling(self) -> dict[str, Any]:
        """Return the rotary scaling by its keys."""
        return dict(self.rotary_scaling)

    @property
    def is_gated(self) -> bool:
        """Return whether layers of this type have rotary positions and RMSNorm: all but GPT-2's."""
        return self.type != "gpt2"

    def unsaid(
        self, *, scalings: tuple[str, ...] = (LLAMA,), own_types: tuple[str, ...] = ()
    ) -> Iterator[str]:
        """Yield a line for each thing that a launcher's file does not say.

        Args:
            scalings: Kinds of rotary scaling that the launcher has keys for.
            own_types: Types that the launcher has configurations of, with all that they have.
        """
        if self.type in own_types:
            return
        if self.type not in PLAIN:
            feature = FEATURES.get(self.type, "layers of its own")
            trained = "the file trains plain layers of the same sizes"
            yield f"model: {self.type} has {feature}; {trained}"
        kind = self.scaling.get("rope_type", "")
        if kind and kind not in scalings:
            yield f"rotary scaling {kind}: is not written; set it before weights are loaded"
        if not self.is_gated or self.type in FEATURES:
            return
        missing = [
            name
            for name, value in (
                ("rotary base", self.rotary_base),
                ("norm epsilon", self.norm_epsilon),
            )
            if value is None
        ]
        if missing:
            yield f"{', '.join(missing)}: not known of this model; the launcher's default counts"


def layer_details(model: str) -> LayerDetails | None:
    """Return what the catalogue knows of a model's layers; None if it is not there."""
    row = find_model(model)
    if row is None:
        return None
    scaling = row.details.get("rotary_scaling", {})
    return LayerDetails(
        type=row.type,
        rotary_base=row.details.get("rotary_base", row.config.get("rope_theta")),
        norm_epsilon=row.details.get("norm_epsilon"),
        rotary_scaling=tuple(sorted(scaling.items())),
        query_biases=row.type in QUERY_BIASES,
        rotary_part=row.config.get("partial_rotary_factor", 1.0),
        router=_router(row),
        name=row.name,
    )


def _router(row: CatalogueModel) -> Router | None:
    """Return how experts of DeepSeek's layers are chosen; None where that is not known."""
    if "router_scale" not in row.details:
        return None
    return Router(
        score=SIGMOID if row.type == "deepseek_v3" else SOFTMAX,
        scale=row.details["router_scale"],
        groups=row.config.get("n_group", 1),
        chosen_groups=row.config.get("topk_group", 1),
    )
