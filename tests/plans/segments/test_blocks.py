"""Blocks of captured models are known by what they compute, and cost what their sizes do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments.block_costs import BlockCosts
from gnnplace.plans.segments.blocks import (
    ATTENTION,
    BETWEEN,
    EXPERTS,
    GATE,
    KEYS,
    MULTIHEAD,
    NORM,
    PRODUCT,
    QUERIES,
    RESIDUAL,
    Block,
    find_blocks,
    list_unrecognised_modules,
)
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain, capture_layers
from gnnplace.plans.segments.cuts import find_cuts
from gnnplace.plans.segments.sized import SizedModelCosts, with_blocks
from gnnplace.problem import Cluster
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.problem.constraints.constraints import cluster_with_headroom
from gnnplace.tracing import make_workload

WORDS, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 16, 4
Mask = Callable[[torch.Tensor], torch.Tensor]


def triangle(scores: torch.Tensor) -> torch.Tensor:
    """Leave out later tokens."""
    ones = torch.ones(scores.shape[-2:])
    return scores.masked_fill(torch.tril(ones) == 0, -1e9)


def nothing(scores: torch.Tensor) -> torch.Tensor:
    """Leave out no token."""
    return scores


class WrittenAttention(nn.Module):
    """Attention as products and a softmax, with keys that heads share."""

    def __init__(self, mask: Mask, *, sinks: bool = False) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.mask = mask
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, 2 * size), nn.Linear(WIDTH, 2 * size)
        self.out, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.sinks = nn.Parameter(torch.zeros(HEADS)) if sinks else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def in_heads(y: torch.Tensor, count: int) -> torch.Tensor:
            return y.unflatten(-1, (count, -1)).transpose(1, 2)

        query = in_heads(self.query(x), HEADS)
        key, value = in_heads(self.key(x), 2), in_heads(self.value(x), 2)
        key, value = (y.repeat_interleave(HEADS // 2, 1) for y in (key, value))
        scores = self.mask(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]))
        if self.sinks is not None:
            sinks = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], -1)
        weights = self.dropout(F.softmax(scores, -1))[..., : x.shape[1]]
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class OwnModule(nn.Module):
    """PyTorch's own attention module, with or without weights to return."""

    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.inner(x, x, x, need_weights=self.need_weights)
        return mixed


