"""Decoders of one's own are known by what they compute; everything else is said to be none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gnnplace.errors import InputError
from gnnplace.planning.plans import plan_devices
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, find_decoder
from gnnplace.plans.decoders.named import make_sized_model
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments.block_costs import BlockCosts
from gnnplace.plans.segments.chains import capture_chain, capture_layers
from gnnplace.plans.segments.recognition import recognise_sizes
from gnnplace.plans.segments.sized import SizedModelCosts
from gnnplace.tracing import make_workload

WORDS, WIDTH, HEADS, KEYS, INSIDE, LENGTH, LAYERS = 96, 32, 4, 2, 48, 16, 2


class RootMeanSquareNorm(nn.Module):
    """A norm written out, as models of one's own have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return scaled.type_as(x) * self.weight


class GatedLayer(nn.Module):
    """A Llama's layer: heads share keys, and the feed-forward has a gate."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.options = options
        size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, KEYS * size, bias=False)
        self.value = nn.Linear(WIDTH, KEYS * size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, INSIDE, bias=False)
        self.up = nn.Linear(WIDTH, INSIDE, bias=False)
        self.down = nn.Linear(INSIDE, WIDTH, bias=False)
        self.first, self.second = RootMeanSquareNorm(WIDTH), RootMeanSquareNorm(WIDTH)
        if options.get("extra"):
            self.extra = nn.Linear(WIDTH, WIDTH, bias=False)

    def _heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.unflatten(-1, (count, WIDTH // HEADS)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        query, key = self._heads(self.query(y), HEADS), self._heads(self.key(y), KEYS)
        value = self._heads(self.value(y), KEYS)
        key, value = (z.repeat_interleave(HEADS // KEYS, 1) for z in (key, value))
        if self.options.get("eager"):
            scores = query @ key.transpose(-2, -1)
            mixed = torch.softmax(scores, -1) @ value
        else:
            is_causal = not self.options.get("both_ways", False)
            mixed = F.scaled_dot_product_attention(
                query, key, value, is_causal=is_causal
            )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x + self.extra(x) if self.options.get("extra") else x


class PlainLayer(nn.Module):
    """A GPT's layer: one product for queries, keys and values, two in the feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.joined(self.first(x)).split(WIDTH, dim=2)
        heads = (z.unflatten(-1, (HEADS, -1)).transpose(1, 2) for z in parts)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """An embedding, layers, a norm, a head and the cross entropy."""

    def __init__(self, layers: list[nn.Module], *, tied: bool, positions: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if positions else None
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(WIDTH) if positions else RootMeanSquareNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        if self.places is not None:
            x = x + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def inputs(batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.zeros(batch, LENGTH, dtype=torch.int64)
    return words, words.clone()


def gated(**options: bool) -> Decoder:
    layers: list[nn.Module] = [GatedLayer(**options) for _ in range(LAYERS)]
    return Decoder(layers, tied=False, positions=False)


def plain(*, tied: bool = True) -> Decoder:
    layers: list[nn.Module] = [PlainLayer() for _ in range(LAYERS)]
    return Decoder(layers, tied=tied, positions=True)


def recognised(model: nn.Module) -> DecoderSizes | str:
    workload = make_workload(model, inputs(), None, fake=True)
    return recognise_sizes(capture_layers(workload, "32-true"), workload.model, 4)


def test_a_llama_of_one_s_own_has_the_sizes_of_its_configuration():
    query = (
        f"hf:llama?num_hidden_layers={LAYERS}&hidden_size={WIDTH}&intermediate_size={INSIDE}"
        f"&vocab_size={WORDS}&num_attention_heads={HEADS}&num_key_value_heads={KEYS}"
        f"&length={LENGTH}&batch=4"
    )
    assert recognised(gated()) == find_decoder(query)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gpt_of_one_s_own_has_its_positions_biases_and_ties(tied):
    sizes = recognised(plain(tied=tied))
    assert isinstance(sizes, DecoderSizes)
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.kv_heads) == (
        LAYERS,
        WIDTH,
        HEADS,
        4,
    )
    assert (sizes.gated, sizes.tied, sizes.biases) == (False, tied, True)
    assert (sizes.positions, sizes.vocabulary, sizes.feed_forward) == (
        LENGTH,
        WORDS,
        4 * WIDTH,
    )
    assert sizes.joins_queries
    assert sizes.parameters == sum(p.numel() for p in plain(tied=tied).parameters())


EXPERTS, CHOSEN = 4, 2


class Expert(nn.Module):
    """A gated feed-forward."""

    def __init__(self, width: int = INSIDE) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, width, bias=False)
        self.up = nn.Linear(WIDTH, width, bias=False)
        self.down = nn.Linear(width, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Listed(nn.Module):
    """Experts in a list, all of which see every token; scores of those not chosen are zero."""

    def __init__(self, *, shared: bool = False, uneven: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        widths = [INSIDE] * (EXPERTS - 1) + [2 * INSIDE if uneven else INSIDE]
        self.experts = nn.ModuleList(Expert(width) for width in widths)
        self.shared = Expert(2 * INSIDE) if shared else None

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).softmax(-1)
        best, index = scores.topk(CHOSEN, -1)
        return torch.zeros_like(scores).scatter(-1, index, best / best.sum(-1, True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x)
        made = sum(scores[..., k : k + 1] * e(x) for k, e in enumerate(self.experts))
        return made if self.shared is None else made + self.shared(x)


class Stacked(Listed):
    """The same with stacks of matrices, gate and up joined."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = None
        self.up = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 2 * INSIDE))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INSIDE, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        gate, up = torch.bmm(rows.expand(EXPERTS, -1, -1), self.up).chunk(2, -1)
        made = torch.bmm(F.silu(gate) * up, self.down)
        return (made * self.scores(rows).t()[..., None]).sum(0).view_as(x)


class MixtureLayer(GatedLayer):
    """A Mixtral's layer."""

    def __init__(self, mixture: nn.Module) -> None:
        super().__init__()
        self.gate = self.up = self.down = None
        self.mixture = mixture

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        heads = (
            self._heads(self.query(y), HEADS),
            self._heads(self.key(y), KEYS).repeat_interleave(HEADS // KEYS, 1),
            self._heads(self.value(y), KEYS).repeat_interleave(HEADS // KEYS, 1),
        )
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mixture(self.second(x))


def mixture(make: Callable[[], nn.Module]) -> Decoder:
    layers: list[nn.Module] = [MixtureLayer(make()) for _ in range(LAYERS)]
    return Decoder(layers, tied=False, positions=False)


def recognised_mixture(model: nn.Module) -> DecoderSizes | str:
    workload = make_workload(model, inputs(), None, fake=True)
    layers = capture_layers(workload, "32-true")
    return recognise_sizes(layers, workload.model, 4, mixtures=True)


@pytest.mark.parametrize("make", [Listed, Stacked])
def test_a_mixture_of_one_s_own_has_the_sizes_of_mixtral(make):
    query = (
        f"hf:mixtral?num_hidden_layers={LAYERS}&hidden_size={WIDTH}&intermediate_size={INSIDE}"
        f"&vocab_size={WORDS}&num_attention_heads={HEADS}&num_key_value_heads={KEYS}"
        f"&num_local_experts={EXPERTS}&num_experts_per_tok={CHOSEN}&length={LENGTH}&batch=4"
    )
    assert recognised_mixture(mixture(make)) == find_decoder(query)
    # By our runner all experts are computed, which no sizes say.
    assert isinstance(recognised(mixture(make)), str)


def test_what_every_token_passes_is_beside_the_experts():
    sizes = recognised_mixture(mixture(lambda: Listed(shared=True)))
    assert isinstance(sizes, DecoderSizes)
    assert sizes.experts == ExpertLayers(EXPERTS, CHOSEN, INSIDE, shared=2 * INSIDE)


def test_experts_that_differ_are_none():
    assert "experts that are alike" in str(
        recognised_mixture(mixture(lambda: Listed(uneven=True)))
    )


def frozen() -> Decoder:
    model = gated()
    model.words.weight.requires_grad_(False)
    return model


def unlike() -> Decoder:
    model = gated()
    block = model.blocks[1]
    assert isinstance(block, GatedLayer)
    block.gate, block.up = (nn.Linear(WIDTH, 2 * INSIDE, bias=False) for _ in range(2))
    block.down = nn.Linear(2 * INSIDE, WIDTH, bias=False)
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (gated(eager=True), "blocks.0.matmul: attention written out"),
        (gated(both_ways=True), "not said to be causal"),
        (gated(extra=True), "4 products beside attention"),
        (frozen(), "words.weight is not trained"),
        (unlike(), "blocks.1 has other sizes than blocks.0"),
        (
            nn.Sequential(nn.Linear(WIDTH, WIDTH)),
            "one call of attention|calls of attention",
        ),
    ],
)
def test_other_models_are_none_and_the_reason_is_said(model, reason):
    example = (torch.zeros(4, WIDTH),) if isinstance(model, nn.Sequential) else inputs()
    workload = make_workload(model, example, None, fake=True)
    sizes = recognise_sizes(capture_layers(workload, "32-true"), workload.model, 4)
    assert isinstance(sizes, str)
    assert re.search(reason, sizes), sizes


def test_what_is_recognised_is_priced_by_its_sizes_and_searched_for_launchers():
    devices = plan_devices("nvswitch-h100-8", None, None)
    job = TrainingJob(
        gated(), inputs=inputs(), precision="bf16-mixed", accept_other_loss=True
    )
    chain = capture_chain(job, devices)
    assert isinstance(chain.source, SizedModelCosts)
    assert "recognised by its calls: 2 gated decoder layers" in chain.notices[-1]
    named = make_sized_model(job, devices)
    assert named.sizes == chain.source.sizes.setting.decoder
    captured = capture_chain(replace(job, model=gated(eager=True)), devices)
    assert isinstance(captured.source, BlockCosts)
    assert "attention written out: blocks.*" in captured.notices[-1]
    assert "blocks.0.matmul: attention written out" in captured.notices[-2]
    with pytest.raises(InputError, match="attention written out"):
        make_sized_model(TrainingJob(gated(eager=True), inputs=inputs()), devices)
