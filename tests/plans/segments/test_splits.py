"""Splits of segments over shards: beside brute force, by bytes, and Megatron's."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.costs.collectives import ALL_GATHER
from gnnplace.errors import InputError
from gnnplace.plans.answers import find_plans, price_given_plan
from gnnplace.plans.job import SearchOptions, TrainingJob
from gnnplace.plans.mesh import Mesh
from gnnplace.plans.search.stage import Pricer
from gnnplace.plans.segments.chain import SplitChoice
from gnnplace.plans.segments.chains import capture_layer_chain
from gnnplace.plans.segments.splits import SegmentProblem, find_styles
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.sharding import best_strategy

CLUSTER = make_preset("nvlink-a100-8")
LLAMA = (
    "hf:llama?num_hidden_layers=2&hidden_size=64&intermediate_size=256&num_attention_heads=4"
    "&num_key_value_heads=4&vocab_size=256&tie_word_embeddings=false&length=16&batch=4"
)


class FeedForward(nn.Module):
    """Two products with a skip around them."""

    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.relu(self.up(self.norm(x))))


@pytest.fixture(scope="module")
def llama():
    return capture_layer_chain(TrainingJob(LLAMA, precision="bf16-master"), CLUSTER)


def feed_forward():
    inputs = (torch.randn(4, 8, 32), torch.randn(4, 8, 32))
    return capture_layer_chain(
        TrainingJob(FeedForward(), inputs, loss=functional.mse_loss), CLUSTER
    )


def total(problem, chosen):
    """Cost of a strategy: of its nodes and its edges."""
    nodes = sum(float(cost[k]) for cost, k in zip(problem.cost, chosen, strict=True))
    return nodes + sum(float(e.cost[chosen[e.u], chosen[e.v]]) for e in problem.edges)


@pytest.mark.parametrize("style", ["free", "weights", "examples"])
@pytest.mark.parametrize("border", ["whole", "tokens", "examples"])
@pytest.mark.parametrize("price", [0.0, 1e-9, 1e-6])
def test_no_split_of_a_block_weighs_less(style, border, price):
    weighs_no_less((2,), SplitChoice(style, "", border, price, 2 * price, 0.25))


@pytest.mark.parametrize(
    ("outer", "border"),
    [("context", "tokens"), ("examples", "examples,tokens"), ("free", "tokens,whole")],
)
@pytest.mark.parametrize("price", [0.0, 1e-6])
def test_no_split_over_two_axes_weighs_less(outer, border, price):
    weighs_no_less(
        (2, 2), SplitChoice("weights", outer, border, price, 2 * price, 0.25)
    )


def weighs_no_less(axes, choice):
    """Whether elimination finds what brute force does."""
    source = feed_forward().source
    calls = source._calls(0)
    assert len(calls) <= 8
    problem = SegmentProblem.of(
        source, 0, calls, "a100", (axes, 2), find_styles(choice)
    )
    problem = problem.weighted(choice)
    found = total(problem, best_strategy(problem).configuration)
    every = itertools.product(*(range(len(cost)) for cost in problem.cost))
    assert found == pytest.approx(
        min(total(problem, chosen) for chosen in every), rel=1e-9
    )


def test_a_dearer_byte_never_keeps_more_bytes(llama):
    pricer = Pricer(llama, llama.source.fabric, 4)
    held = []
    for price in (0.0, 1e-12, 1e-10, 1e-8):
        choice = SplitChoice(state=price, saved=price, step_share=0.25)
        sums = pricer.sums(Mesh(0, 1, 4), choice=choice)
        held.append(16.0 * sums.parameters[-1] + sums.saved[-1])
    assert held == sorted(held, reverse=True)
    assert held[-1] < held[0]


def test_tensor_parallelism_divides_all_matrices_and_their_state(llama):
    """16 bytes an element in bf16 with a float32 copy and Adam; norms are whole on each shard."""
    plan = price_given_plan(llama, CLUSTER, "tp=4,microbatch_size=1")
    (stage,) = plan.file.stages
    model = chain_parameters(llama)
    matrices = {name for name, shape in model.items() if len(shape) > 1}
    words = {name: stage.placements.get(name, ["R"])[-1] for name in matrices}
    assert {name for name, word in words.items() if word.startswith("S")} == matrices
    cut = sum(int(np.prod(model[n])) for n in matrices) / 4
    whole = sum(int(np.prod(shape)) for n, shape in model.items() if n not in matrices)
    assert plan.file.memory["gpu:0"].state == pytest.approx(16 * (cut + whole))
    assert stage.border == "tokens"
    parted = price_given_plan(llama, CLUSTER, "tp=4,microbatch_size=1,zero=1").file
    least = (
        16 * cut + (4 + 12 / 4) * whole
    )  # if gradients of all norms are sums over shards
    assert least <= parted.memory["gpu:0"].state < 16 * (cut + whole)
    apart = price_given_plan(llama, CLUSTER, "tp=4,sp=off,microbatch_size=1")
    assert apart.file.stages[0].border == "whole"


def chain_parameters(chain):
    return {
        v.name: v.shape
        for v in chain.source.layers.calls.values
        if v.source == "parameter"
    }


@pytest.mark.parametrize(
    "words",
    [
        "tp=4",
        "tp=2,pp=2",
        "shards=4",
        "tp=2,sp=off,dp=2",
        "tp=2,cp=2,dp=2",
        "tp=2,pp=2,regather=on,recompute=block:1",
    ],
)
def test_a_plan_that_is_given_again_takes_as_long(llama, words):
    plan = price_given_plan(llama, CLUSTER, f"{words},microbatch_size=1")
    again = price_given_plan(llama, CLUSTER, plan)
    assert again.step_time == pytest.approx(plan.step_time, rel=1e-9)
    assert again.file.memory == plan.file.memory
    assert again.file.stages == plan.file.stages


def test_a_stage_that_lacks_memory_takes_the_split_that_fits(llama):
    """Free splits are the fastest where all fits, and cut weights where it does not."""
    roomy = price_given_plan(llama, CLUSTER, "shards=4,microbatch_size=1")
    most = roomy.file.memory["gpu:0"].all - roomy.file.memory["gpu:0"].slack
    devices = tuple(
        d.model_copy(update={"memory": d.reserve + 0.7 * most}) for d in CLUSTER.devices
    )
    small = Cluster(devices, CLUSTER.links, CLUSTER.name)
    tight = price_given_plan(llama, small, "shards=4,microbatch_size=1")
    assert tight.feasible
    assert tight.step_time >= roomy.step_time


WIDE = (
    LLAMA.replace("=64&", "=1024&").replace("=256&", "=2048&").replace("h=16", "h=1024")
)


@pytest.fixture(scope="module")
def wide():
    return capture_layer_chain(TrainingJob(WIDE, precision="bf16-master"), CLUSTER)


def test_what_is_gathered_again_is_kept_as_a_part(wide):
    """Inputs of queries, gates and the head at least: tokens by width, of which 3 of 4 parts go."""
    plain, lean = (
        price_given_plan(
            wide, CLUSTER, f"tp=4,microbatch_size=1,regather={word}"
        ).file.stages[0]
        for word in ("off", "on")
    )
    assert lean.placements == plain.placements
    assert lean.seconds[:2] == plain.seconds[:2]
    size = 1024 * 1024 * 2
    gather = wide.source.fabric.collective(ALL_GATHER, size, range(4))
    count = (lean.seconds[2] - plain.seconds[2]) / gather
    assert round(count) >= 2 + 2 + 1
    assert count == pytest.approx(round(count), rel=1e-9)
    assert plain.saved - lean.saved == round(count) * size * 3 / 4


def test_what_is_computed_again_gathers_once(wide):
    words = "tp=4,microbatch_size=1,recompute=full"
    one, other = (
        price_given_plan(wide, CLUSTER, f"{words},regather={x}").file
        for x in ("off", "on")
    )
    assert one.step_time == pytest.approx(other.step_time, rel=1e-12)
    assert one.memory == other.memory


def test_a_stage_gathers_again_unasked_where_nothing_else_fits(wide):
    words = "tp=4,microbatch_size=1"
    entry = price_given_plan(wide, CLUSTER, words).file.memory["gpu:0"]
    for part in np.linspace(1.0, 0.5, 101):
        devices = tuple(
            d.model_copy(
                update={"memory": d.reserve + part * (entry.all - entry.slack)}
            )
            for d in CLUSTER.devices
        )
        small = Cluster(devices, CLUSTER.links, CLUSTER.name)
        found = price_given_plan(wide, small, words)
        asked = price_given_plan(wide, small, f"{words},regather=off")
        assert found.file.stages[0].regather == (not asked.feasible)
        if not asked.feasible:
            break
    assert found.feasible
    assert not asked.feasible


MIXTRAL = (
    "hf:mixtral?num_hidden_layers=2&hidden_size=512&intermediate_size=1024&num_attention_heads=8"
    "&num_key_value_heads=8&num_local_experts=8&num_experts_per_tok=2&vocab_size=1024"
    "&tie_word_embeddings=false&length=512&batch=64"
)


@pytest.fixture(scope="module")
def mixtral():
    return capture_layer_chain(
        TrainingJob(MIXTRAL, precision="bf16-master", optimizer="adamw"), CLUSTER
    )


def test_experts_of_replicas_have_their_part_of_the_state(mixtral):
    """16 bytes an element; ZeRO parts what every replica has over all, experts over none."""
    plan = price_given_plan(mixtral, CLUSTER, "dp=8,ep=8,microbatch_size=1,zero=1")
    (stage,) = plan.file.stages
    assert (stage.axes, stage.border, plan.file.microbatch_size) == (
        (8,),
        "examples",
        8,
    )
    shapes = chain_parameters(mixtral)
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    apart = sum(size for name, size in sizes.items() if ".experts." in name) / 8
    shared = sum(size for name, size in sizes.items() if ".experts." not in name)
    state = plan.file.memory["gpu:0"].state
    assert state == pytest.approx(16 * apart + (4 + 12 / 8) * shared)
    inside = price_given_plan(
        mixtral, CLUSTER, "dp=4,tp=2,ep=4,microbatch_size=1,zero=1"
    )
    (stage,) = inside.file.stages
    assert (stage.axes, stage.border) == ((4, 2), "examples,tokens")
    assert inside.file.memory["gpu:0"].state == pytest.approx(state, rel=0.15)


@pytest.mark.campaign
def test_a_search_is_no_slower_than_words_of_experts(mixtral):
    found = find_plans(mixtral, CLUSTER, SearchOptions(budget=0.0))[0]
    for words in (
        "dp=8,ep=8",
        "dp=4,tp=2,ep=4",
        "dp=8",
        "tp=8",
        "tp=4,cp=2",
        "dp=2,tp=2,cp=2",
    ):
        for size in (1, 4):
            given = price_given_plan(
                mixtral, CLUSTER, f"{words},microbatch_size={size},zero=1"
            )
            assert found.step_time <= given.step_time * (1 + 1e-9), words


def test_experts_that_a_model_does_not_have_are_refused(llama, mixtral):
    with pytest.raises(InputError, match="has no experts"):
        price_given_plan(llama, CLUSTER, "dp=2,ep=2,microbatch_size=1")
    with pytest.raises(InputError, match="8 experts have no 16 equal parts"):
        price_given_plan(
            mixtral, make_preset("dgx-h100-8x8"), "dp=16,ep=16,microbatch_size=1"
        )


def test_an_imbalance_is_priced_where_experts_are_apart(mixtral):
    """Captured twice: six seconds. Twice the rows are twice the flops of the fullest device."""
    uneven = capture_layer_chain(
        TrainingJob(MIXTRAL, precision="bf16-master", optimizer="adamw", imbalance=2.0),
        CLUSTER,
    )
    assert "2 times" in uneven.notices[-1]
    index = next(
        i for i, r in enumerate(mixtral.source.layers.rules) if r.kind == "experts"
    )
    for label in ("experts", "dispatch", "spread"):
        even, full = (
            c.source.parts.recorded((index, ((label, 4),), 8))
            for c in (mixtral, uneven)
        )
        assert products(full) == pytest.approx(2.0 * products(even), rel=0.01)
        assert full.largest == pytest.approx(2.0 * even.largest, rel=0.01)
    words = "dp=8,ep=8,microbatch_size=1,zero=1"
    even, full = (price_given_plan(c, CLUSTER, words) for c in (mixtral, uneven))
    assert even.step_time < full.step_time < 2.0 * even.step_time
    assert even.file.memory["gpu:0"].activations < full.file.memory["gpu:0"].activations
    whole = [
        price_given_plan(c, CLUSTER, "dp=8,microbatch_size=1").step_time
        for c in (mixtral, uneven)
    ]
    assert whole[0] == whole[1]
    with pytest.raises(InputError, match=r"imbalance 0[.]5: must be from 1"):
        capture_layer_chain(TrainingJob(MIXTRAL, imbalance=0.5), CLUSTER)


def products(recorded):
    """Sizes of the products of a forward pass, multiplied."""
    rows = recorded.forward.rows
    return sum(float(np.prod(size[size > 0])) for op, size in zip(rows.op, rows.sizes, strict=True)
               if op == "bmm")  # fmt: skip
