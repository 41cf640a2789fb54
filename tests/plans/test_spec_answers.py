from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from gnnplace.costs.collectives import ALL_GATHER, REDUCE_SCATTER
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, LatentAttention
from gnnplace.plans.decoders.layer import layer_passes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec, parse_spec
from gnnplace.plans.spec_answers import PlanAnswer, price, price_spec
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.cluster.gpus import get_figures
from gnnplace.problem.cluster.presets import make_preset

LLAMA = DecoderSizes(32, 4096, 32, 32, 14336, 4096, 131072, batch=256)
MPT = DecoderSizes(32, 4096, 32, 32, 16384, 2048, 50368, False, True, 256)


@cache
def nanotron() -> PricingSetting:
    """The 8.86 B Llama of nanotron's sweep on one server."""
    return make_pricing_setting(
        LLAMA, make_preset("dgx-h100-2x8"), framework_name="nanotron"
    )


def test_a_published_step_of_nanotron_and_its_bytes():
    """Ultra-Scale Playbook (Hugging Face, 2025): tp 8 on 8 H100 took 36.2 s, 18.7 GB of state."""
    answer = price(nanotron(), parse_spec("tp=8,microbatch_size=1"))
    assert answer.step_time == pytest.approx(36.2, rel=0.12)
    assert answer.state == pytest.approx(18.7 * 2**30, rel=0.1)
    assert answer.feasible
    assert answer.low < answer.step_time < answer.high


def test_a_published_step_of_fsdp():
    """mosaicml/llm-foundry (Apache-2.0, 8c8dd48): MPT 7B, 2048 tokens, 48 examples on 8 H100."""
    setting = make_pricing_setting(
        MPT, make_preset("dgx-h100-2x8"), precision="bf16-mixed"
    )
    answer = price(setting, parse_spec("dp=8,zero=3,microbatch_size=6,batch=48"))
    assert answer.step_time == pytest.approx(1.154562, rel=0.1)
    assert answer.feasible


def test_state_is_what_zero_parts():
    """2 + 4 bytes and 12 of the optimizer's over the replicas; DDP's buckets without ZeRO."""
    size = LLAMA.parameters
    for words, each in (
        ("dp=4,zero=1", 2 + 4 + 12 / 4),
        ("dp=4", 2 + 4 + 12 + 2),
        ("dp=1", 18),
    ):
        assert price(nanotron(), parse_spec(words)).state == pytest.approx(
            size * each, rel=1e-9
        )


def test_torchtitans_pipelines_gather_parameters_once_a_step():
    """fsdp_reshard_after_forward "default": stages keep what they gathered, and sum gradients.

    8 replicas have 4 + 12 bytes of fp32 parameters, gradients' sums apart, and moments in parts; in
    whole they have parameters in half precision and gradients in float32.
    """
    setting = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-8x8"), framework_name="torchtitan"
    )
    each = "dp=8,pp=4,tp=2,microbatch_size=1,zero=3,batch="
    few, many = (
        price_spec(setting, parse_spec(f"{each}{batch}")) for batch in (64, 256)
    )
    assert few.costs[0].exchanges.scattered > 0
    assert (
        few.costs[0].exchanges == many.costs[0].exchanges
    )  # however many micro-batches
    assert few.costs[0].gathered == 0.0
    terms, stage = few.costs[0].terms, few.draft.stages[0]
    assert stage.zero == 3
    count = terms.gradients / 4.0
    assert terms.parameters == pytest.approx(count * (2 + 4 / 8))
    assert terms.optimizer == pytest.approx(count * 8 / 8)
    alone = price_spec(setting, parse_spec("dp=8,microbatch_size=1,zero=3,batch=64"))
    assert alone.costs[0].is_sharded
    assert alone.costs[0].gathered > 0.0


def test_gradients_in_the_parameters_type_are_half():
    many, few = (
        price(nanotron(), parse_spec(f"gradients={g}")).state for g in ("fp32", "same")
    )
    assert many - few == pytest.approx(2 * LLAMA.parameters)


def test_bytes_of_state_are_those_of_first_and_last_rank():
    answer = price(nanotron(), parse_spec("pp=4,layers=10+8+8+6"))
    each = LLAMA.layer_parameters
    ends, beside = LLAMA.embedding, nanotron().framework.workspace
    assert answer.state_first == pytest.approx(
        18 * (10 * each + ends) + beside, rel=1e-3
    )
    assert answer.state_last == pytest.approx(18 * (6 * each + ends) + beside, rel=1e-3)


