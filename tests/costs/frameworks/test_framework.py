"""Exchanges of replicas and shards, by seconds that are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from gnnplace.costs import RunningWords, make_running_framework
from gnnplace.costs.collectives import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from gnnplace.costs.frameworks.framework import Framework, ReplicatedParameters
from gnnplace.errors import InputError
from gnnplace.explaining.framework_variants import IdleNetwork, with_network
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.layer import layer_passes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price, price_spec
from gnnplace.problem.cluster.presets import make_preset

SIZES = DecoderSizes(16, 4096, 32, 8, 14336, 4096, 32000, batch=512)
EXPERTS = replace(SIZES, experts=ExpertLayers(8, 2, 14336))
SIZES_OF_TWO_LAYERS = replace(SIZES, layers=2).parameters
CARD, HOP = 50e9 * 0.9, 5e-6
"""Bytes a second of a GPU's card of a DGX H100, and seconds of a ring's step."""


@cache
def setting(
    framework: str = "megatron-lm",
    cluster: str = "dgx-h100-8x8",
    environment: str | None = None,
    sizes: DecoderSizes = SIZES,
) -> PricingSetting:
    """Return what plans of a small Llama are priced on."""
    return make_pricing_setting(
        sizes,
        make_preset(cluster),
        framework_name=framework,
        environment_name=environment,
    )


def running(hides: str) -> Framework:
    """Return Megatron-LM on 64 H100 as it hides some exchanges of replicas, bfloat16 sums."""
    return make_running_framework(
        setting().framework, RunningWords(gradients="same", hides=hides)
    )


@pytest.mark.parametrize(
    ("framework", "cluster", "environment", "rate", "half"),
    [
        ("megatron-lm", "dgx-h100-8x8", None, 585e12, 660),
        ("megatron-lm", "dgx-h100-8x8", "flash-attention", 375e12, 1150),
        ("megatron-lm", "superpod-a100-80-2x8", None, 147e12, 700),
        ("pytorch", "dgx-h100-8x8", "transformer-engine", 585e12, 660),
        ("pytorch", "dgx-h100-8x8", None, 177.8e12, 1150),
    ],
)
def test_attention_has_the_rate_of_its_library(
    framework: str, cluster: str, environment: str | None, rate: float, half: int
) -> None:
    """2 T h (S + S0) operations of heads of 128 take their time at the rate."""
    kernels = setting(framework, cluster, environment).framework.kernels
    seconds = 2 * 8192 * 4096 * (8192 + half) / rate
    assert kernels.attend(8192, 8192, 4096, 128) == pytest.approx(seconds)


def test_an_environment_may_replace_constants_of_the_hardware() -> None:
    """On NVIDIA's clusters hidden gathers cost a quarter of themselves, and products 1.09 times."""
    plain, cluster = (
        setting("pytorch", environment=environment).framework
        for environment in (None, "nvidia-h100")
    )
    assert plain.hidden_seconds(1.0, 2.0) == pytest.approx(0.77)
    assert cluster.hidden_seconds(1.0, 2.0) == pytest.approx(0.25)
    shape = [(4096, 4096, 4096)]
    longer = cluster.kernels.products(shape) / plain.kernels.products(shape)
    assert longer == pytest.approx(1.09)


def test_what_a_cluster_takes_besides_tensors_is_its_environments() -> None:
    """The 9.5 GiB of bigscience are not Megatron-DeepSpeed's elsewhere, which has 1.2."""
    words = PlanSpec(dp=8, tp=2, zero=1, recompute="full")
    plain, cluster = (
        price(setting("megatron-deepspeed", "superpod-a100-80-2x8", name), words)
        for name in (None, "jean-zay-a100")
    )
    assert plain.peak is not None
    assert cluster.peak is not None
    assert cluster.peak - plain.peak == pytest.approx((9.5 - 1.2) * 2**30)
    assert cluster.allocated == plain.allocated