class Scan(nn.Module):
    """A recurrence written out token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(x)
        state = torch.zeros_like(y[:, 0])
        states = []
        for token in range(y.shape[1]):
            state = torch.exp(-state) * 0.5 + y[:, token] * 2.0
            states.append(state)
        return torch.stack(states, 1)


class Layer(nn.Module):
    """A mixer of tokens and a gated feed-forward, each with a norm and a residual."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self.first, self.second = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.joined, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixer(self.first(x))
        gate, up = self.joined(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """An embedding, two layers, a head and a cross entropy."""

    def __init__(self, mixer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Layer(mixer()) for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return words, words.clone()


def model_blocks(model: str | nn.Module) -> tuple[Block, ...]:
    """The blocks of a model, captured in mixed precision."""
    example = None if isinstance(model, str) else inputs()
    workload = make_workload(model, example, None, fake=True)
    layers = capture_layers(workload, "bf16-mixed")
    return find_blocks(layers, find_cuts(layers.calls, layers.rules))


def pieces(blocks: tuple[Block, ...]) -> list[str]:
    """The kinds of all pieces, in order of their names."""
    return sorted(piece.kind for block in blocks for piece in block.pieces)


def test_every_call_of_a_layer_is_in_one_block():
    blocks = model_blocks(Model(lambda: WrittenAttention(triangle)))
    calls = [call for block in blocks for call in block.calls]
    assert len(calls) == len(set(calls))
    assert pieces(blocks) == sorted(2 * [GATE, NORM, NORM, RESIDUAL, RESIDUAL])
    products = [len(block.calls) for block in blocks if block.kind == PRODUCT]
    # Queries, keys and values are one joined product of each layer.
    assert sorted(products) == [1] * 7 + [3, 3]
    assert list_unrecognised_modules(blocks) == ()


@pytest.mark.parametrize(
    ("mixer", "kind", "is_recognised", "is_written_out", "is_causal"),
    [
        (lambda: WrittenAttention(triangle), ATTENTION, True, True, True),
        (lambda: WrittenAttention(nothing), ATTENTION, True, True, False),
        (lambda: WrittenAttention(triangle, sinks=True), ATTENTION, False, False, True),
        (lambda: OwnModule(need_weights=False), MULTIHEAD, True, False, False),
        (lambda: OwnModule(need_weights=True), MULTIHEAD, True, True, False),
    ],
)
def test_attention_is_known_by_its_calls(
    mixer, kind, is_recognised, is_written_out, is_causal
):
    blocks = [b for b in model_blocks(Model(mixer)) if b.kind == kind]
    assert len(blocks) == 2
    for block in blocks:
        assert block.is_recognised == is_recognised
        assert block.is_written_out == is_written_out
        assert block.is_causal == is_causal
    modules = () if is_recognised else ("blocks.*.mixer",)
    assert list_unrecognised_modules(blocks) == modules


def test_a_scan_that_is_written_out_is_not_recognised():
    blocks = model_blocks(Model(Scan))
    assert list_unrecognised_modules(blocks) == ("blocks.*.mixer",)
    (scan, *_) = [block for block in blocks if not block.is_recognised]
    assert scan.kind == BETWEEN


SIZES = (
    "num_hidden_layers=2&hidden_size=2048&num_attention_heads=16&vocab_size=32000"
    "&num_key_value_heads=8&length=2048&intermediate_size=5632"
)
DECODERS = {
    "llama": f"hf:llama?{SIZES}",
    "qwen3": f"hf:qwen3?{SIZES}&head_dim=128",
    "mixtral": f"hf:mixtral?{SIZES}&num_local_experts=4",
    "gpt2": "hf:gpt2?n_layer=2&n_embd=2048&n_head=16&vocab_size=32000&length=1024",
}
PLANS = (
    "dp=8,zero=3,microbatch_size=2,recompute=full",
    "dp=4,pp=2,microbatch_size=1,layers=1+1",
    "dp=2,tp=4,microbatch_size=1",
    "dp=2,tp=4,microbatch_size=1,sp=off",
)


@cache
def machine() -> Cluster:
    """Eight H100, with what libraries take of them."""
    return cluster_with_headroom(make_preset("nvswitch-h100-8"), "auto")


@cache
def chains(model: str) -> tuple[Chain, Chain]:
    """A captured decoder by its sizes, and by its blocks."""
    job = TrainingJob(model, batch=16, precision="bf16-mixed")
    by_sizes = capture_chain(job, machine())
    by_blocks = with_blocks(by_sizes, machine())
    assert isinstance(by_blocks.source, BlockCosts)
    return by_sizes, by_blocks


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_costs_by_its_blocks_what_it_costs_by_its_sizes(name):
    by_sizes, by_blocks = chains(DECODERS[name])
    assert isinstance(by_sizes.source, SizedModelCosts)
    kinds = machine().kinds
    sized, blocked = (c.costs(kinds, (1,), 4) for c in (by_sizes, by_blocks))
    assert sized is not None
    assert blocked is not None
    for columns, most in (
        (("forward",), 0.04),
        (("backward", "weights"), 0.04),
        (("recomputed",), 0.04),
        (("saved",), 0.03),
    ):
        sums = [
            sum(getattr(costs, column)[chain.layers >= 0].sum() for column in columns)
            for chain, costs in ((by_sizes, sized), (by_blocks, blocked))
        ]
        assert sums[1] == pytest.approx(sums[0], rel=most), columns
    for words in PLANS:
        plans = [
            price_given_plan(chain, machine(), words) for chain in (by_sizes, by_blocks)
        ]
        peaks = [max(e.all for e in plan.file.memory.values()) for plan in plans]
        passes = [plan.step_time - plan.file.parts["update"] for plan in plans]
        assert passes[1] == pytest.approx(passes[0], rel=0.04), words
        assert peaks[1] == pytest.approx(peaks[0], rel=0.03), words
    assert plans[1].file.source == "blocks"
    assert plans[1].file.recognised is not None
    assert plans[1].file.recognised.share > 0.999


def test_the_parts_of_a_mixture_are_found():
    blocks = model_blocks(DECODERS["mixtral"])
    assert sum(block.kind == EXPERTS for block in blocks) == 2
    found = pieces(blocks)
    assert [found.count(kind) for kind in (QUERIES, KEYS, NORM, RESIDUAL)] == [
        2,
        2,
        5,
        4,
    ]


def test_shards_take_their_parts_of_blocks():
    _, chain = chains(DECODERS["llama"])
    whole, parts = (chain.costs(machine().kinds, (n,), 4) for n in (1, 2))
    assert whole is not None
    assert parts is not None
    ratio = (parts.backward + parts.weights).sum() / (
        whole.backward + whole.weights
    ).sum()
    assert 0.5 < ratio < 0.75


def plan_of_own(mixer: Callable[[], nn.Module]) -> tuple[Chain, list[float]]:
    """A model of one's own as a chain, and the low end, the step and the high end of a plan."""
    job = TrainingJob(
        Model(mixer), inputs=inputs(), precision="bf16-mixed", accept_other_loss=True
    )
    chain = capture_chain(job, machine())
    plan = price_given_plan(chain, machine(), "dp=4,microbatch_size=1")
    assert plan.file.interval is not None
    low, high = plan.file.interval
    return chain, [low, plan.step_time, high]


def test_what_is_written_out_has_two_prices_and_the_interval_spans_both():
    chain, ends = plan_of_own(lambda: WrittenAttention(triangle, sinks=True))
    assert chain.recognition is not None
    assert chain.recognition.unrecognised == ("blocks.*.mixer",)
    assert 0.0 < chain.recognition.share < 1.0
    assert "not recognised: blocks.*.mixer" in chain.notices[-1]
    assert chain.alternative is not None
    eager, fused = (
        c.costs(machine().kinds, (1,), 1) for c in (chain, chain.alternative)
    )
    assert eager is not None
    assert fused is not None
    assert np.all(fused.forward <= eager.forward * (1 + 1e-9))
    assert fused.forward.sum() < eager.forward.sum()
    plan = price_given_plan(chain.alternative, machine(), "dp=4,microbatch_size=1")
    assert ends[0] < plan.step_time < ends[1] < ends[2]


def test_a_catalogue_s_model_that_writes_attention_out_says_so():
    model = (
        "hf:gpt_oss?num_hidden_layers=2&hidden_size=256&num_attention_heads=8&head_dim=32"
        "&vocab_size=512&num_key_value_heads=4&intermediate_size=256&length=1024"
        "&num_local_experts=4"
    )
    chain = capture_chain(
        TrainingJob(model, batch=8, precision="bf16-mixed"), machine()
    )
    assert isinstance(chain.source, SizedModelCosts)
    assert chain.recognition is not None
    assert chain.recognition.unrecognised == ("model.layers.*.self_attn",)
    plan = price_given_plan(chain, machine(), "dp=8,microbatch_size=1")
    eager = price_given_plan(
        chain.alternative or chain, machine(), "dp=8,microbatch_size=1"
    )
    assert plan.file.source == "sizes"
    assert plan.file.interval is not None
    assert plan.step_time < eager.step_time < plan.file.interval[1]