@pytest.mark.parametrize(("size", "logged"), [(8, 5.78), (2, 5.4)])
def test_gathered_tokens_stay_in_nanotrons_buffers(size, logged):
    """Its log of the first rank without ZeRO, in GiB: 16 replicas of 32 shards."""
    setting = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-64x8"), framework_name="nanotron"
    )
    answer = price(setting, parse_spec(f"dp=16,tp=32,microbatch_size={size}"))
    assert answer.state_first == pytest.approx(logged * 2**30, rel=0.01)


def test_checked_collectives_cost_the_host():
    checked = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-2x8"), framework_name="nanotron",
        environment_name="checked-collectives",
    )  # fmt: skip
    words = parse_spec("dp=2,tp=8,microbatch_size=1")
    # 32 layers, ten exchanges each, 0.21 ms for each of 8 ranks: 0.54 s a micro-batch.
    assert price(checked, words).step_time > 128 * 32 * 10 * 8 * 2.1e-4
    assert price(nanotron(), words).step_time < 128 * 0.4


def test_tokens_that_are_not_split_pass_norms_and_residuals_on_every_shard():
    """Eight shards of a GPT 2048 wide: measured cells of vTrain's file take 1.2 ms more a layer of
    8 examples of 1,024 tokens than if an eighth passed, in which 36 - 16 and 60 - 24 bytes a token
    and width (all but GELU's) are 7/8 of 8192 x 2048 x 56 at 1.53 TB/s, 0.54 ms."""
    gpt = DecoderSizes(24, 2048, 16, 16, 8192, 1024, 51200, False, True)
    setting = make_pricing_setting(
        gpt, make_preset("nvswitch-a100-80-8"), framework_name="megatron-deepspeed",
        precision="16-master",
    )  # fmt: skip
    whole, parted = (
        layer_passes(setting, 8192, 8, 1, split) for split in (False, True)
    )
    network, size = setting.framework.network, 2.0 * 8192 * 2048
    gather, scatter = (
        network.exchange(op, 8, size, 8) for op in (ALL_GATHER, REDUCE_SCATTER)
    )
    more = whole.forward + whole.backward - 4 * network.reduce(8, size, 8)
    less = parted.forward + parted.backward - 6 * gather - 4 * scatter
    bandwidth = 0.75 * get_figures("a100-80").bandwidth
    assert more - less == pytest.approx(7 / 8 * 8192 * 2048 * 56 / bandwidth, rel=1e-6)


def test_an_environment_owns_a_clusters_clock():
    """1.18 times every product of bigscience's cluster, nothing else of its constants."""
    own, named = (
        make_pricing_setting(
            MPT,
            make_preset("nvswitch-a100-80-8"),
            framework_name="megatron-deepspeed",
            environment_name=name,
        )
        for name in (None, "jean-zay-a100")
    )
    shape = (4096, 4096, 4096)
    ratio = named.framework.kernels.products([shape]) / own.framework.kernels.products(
        [shape]
    )
    assert ratio == pytest.approx(1.18)
    assert named.framework.checks is None
    assert (
        named.framework.kernels.attention
        == own.framework.kernels.attention
        == "products"
    )


@cache
def torchtitan(environment: str | None = None) -> PricingSetting:
    """Llama 3 8B as torchtitan trains it on a server."""
    sizes = DecoderSizes(32, 4096, 32, 8, 14336, 8192, 128256, batch=16)
    return make_pricing_setting(
        sizes, make_preset("nvswitch-h100-8"), framework_name="torchtitan",
        environment_name=environment,
    )  # fmt: skip


PUBLISHED = "dp=8,zero=3,microbatch_size=2,recompute=selective,cuda_graphs=off"


@pytest.mark.parametrize(
    ("environment", "low", "high"), [(None, 1.05, 1.1), ("composite-norms", 1.15, 1.25)]
)
def test_compiled_layers_take_fewer_bytes(environment, low, high):
    """torchtitan's benchmarks (BSD-3-Clause, llama3_h100_202412): 5,762 tokens/s and GPU, 6,667
    under torch.compile, 1.157 times as many, with norms of several kernels; nothing is fitted."""
    setting = torchtitan(environment)
    eager, made = (
        price(setting, parse_spec(f"{PUBLISHED}{w}")) for w in ("", ",compile=on")
    )
    assert low < eager.step_time / made.step_time < high
    assert made.step_time == pytest.approx(
        price(torchtitan(), parse_spec(f"{PUBLISHED},compile=on")).step_time
    )