def test_two_kernels_of_attention_are_refused() -> None:
    """Environments join by +, but one step has one kernel of attention."""
    joined = setting(environment="flash-attention+unfused-loss").framework
    assert joined.kernels.attention == "flash"
    assert joined.constants["logit_forward"] == 38
    with pytest.raises(InputError, match="two kernels of attention"):
        setting(environment="flash-attention+unfused-attention")
    with pytest.raises(InputError, match="'slow': unknown"):
        setting(environment="flash-attention+slow")


def test_gradients_under_zero_are_scattered_and_parameters_gathered() -> None:
    """Eight replicas, one a server: 7/8 of the bytes pass a card, and seven steps of a ring.

    Hidden, what the window covers costs a quarter of itself; the bucket is the whole.
    """
    parameters = ReplicatedParameters(dense=4e7, experts=0.0, num_layers=4, largest=1e6)
    bare, hidden = running("none"), running("reduce+gather")
    group = bare.replica_group(count=8, shards=8, tp=8)
    assert (group.members, group.copies) == (1, 8)
    scattered = 7 / 8 * 2 * 4e7 / CARD + 7 * HOP
    exchanges = bare.replica_exchanges(1, parameters, group)
    assert exchanges.scattered == pytest.approx(scattered)
    assert exchanges.bucketed == pytest.approx(scattered)
    assert exchanges.gathered == pytest.approx(scattered)
    assert bare.reduction(1, exchanges, 1.0, 1.0) == pytest.approx(2 * scattered)
    assert hidden.reduction(1, exchanges, 1.0, 1.0) == pytest.approx(
        0.25 * 2 * scattered
    )
    # A window of half the scatter hides half of it.
    half = scattered / 2
    assert hidden.reduction(1, exchanges, 1.0, half) == pytest.approx(
        1.25 * half + 0.25 * scattered
    )
    # Without ZeRO all gradients are summed on every replica.
    reduced = bare.replica_exchanges(0, parameters, group)
    assert reduced.gathered == 0
    assert reduced.scattered == pytest.approx(bare.network.reduce(8, 8e7, 1))


def test_buckets_have_a_latency_each() -> None:
    """Ten buckets of 40 million gradients start ten rings."""
    parameters = ReplicatedParameters(dense=4e8, experts=0.0, num_layers=4, largest=1e6)
    framework = running("reduce")
    group = framework.replica_group(count=8, shards=8, tp=8)
    exchanges = framework.replica_exchanges(1, parameters, group)
    assert exchanges.bucketed == pytest.approx(exchanges.scattered + 9 * 7 * HOP)


def test_experts_are_summed_over_the_devices_that_have_the_same() -> None:
    """Of 8 replicas of 8 shards on 64 GPUs ep 4 leaves two copies, whole experts on shards 16."""
    framework = setting().framework
    cut = framework.replica_group(count=8, shards=8, tp=8, experts=4)
    assert (cut.copies, cut.expert_shards, cut.near_copies) == (2, 2, 1)
    whole = framework.replica_group(count=8, shards=8, tp=8, experts=4, expert_tp=1)
    assert (whole.copies, whole.expert_shards, whole.near_copies) == (16, 16, 2)


def test_an_all_to_all_over_servers_passes_the_card_of_each_gpu() -> None:
    """16 GPUs of two servers: a half stays, the other leaves over one card at 0.6 of its rate."""
    network = setting().framework.network
    seconds = 1e9 / 2 / (50e9 * 0.6) + 2 * HOP
    assert network.exchange(ALL_TO_ALL, 16, 1e9, 8) == pytest.approx(seconds)
    # Twice the GPUs of a server in the group: not half the time, as it were if cards were shared.
    assert network.exchange(ALL_TO_ALL, 8, 1e9, 4) == pytest.approx(seconds)
    one = 1e9 * 3 / 4 / (50e9 * 0.6) + 4 * HOP
    assert network.exchange(ALL_TO_ALL, 4, 1e9, 1) == pytest.approx(one)


