"""Stages of whole layers: cut where layers begin, refused where numbers do not fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.planning.plans import plan_model
from gnnplace.plans.given import draft_spec, find_layer_bounds
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import find_layer
from gnnplace.plans.search.draft import compute_lack
from gnnplace.plans.search.space import SIZES, micro_batch_sizes
from gnnplace.plans.search.stage import Pricer
from gnnplace.plans.segments.chain import MICROBATCHES, layer_starts, list_divisors
from gnnplace.plans.spec import WORDS, parse_spec
from tests.plans.toys import chain, cluster
from tests.run.planned.toys import cpus


def draft_of_words(model, cluster, words):
    return draft_spec(model, cluster, parse_spec(words))


@pytest.fixture
def model():
    """Embedding, four layers of two segments each, head."""
    names = [
        "wte",
        *(f"h.{k // 2}.{'attn' if k % 2 == 0 else 'mlp.0'}" for k in range(8)),
        "head",
    ]
    made = chain(np.random.default_rng(0), count=len(names))
    pairs = zip(made.segments, names, strict=True)
    return replace(
        made, segments=tuple(replace(s, modules=(name,)) for s, name in pairs)
    )


def test_a_layer_is_the_outermost_numbered_module():
    assert find_layer("transformer.h.3.attn.0") == "transformer.h.3"
    assert find_layer("head") == ""


def test_layers_begin_where_they_compute_first(model):
    assert layer_starts(model.segments) == {"h.0": 1, "h.1": 3, "h.2": 5, "h.3": 7}


@pytest.mark.parametrize(
    ("words", "stages", "bounds"),
    [
        ("equal", 2, [0, 5, 10]),
        ("equal", 4, [0, 3, 5, 7, 10]),
        ("3+1", 2, [0, 7, 10]),
        ("1+2+1", 3, [0, 3, 7, 10]),
        ("0+2+2", 3, [0, 1, 5, 10]),
        ("2+2+0", 3, [0, 5, 9, 10]),
    ],
)
def test_what_is_before_the_first_layer_is_of_the_first_stage(
    model, words, stages, bounds
):
    assert find_layer_bounds(model, WORDS["layers"].read(words), stages) == bounds


@pytest.mark.parametrize(
    ("words", "stages", "told"),
    [
        ("equal", 3, "4 layers are no multiple of 3"),
        ("2+1", 2, "whose sum is the model's 4 layers"),
        ("2+2", 3, "must be 3 numbers"),
        ("2+0+2", 3, "cannot be cut from what is before it"),
        ("4+0+0", 3, "cannot be cut from what is before it"),
    ],
)
def test_numbers_that_do_not_fit_are_one_line(model, words, stages, told):
    with pytest.raises(InputError, match=told) as caught:
        find_layer_bounds(model, WORDS["layers"].read(words), stages)
    assert "\n" not in str(caught.value)


def test_a_given_plan_has_the_layers_that_it_names(model):
    draft = draft_of_words(model, cluster(2), "pp=2,microbatch_size=1,layers=3+1")
    assert [stage.last for stage in draft.stages] == [7, 10]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tp=2,shards=2", "give one of them"),
        ("shards=0", "a whole number from 1 on"),
        ("cp=2,tp=2,shards=2", "shards and tp and cp: give one of them"),
        ("ep=2", "ep divides dp"),
        ("cp=4,ep=2", "the shards that cut tokens, ep=cp"),
        ("cp=2,tp=4", "dp x tp x cp x pp is 8"),
        ("shards=3,pp=2", "dp x shards x pp is 6"),
        ("tp=2,regather=yes", "regather=yes: must be one of on, off"),
        ("pp=2,regather=on", "one shard gathers nothing; give tp, cp or shards"),
        ("tp=2,sp=some", "sp=some: must be one of on, off"),
        (
            "pp=2,layers=2+x",
            "layers=2[+]x: must be one of equal, cost, or numbers such as 6",
        ),
    ],
)
def test_words_of_shards_that_do_not_fit_are_one_line(model, words, told):
    with pytest.raises(InputError, match=told) as caught:
        draft_of_words(model, cluster(4), f"{words},microbatch_size=1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["pp=2", "pp=3,zero=1", "pp=2,tp=2,zero=1"])
@pytest.mark.parametrize("seed", range(6))
def test_stages_are_as_even_as_bytes_allow(words, seed):
    model = chain(np.random.default_rng(seed), count=7, batch=6)
    ranks, count = int(words[3]), 4 if "tp" in words else int(words[3])
    words = f"{words},microbatch_size=1"
    pricer = Pricer(model, MeshFabric(cluster(count)), 1)
    free = draft_of_words(model, cluster(count), words)

    def cut_at(bounds):
        stages = zip(free.stages, bounds, bounds[1:], strict=False)
        return replace(
            free, stages=tuple(replace(s, first=a, last=b) for s, a, b in stages)
        )

    cuts = [cut_at([0, *own, 7]) for own in combinations(range(1, 7), ranks - 1)]
    need = {draft: -compute_lack(pricer, draft) for draft in cuts}
    half = (
        max(need.values()) + need[free]
    ) / 2  # between the leanest and the most even cuts
    machine = cluster(count, memory=1e9 - half + 0.01)
    own = Pricer(model, MeshFabric(machine), 1)
    fitting = [draft for draft in cuts if compute_lack(own, draft) <= 0]
    found = draft_of_words(model, machine, words)
    assert fitting
    assert compute_lack(own, found) <= 0
    assert largest(own, found) <= min(largest(own, draft) for draft in fitting) * 1.001


def largest(pricer, draft):
    return max(pricer.cost(stage).microbatch for stage in draft.stages)


@pytest.mark.parametrize(
    ("word", "again"),
    [
        ("none", [set(), set()]),
        ("full", [set(range(7)), set(range(7, 10))]),
        ("block:1", [{1, 2}, {7, 8, 9}]),
        ("block:2", [{1, 2, 3, 4}, {7, 8, 9}]),
        ("block:9", [{*range(1, 7)}, {7, 8, 9}]),
    ],
)
def test_what_is_recomputed_is_all_or_the_first_layers_of_every_stage(
    model, word, again
):
    words = f"pp=2,microbatch_size=1,layers=3+1,recompute={word}"
    draft = draft_of_words(model, cluster(2), words)
    assert [set(stage.recompute) for stage in draft.stages] == again


def test_a_word_of_recomputation_that_there_is_not_is_one_line(model):
    with pytest.raises(InputError, match="recompute=block:0: must be one of none"):
        draft_of_words(model, cluster(2), "microbatch_size=1,recompute=block:0")


@pytest.mark.parametrize(
    ("words", "batch", "told"),
    [
        ("dp=2,compile=on", 8, "priced and run as eager PyTorch"),
        ("cuda_graphs=layers", None, "priced and run as eager PyTorch"),
        ("dp=2,foo=3", None, "'foo=3': must be NAME=VALUE"),
        ("dp=2,dp=2", None, "'dp' is repeated"),
        ("dp=two", None, "dp=two: must be a whole number"),
        ("zero=4", None, "zero=4: must be one of 0, 1, 2, 3"),
        ("dp=5", None, "dp x tp x pp is 5; .* has 2 devices"),
        ("schedule=best", None, "schedule=best: must be one of 1f1b"),
        ("recompute=some", None, "recompute=some: must be one of none"),
        ("layers=1+x", None, "layers=1[+]x: must be one of equal"),
        ("dp=2", 3, "a batch of 3 is no multiple of 2 replicas"),
        ("dp=2", 10**9, "makes 500000000 micro-batches; a step has at most"),
    ],
)
def test_words_are_refused_before_the_model_is_captured(words, batch, told):
    """The model's forward pass must not run; were it captured, that would be what is said."""

    class Untouched(torch.nn.Module):
        def forward(self, x):
            raise AssertionError("captured")

    with pytest.raises(InputError, match=told) as caught:
        plan_model(Untouched(), cpus(2), torch.ones(4, 8), batch=batch, given=words)
    assert "\n" not in str(caught.value)


def test_divisors_are_those_of_the_definition():
    for number in (1, 2, 12, 49, 97, 360):
        assert list_divisors(number) == [
            d for d in range(1, number + 1) if number % d == 0
        ]
    sizes = micro_batch_sizes(10**9)  # within a moment, and none with a billion shares
    assert 3 < len(sizes) <= SIZES
    assert 10**9 // min(sizes) <= MICROBATCHES


class Averaging(nn.Linear):
    """A layer that keeps a mean of what it reads in a buffer that it is given."""

    def forward(self, x, mean):
        mean.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        return (super().forward(x) - mean.clone()).relu()


class Sharing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Averaging(4, 4) for _ in range(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, self.mean)
        return x


def test_layers_that_stay_in_one_stage_are_told_with_their_buffer():
    words = (
        r"2 stages, but the model can be cut into 1 at most "
        r"\(buffer 'mean' is changed by .*own\)"
    )
    with pytest.raises(InputError, match=words):
        plan_model(Sharing(), "cpu:2", (torch.ones(4, 4),), given="pp=2")