def test_a_compiled_layer_keeps_one_value_inside_less():
    """The gate's activation, of half values: 2 bytes a token, layer and width inside."""
    words = "dp=8,zero=3,microbatch_size=1,cuda_graphs=off"
    eager, made = (
        price(torchtitan(), parse_spec(f"{words}{w}")) for w in ("", ",compile=on")
    )
    assert eager.allocated - made.allocated == pytest.approx(2 * 8192 * 32 * 14336)
    assert eager.state == made.state


def test_captured_launches_leave_a_hosts_floor():
    """Two micro-batches of 8 examples of 128 tokens: 3.255 ms a layer, 54 us in graphs, or none."""
    small = DecoderSizes(24, 1024, 16, 16, 4096, 128, 50304, False, True, batch=16)
    setting = make_pricing_setting(
        small, make_preset("nvswitch-h100-8"), framework_name="megatron-lm"
    )
    off, layers, all_of_it = (
        price(setting, parse_spec(f"microbatch_size=8,cuda_graphs={kind}")).step_time
        for kind in ("off", "layers", "iteration")
    )
    assert off > 2 * 24 * 3.255e-3
    assert all_of_it <= layers < off - 2 * 24 * 2e-3


def test_torchtitan_captures_where_nothing_is_said_and_it_can():
    told = PUBLISHED.removesuffix(",cuda_graphs=off")
    times = [price(torchtitan(), parse_spec(w)).step_time for w in (told, PUBLISHED)]
    assert times[0] < times[1]
    cut = "dp=4,pp=2,zero=0,recompute=full,microbatch_size=1"
    assert (price(torchtitan(), parse_spec(cut)).step_time
            == price(torchtitan(), parse_spec(f"{cut},cuda_graphs=off")).step_time)  # fmt: skip


def test_torchtitans_selective_recomputation_keeps_every_other_product():
    """Of a token and layer 4 h + 4 q + 4 k + 2 f bytes (`SelectiveAC`), not 12 h + 4 k + 8 f."""
    words = "dp=8,zero=3,microbatch_size=1,cuda_graphs=off"
    none, kept = (
        price(torchtitan(), parse_spec(f"{words}{w}"))
        for w in ("", ",recompute=selective")
    )
    fewer = 12 * 4096 + 4 * 1024 + 8 * 14336 - (8 * 4096 + 4 * 1024 + 2 * 14336)
    assert none.allocated - kept.allocated == pytest.approx(8192 * 32 * fewer)
    assert none.step_time < kept.step_time


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("nanotron", "compile=on", "nanotron compiles no whole layers"),
        ("nanotron", "cuda_graphs=layers", "nanotron has off"),
        ("torchtitan", "cuda_graphs=layers", "torchtitan has iteration, off"),
        ("torchtitan", "pp=2,cuda_graphs=iteration", "captures no stages; take pp=1"),
    ],
)
def test_what_is_not_compiled_or_captured_is_refused(name, words, told):
    setting = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-2x8"), framework_name=name
    )
    answer = price(setting, parse_spec(words))
    assert answer.step_time is None
    assert told in answer.reason


def test_experts_and_checks_are_not_captured():
    sizes = DecoderSizes(
        8, 1024, 8, 8, 4096, 128, 32000, experts=ExpertLayers(8, 2, 4096)
    )
    checked = make_pricing_setting(sizes, make_preset("dgx-h100-2x8"), framework_name="megatron-lm",
                         environment_name="checked-collectives")  # fmt: skip
    plain = make_pricing_setting(LLAMA, make_preset("dgx-h100-2x8"), framework_name="megatron-lm",
                       environment_name="checked-collectives")  # fmt: skip
    words = parse_spec("cuda_graphs=layers")
    assert "rows an expert gets" in price(checked, words).reason
    assert "check of a collective" in price(plain, words).reason


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tp=3", "32 heads are no multiple of 3 shards"),
        ("dp=32", "has 16 devices"),
        (
            "dp=8,microbatch_size=3",
            "a batch of 256 is no multiple of 8 replicas x 3 examples",
        ),
        ("zero=3,dp=2", "zero=3: nanotron has 0, 1"),
        (
            "pp=2,layers=8+8",
            "2 numbers, one a stage, whose sum is the model's 32 layers",
        ),
        ("dp=2,ep=2", "the model has no experts"),
        ("dp=2,shards=2", "shards: any split"),
        ("microbatch_size=64", "lacks"),
    ],
)
def test_a_plan_that_cannot_be_says_why(words, told):
    answer = price(nanotron(), parse_spec(words))
    assert not answer.feasible
    assert told in answer.reason