@pytest.mark.parametrize(
    ("environment", "rows"),
    [(None, 8), ("deepep", 4 * (1 - (3 / 4) ** 8)), ("deepep+experts-in-turn", 1)],
)
def test_a_row_goes_once_to_each_gpu(environment: str | None, rows: float) -> None:
    """64 experts on 4 GPUs, 8 a token: 8 rows, 3.6 different GPUs in the mean, or in turn one."""
    sizes = replace(SIZES, experts=ExpertLayers(64, 8, 1024))
    priced = setting("pytorch", "nvswitch-h100-8", environment, sizes)
    silent = replace(priced, framework=with_network(priced.framework, IdleNetwork))
    passes = layer_passes(priced, 4096, 1, 1, split=True, groups=4)
    without = layer_passes(silent, 4096, 1, 1, split=True, groups=4)
    size = 2.0 * 4096 * rows * 4096
    sent = priced.framework.network.exchange(ALL_TO_ALL, 4, size, 4)
    assert passes.forward - without.forward == pytest.approx(2 * sent)
    assert passes.backward - without.backward == pytest.approx(2 * sent)


@pytest.mark.parametrize(
    ("environment", "servers", "gpus"),
    [
        ("deepep", 8 * (1 - (7 / 8) ** 8), 64 * (1 - (63 / 64) ** 8)),
        ("deepep+experts-in-turn", 1, 2),
    ],
)
def test_a_row_goes_once_to_each_server(
    environment: str, servers: float, gpus: float
) -> None:
    """256 experts on 64 GPUs, 8 a token: the neighbours of one token are on 2 GPUs of a server.

    Seven eighths of what goes to servers pass a card; what reaches GPUs passes NVLink.
    """
    sizes = replace(SIZES, experts=ExpertLayers(256, 8, 1024))
    priced = setting("pytorch", environment=environment, sizes=sizes)
    silent = replace(priced, framework=with_network(priced.framework, IdleNetwork))
    passes = layer_passes(priced, 4096, 1, 1, split=True, groups=64)
    without = layer_passes(silent, 4096, 1, 1, split=True, groups=64)
    row = 2.0 * 4096 * 4096
    across = row * servers * 7 / 8 / CARD
    inside = priced.framework.network.exchange(ALL_TO_ALL, 8, row * gpus, 8)
    sent = max(across, inside) + 8 * HOP
    assert passes.forward - without.forward == pytest.approx(2 * sent)


def test_experts_in_turn_may_cross_a_border_between_gpus() -> None:
    """12 experts a GPU, 8 a token: of tokens 0, 1 and 2 the second has experts on two GPUs."""
    sizes = replace(SIZES, experts=ExpertLayers(48, 8, 1024))
    priced = setting("pytorch", "nvswitch-h100-8", "deepep+experts-in-turn", sizes)
    silent = replace(priced, framework=with_network(priced.framework, IdleNetwork))
    passes = layer_passes(priced, 4096, 1, 1, split=True, groups=4)
    without = layer_passes(silent, 4096, 1, 1, split=True, groups=4)
    size = 2.0 * 4096 * 4096 * 4 / 3
    sent = priced.framework.network.exchange(ALL_TO_ALL, 4, size, 4)
    assert passes.forward - without.forward == pytest.approx(2 * sent)


def test_a_checkpoint_that_stops_early_leaves_out_what_keeps_nothing() -> None:
    """The sum with the residual, and the last product or DeepEP's combine; Megatron's nothing."""
    sizes = replace(SIZES, experts=ExpertLayers(64, 8, 1024))
    tokens, groups = 4096, 4
    left_out = {}
    for environment, of_experts in ((None, 0), (None, groups), ("deepep", groups)):
        priced = setting("pytorch", "nvswitch-h100-8", environment, sizes)
        passes = layer_passes(priced, tokens, 1, 1, split=True, groups=of_experts)
        left_out[environment, of_experts] = passes.forward - passes.recomputed
    framework = setting("pytorch", "nvswitch-h100-8", "deepep", sizes).framework
    residual = framework.kernels.stream(6 * tokens * 4096)
    down = framework.kernels.products([(tokens, 4096, 14336)])
    size = 2.0 * tokens * 4096 * 4 * (1 - (3 / 4) ** 8)
    combine = framework.network.exchange(ALL_TO_ALL, groups, size, groups)
    assert left_out[None, 0] == pytest.approx(residual + down)
    assert left_out[None, groups] == pytest.approx(residual)
    assert left_out["deepep", groups] == pytest.approx(residual + combine)
    reentrant = setting("megatron-lm", "nvswitch-h100-8", "deepep", sizes)
    passes = layer_passes(reentrant, tokens, 1, 1, split=True, groups=groups)
    assert passes.recomputed == passes.forward


@pytest.mark.parametrize(
    "framework", ["megatron-lm", "pytorch", "internevo", "torchtitan"]
)
def test_hiding_is_never_slower(framework: str) -> None:
    """Whatever is hidden, a step takes no longer than with less hidden."""
    shapes = (
        PlanSpec(dp=64),
        PlanSpec(dp=16, tp=4),
        PlanSpec(dp=8, tp=8),
        PlanSpec(dp=8, cp=2, tp=2, pp=2),
        PlanSpec(dp=8, tp=4, pp=2, schedule="interleaved:4"),
    )
    zeros = (0, 3) if framework == "torchtitan" else (0, 1)
    for shape, zero, size in product(shapes, zeros, (1, 4)):
        plain = replace(shape, zero=zero, microbatch_size=size, layers="equal")
        words = ("none", "reduce", "reduce+gather")
        answers = [
            price(setting(framework), replace(plain, overlap=word)) for word in words
        ]
        seconds = [answer.step_time for answer in answers]
        if None in seconds:
            assert "schedule" in answers[0].reason
            continue
        assert seconds == sorted(seconds, reverse=True), plain  # type: ignore[type-var]
        if plain.tp > 1 and framework in ("megatron-lm", "torchtitan"):
            shards = price(setting(framework), replace(plain, tp_overlap=True))
            own = price(setting(framework), plain).step_time
            assert shards.step_time is not None
            assert own is not None
            assert shards.step_time < own