def test_experts_are_parted_and_their_bytes_are_those_that_were_measured():
    """MooreThreads/SimuMax (Apache-2.0, 4dcaae5): four layers of DeepSeek-V3, ep 8 on 8 B200, took
    0.603 s and 104.3 GiB of 32 examples."""
    experts, latent = (
        ExpertLayers(256, 8, 2048, 2048, 1),
        LatentAttention(1536, 512, 64, 128),
    )
    model = DecoderSizes(
        4, 7168, 128, 128, 18432, 4096, 129280, batch=32, own_head_size=192, experts=experts,
        latent=latent,
    )  # fmt: skip
    setting = make_pricing_setting(
        model, make_preset("nvswitch-b200-8"), framework_name="megatron-lm"
    )
    answer = price(setting, parse_spec("dp=8,ep=8,zero=1"))
    assert answer.step_time == pytest.approx(0.6032, rel=0.1)
    assert answer.allocated == pytest.approx(104.3 * 2**30, rel=0.03)
    parted = model.parameters - 3 * model.expert_parameters
    own = 3 * model.expert_parameters / 8  # each device's; all of its state is here
    assert answer.state == pytest.approx(parted * (6 + 12 / 8) + own * 18, rel=1e-3)
    assert (
        "must divide 256 experts and dp x cp"
        in price(setting, parse_spec("dp=8,ep=3")).reason
    )


@cache
def servers(*kinds: str) -> Cluster:
    """A server of eight of each kind, with links of one speed inside and between."""
    devices = tuple(
        Device(name=f"gpu:{8 * k + i}", kind=kind, memory=get_figures(kind).memory)
        for k, kind in enumerate(kinds) for i in range(8)
    )  # fmt: skip
    names = [device.name for device in devices]
    links = tuple(
        Link(source=a, target=b, latency=5e-6, bandwidth=2e11 if k // 8 == j // 8 else 2e10)
        for k, a in enumerate(names) for j, b in enumerate(names) if a != b
    )  # fmt: skip
    return Cluster(devices, links, "-".join(kinds))


def mixed(words: str, *kinds: str) -> PlanAnswer:
    """What a plan of an OPT of 6.7 billion parameters takes on servers of these kinds."""
    return price(
        make_pricing_setting(MPT, servers(*kinds), framework_name="megatron-lm"),
        parse_spec(words),
    )


def test_a_slower_kind_paces_its_stage():
    """Of two stages one on A100: all but the first micro-batch's pass through the other wait."""
    words = "tp=8,pp=2,microbatch_size=4,batch=256"
    fast, slow = (mixed(words, kind, kind) for kind in ("h100", "a100-80"))
    both = mixed(words, "h100", "a100-80").step_time
    assert fast.step_time < 0.7 * slow.step_time
    assert 0.98 * slow.step_time < both < slow.step_time


def test_replicas_wait_for_those_of_a_slower_kind():
    words = "dp=2,tp=8,microbatch_size=4,batch=256"
    slow, both = (
        mixed(words, kind, "a100-80").step_time for kind in ("a100-80", "h100")
    )
    assert both == pytest.approx(slow, rel=1e-6)


def test_every_stage_has_its_own_kinds_memory():
    """26 layers on 80 GB and six on 40 GB fit, and not the other way round."""
    words = "tp=8,pp=2,microbatch_size=16,batch=64,layers=26+6"
    right, wrong = (
        mixed(words, *kinds) for kinds in (("h100", "a100"), ("a100", "h100"))
    )
    assert right.feasible
    assert right.fits > 0.9
    assert wrong.fits < 0.5
    assert "rank 0 lacks" in wrong.reason


def test_internevo_parts_the_optimizer_and_hides_its_reductions():
    """`hybrid_zero_optim.py` of InternLM/InternEvo: half gradients, float32 copies and moments
    parted, reductions behind the passes, broadcasts bare: 2 + 2 + 12/16 bytes, and a step that
    bare reductions over two servers make longer."""
    llama = DecoderSizes(32, 4096, 32, 32, 11008, 2048, 103168, batch=256)
    setting = make_pricing_setting(
        llama, make_preset("dgx-a100-2x8"), framework_name="internevo"
    )
    words = "dp=16,zero=1,microbatch_size=2"
    told, bare = (
        price(setting, parse_spec(words + more)) for more in ("", ",overlap=none")
    )
    assert told.state == pytest.approx(llama.parameters * (4 + 12 / 16))
    assert told.step_time < bare.step_time
    assert (
        "zero=3: internevo has 0, 1"
        in price(setting, parse_spec("dp=16,zero=3")).reason
    )


def test_fsdp_parts_experts_over_fewer_replicas():
    """Mixtral 8x7B on 16 H100, float32 and Adam, 16 bytes a parameter: experts on 4 of 16 devices
    each are parted over the 4 that have the same. Whole (2 bytes) are the embedding, the head and
    three of the four layers. Without `ep` a micro-batch waits for all experts twice and for their
    gradients (2 + 2 + 4 bytes, 15/16 of them moved) at what both servers' cards attain."""
    model = DecoderSizes(
        4, 4096, 32, 8, 14336, 4096, 32000, batch=16, experts=ExpertLayers(8, 2, 14336)
    )
    setting = make_pricing_setting(
        model, make_preset("dgx-h100-2x8"), precision="bf16-mixed"
    )
    alone, apart = (
        price(setting, parse_spec(f"dp=16,zero=3,ep={ep}")) for ep in (1, 4)
    )
    experts = 4 * model.expert_parameters
    rest = model.parameters - experts
    assert alone.state == pytest.approx(16 * model.parameters / 16)
    assert apart.state == pytest.approx(16 * rest / 16 + 16 * experts / 4 / 4)
    rate = min(setting.framework.network.rates["server_links"], 0.9 * 50e9 * 8)
    assert alone.step_time > 0.77 * 8 * experts * 15 / 16 / rate
    assert apart.step_time < alone.step_time
    moved = (
        3 * 3 / 4 * 2 * model.expert_parameters
    )  # three layers whose experts are a quarter
    assert alone.allocated - apart.allocated > moved


def test_recomputation_trades_bytes_for_seconds():
    kinds = ("none", "block:16", "full")
    found = [
        price(nanotron(), PlanSpec(tp=8, microbatch_size=4, recompute=k)) for k in kinds
    ]
    seconds, peaks = [a.step_time for a in found], [a.peak for a in found]
    assert seconds == sorted(seconds)
    assert peaks == sorted(peaks, reverse=True)


def test_more_stages_have_a_longer_bubble():
    """1F1B's (p - 1) / M of the work, and interleaving divides it."""
    setting = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-2x8"), framework_name="megatron-lm"
    )
    plain, chunks = (
        price(
            setting, parse_spec(f"pp=8,tp=2,batch=16,layers=equal,schedule={s}")
        ).step_time
        for s in ("1f1b", "interleaved:4")
    )
    assert 0 < plain - chunks < plain * 7 / 16