def test_whole_experts_have_the_rows_of_all_shards() -> None:
    """Grok's layer with etp=1: 8 shards of 4096 tokens over 4 have 1,024 each, twice 8 of them.

    Whole, an expert of 8 has 2 x 8 x 1024 / 8 rows, and a shard sends its own rows to 8 GPUs of a
    server. Cut in 4 over 2 groups, 4 experts have 2 x 2 x 4096 / 8 rows each of a quarter's width,
    and shards gather each other's rows and scatter results.
    """
    tokens, shards, hidden, width = 4096, 4, 4096, 14336
    priced = setting(cluster="nvswitch-h100-8", sizes=EXPERTS)
    network, kernels = priced.framework.network, priced.framework.kernels
    rows = 2 * 8 * 1024 // 8
    size = 2.0 * 2 * 1024 * hidden
    whole = layer_passes(priced, tokens, shards, 1, True, 8, 1)
    cut = layer_passes(priced, tokens, shards, 1, True, 2, 4)
    experts_of_whole = kernels.products(
        [(rows, 2 * width, hidden), (rows, hidden, width)]
    )
    sent_whole = 2 * network.exchange(ALL_TO_ALL, 8, size, 8)
    rows_of_cut = 2 * 2 * tokens // 8
    experts_of_cut = 4 * kernels.products(
        [(rows_of_cut, 2 * width // 4, hidden), (rows_of_cut, hidden, width // 4)]
    )
    sent_cut = 2 * network.exchange(ALL_TO_ALL, 2, size, 2)
    sent_cut += network.exchange(ALL_GATHER, 4, 4 * size, 4)
    sent_cut += network.exchange(REDUCE_SCATTER, 4, 4 * size, 4)
    assert whole.forward - cut.forward == pytest.approx(
        experts_of_whole + sent_whole - experts_of_cut - sent_cut
    )


def test_whole_experts_gather_nothing_over_shards() -> None:
    """As many bytes of experts a device; each shard sends its own rows to 8 groups of experts."""
    priced = setting(sizes=EXPERTS)
    cut = price(priced, PlanSpec(dp=8, tp=4, pp=2, ep=2, zero=1))
    whole = price(priced, PlanSpec(dp=8, tp=4, pp=2, ep=2, etp=1, zero=1))
    assert cut.step_time is not None
    assert whole.step_time is not None
    assert cut.state == pytest.approx(whole.state, rel=1e-9)
    assert whole.step_time < cut.step_time
    for words, told in (
        ({"ep": 4, "etp": 1}, "8 experts and dp x cp, which is 8 in 16 groups"),
        ({"ep": 3}, "ep=3: must divide 8 experts and dp x cp, which is 8"),
        ({"etp": 3}, "etp=3: must divide tp, which is 4"),
    ):
        answer = price(priced, PlanSpec(dp=8, tp=4, pp=2, zero=1, **words))
        assert told in answer.reason
    assert "no experts" in price(setting(), PlanSpec(tp=2, etp=1)).reason


@pytest.mark.parametrize("framework", ["pytorch", "torchtitan"])
def test_groups_sum_gradients_with_every_microbatch_or_once(framework: str) -> None:
    """Eight groups of a server each: an eighth of the gradients passes the card of its GPU.

    An all-reduce over 8 servers is a tree of 3 levels, both ways, and 7/8 of the bytes twice.
    """
    every, once = (
        setting(framework, environment=environment).framework
        for environment in (None, "groups-once")
    )
    group = every.replica_group(count=64, shards=8, tp=1)
    size = 4.0 * 8e8 / 8
    summed = 2 * 3 * HOP + 2 * size * 7 / 8 / CARD
    _, scattered = every.unit_exchanges(8e8, 0.0, group)
    _, alone = once.unit_exchanges(8e8, 0.0, group)
    assert scattered - alone == pytest.approx(summed)
    parameters = ReplicatedParameters(dense=8e8, experts=0.0, num_layers=4, largest=1e6)
    assert once.sums_once(parameters, group) == pytest.approx(summed)
    assert every.sums_once(parameters, group) == 0


def test_gradients_that_groups_sum_once_are_behind_the_last_backward_pass() -> None:
    """Of a stage that is longer than the sum, a step has what hiding costs; else nothing."""
    words = PlanSpec(dp=64, zero=3, zero_group=8, microbatch_size=8)
    every, once = (
        price_spec(setting("pytorch", environment=environment), words).costs[0]
        for environment in (None, "groups-once")
    )
    size = 4.0 * SIZES.parameters / 8
    summed = 2 * 3 * HOP + 2 * size * 7 / 8 / CARD
    assert every.reduction == 0
    assert once.reduction == pytest.approx(0.77 * summed)
    assert once.backward < every.backward
    # Without groups there is nothing to sum over them.
    alone = price_spec(
        setting("pytorch", environment="groups-once"), replace(words, zero_group=64)
    )
    assert alone.costs[0].reduction == 0


def test_what_a_framework_cannot_hide_is_refused() -> None:
    """Collectives of shards are hidden by some frameworks, with split tokens."""
    refused = price(setting("internevo"), PlanSpec(tp=2, tp_overlap=True))
    assert "internevo hides no collectives of shards" in refused.reason
    whole = price(setting(), PlanSpec(tp=2, tp_overlap=True, sp=False))
    assert "needs split tokens" in whole.reason


def test_intervals_are_wider_away_from_published_runs() -> None:
    """On a log scale 1.5 times for experts, and for each property that no published run had."""
    framework = setting().framework
    low, high = (framework.constants[name] for name in ("low", "high"))
    near = framework.step_interval(2.0, 64, has_experts=False)
    assert near == (pytest.approx(2 * low), pytest.approx(2 * high))
    many = framework.step_interval(2.0, 8192, has_experts=False)
    assert many == (pytest.approx(2 * low**1.5), pytest.approx(2 * high**1.5))
    experts = framework.step_interval(2.0, 8192, has_experts=True)
    assert experts == (pytest.approx(2 * low**2.25), pytest.approx(2 * high**2.25))


def test_answers_say_what_no_published_run_had() -> None:
    """Kind of GPU, number of GPUs and experts, by framework."""
    assert price(setting(), PlanSpec(dp=64)).untested == ""
    other = setting("internevo", sizes=EXPERTS)
    assert price(other, PlanSpec(dp=64)).untested == "on h100, with experts"
    many = setting(cluster="dgx-h100-1024x8", sizes=replace(SIZES, batch=8192))
    assert price(many, PlanSpec(dp=8192)).untested == "on more than 6,144 devices"
    assert (
        "torchtitan at all"
        in price(setting("torchtitan"), PlanSpec(dp=64, zero=3)).untested
    )


def test_offloaded_state_lies_on_the_host() -> None:
    """Of 8 GPUs in a server two share a switch: 63 GB/s at 0.8 each way, half of it a GPU.

    CPUs update an eighth of the server's parameters for each GPU, at 30 bytes a parameter.
    """
    link, memory = 63e9 * 0.8 / 2, 614.4e9 * 0.75 / 8
    small = setting(cluster="nvswitch-h100-8", sizes=replace(SIZES, layers=2, batch=64))
    plain, offloaded = (
        price_spec(small, PlanSpec(dp=8, zero=1, gradients="same", offload=word)).costs[
            0
        ]
        for word in ("none", "optimizer")
    )
    part = SIZES_OF_TWO_LAYERS / 8
    assert plain.state - offloaded.state == pytest.approx(12 * part)
    assert offloaded.update == pytest.approx(30 * part / memory + 2 * part / link)
    assert offloaded.forward == plain.forward  # nothing else is slower


def test_offloaded_activations_leave_behind_passes() -> None:
    """The part of what a micro-batch keeps; what a pass does not cover is added to it."""
    small = setting(cluster="nvswitch-h100-8", sizes=replace(SIZES, layers=2, batch=64))
    plain, half = (
        price_spec(small, PlanSpec(dp=8, offload=word)).costs[0]
        for word in ("none", "activations:0.5")
    )
    assert half.saved == pytest.approx(plain.saved / 2)
    seconds = plain.saved / 2 / (63e9 * 0.8 / 2)
    assert half.forward == pytest.approx(max(plain.forward, seconds))
    backward = plain.backward + plain.weights
    assert half.backward + half.weights == pytest.approx(max(backward, seconds))


def test_what_cannot_be_offloaded_is_refused() -> None:
    """A framework without the word, parameters that are whole on devices, a part above all."""
    assert (
        "nanotron has none"
        in price(setting("nanotron"), PlanSpec(offload="optimizer")).reason
    )
    whole = price(
        setting("pytorch"), PlanSpec(dp=8, zero=1, offload="optimizer+parameters")
    )
    assert "take zero=3" in whole.reason
    everything = PlanSpec(dp=64, zero=3, offload="optimizer+parameters")
    plain = price(setting("pytorch"), replace(everything, offload="none"))
    offloaded = price(setting("pytorch"), everything)
    assert offloaded.state is not None
    assert plain.state is not None
    # FSDP copies gradients to the host, too, as soon as they are scattered.
    assert offloaded.state == 0.0
    assert plain.state > 0.0
    with pytest.raises(InputError, match="offload=activations:2: must be one of none"):
        PlanSpec(offload="activations:2")