def test_zero_parts_over_groups_of_replicas():
    """InternEvo's zero1 of a server: 2 + 2 bytes and an eighth of 12; gathers stay inside."""
    setting = make_pricing_setting(
        LLAMA, make_preset("superpod-a100-80-32x8"), framework_name="internevo"
    )
    whole, parted = (
        price(setting, parse_spec(f"dp=256,zero=1{w}")) for w in ("", ",zero_group=8")
    )
    assert parted.state == pytest.approx(LLAMA.parameters * (4 + 12 / 8), rel=1e-9)
    assert whole.state == pytest.approx(LLAMA.parameters * (4 + 12 / 256), rel=1e-9)
    hops = (
        7 * 32 * 255 * setting.framework.network.rates["ring_latency"]
    )  # of broadcasts over 256 replicas
    assert whole.step_time - parted.step_time > 0.99 * hops


def test_hybrid_shards_are_those_of_a_group():
    """512 GPUs in groups of 8: parameters cross no servers, an eighth of gradients do."""
    setting = make_pricing_setting(replace(LLAMA, batch=512), make_preset("dgx-h100-64x8"),
                         framework_name="torchtitan")  # fmt: skip
    whole, hybrid = (
        price(setting, parse_spec(f"dp=512,zero=3{w}")) for w in ("", ",zero_group=8")
    )
    assert hybrid.state == pytest.approx(64 * whole.state)
    assert hybrid.step_time < whole.step_time


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        (
            "nanotron",
            "dp=8,zero=1,zero_group=4",
            "shares over groups with a zero of none",
        ),
        ("internevo", "dp=8,zero=1,zero_group=3", "must divide 8 replicas"),
        ("internevo", "dp=8,zero_group=4", "shares over groups with a zero of 1"),
    ],
)
def test_groups_that_cannot_be_are_refused(name, words, reason):
    setting = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-2x8"), framework_name=name
    )
    assert reason in price(setting, parse_spec(words)).reason
