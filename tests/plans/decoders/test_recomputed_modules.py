"""`recompute=modules:…`: seconds and bytes of single modules, beside hand-computed ones."""

from __future__ import annotations

from functools import cache

import pytest

from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, LatentAttention
from gnnplace.plans.decoders.layer import layer_passes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import RECOMPUTED_MODULES, parse_spec
from gnnplace.plans.spec_answers import PlanAnswer, price
from gnnplace.problem.cluster.presets import make_preset

TOKENS = 4096
LLAMA = DecoderSizes(8, 4096, 32, 8, 14336, TOKENS, 32000, batch=8)
LATENT = LatentAttention(queries=1536, keys=512, rotary=64, values=128)
EXPERTS = ExpertLayers(count=8, active=2, width=2048, shared=2048, dense=2)
DEEPSEEK = DecoderSizes(
    6, 4096, 32, 32, 12288, TOKENS, 32000, batch=8, latent=LATENT, experts=EXPERTS
)
PLAN = "dp=8,zero=1,microbatch_size=1"


@cache
def setting(sizes: DecoderSizes, framework: str = "megatron-lm") -> PricingSetting:
    return make_pricing_setting(
        sizes, make_preset("nvswitch-h100-8"), framework_name=framework
    )


def priced(sizes: DecoderSizes, recompute: str) -> PlanAnswer:
    answer = price(setting(sizes), parse_spec(f"{PLAN},recompute={recompute}"))
    assert answer.step_time is not None, answer.reason
    assert answer.allocated is not None
    return answer


def freed(sizes: DecoderSizes, modules: str) -> float:
    """Return the bytes a token that modules need not keep, of all layers together."""
    before = priced(sizes, "none").allocated
    after = priced(sizes, f"modules:{modules}").allocated
    assert before is not None
    assert after is not None
    return (before - after) / TOKENS


def test_attention_alone_is_the_selective_recomputation():
    for sizes in (LLAMA, DEEPSEEK):
        selective = priced(sizes, "selective")
        alone = priced(sizes, "modules:core_attn")
        assert alone.step_time == selective.step_time
        assert alone.allocated == selective.allocated


def test_bytes_that_modules_need_not_keep():
    """Half-precision values: of norms of their own; queries, keys, values; inside of a gate."""
    gated = setting(LLAMA).framework.constants["gated_kept"]
    # Transformer Engine has Llama's norms within products.
    assert freed(LLAMA, "layernorm") == 0.0
    assert freed(LLAMA, "mlp") == pytest.approx(8 * (gated * 14336 + 2 * 4096))
    # Six norms before latent attention, four before experts.
    assert freed(DEEPSEEK, "layernorm") == pytest.approx(10 * 2 * 4096)
    projected = DEEPSEEK.queries + DEEPSEEK.queries + DEEPSEEK.values
    assert freed(DEEPSEEK, "mla_up_proj") == pytest.approx(6 * 2 * projected)
    # Two layers are dense, four have experts.
    assert freed(DEEPSEEK, "mlp") == pytest.approx(2 * (gated * 12288 + 2 * 4096))
    assert freed(DEEPSEEK, "moe_act") == pytest.approx(4 * 2 * 2 * 2048)
    assert freed(DEEPSEEK, "shared_experts") == pytest.approx(4 * gated * 2048)
    assert freed(DEEPSEEK, "layernorm+mlp") == pytest.approx(
        freed(DEEPSEEK, "layernorm") + freed(DEEPSEEK, "mlp")
    )


def test_seconds_of_a_recomputed_feed_forward():
    """Its two products once more, the bytes between them, and the norm before."""
    kernels = setting(LLAMA).framework.kernels
    constants = setting(LLAMA).framework.constants
    shapes = [(TOKENS, 2 * 14336, 4096), (TOKENS, 4096, 14336)]
    of_layer = sum(kernels.products([shape]) for shape in shapes)
    between = constants["inside_forward"] * 14336 + 4 * 4096
    of_layer += kernels.stream(TOKENS * between)
    added = priced(LLAMA, "modules:mlp").step_time - priced(LLAMA, "none").step_time
    assert added == pytest.approx(8 * of_layer, rel=1e-6)


def test_all_modules_take_no_more_than_the_whole_layer():
    everything = "core_attn+layernorm+mla_up_proj+mlp+moe"
    partial = priced(DEEPSEEK, f"modules:{everything}")
    whole = priced(DEEPSEEK, "full")
    none = priced(DEEPSEEK, "none")
    assert none.step_time < partial.step_time < whole.step_time
    assert whole.allocated < partial.allocated < none.allocated


def test_a_layer_without_split_tokens_has_whole_norms():
    passes = layer_passes(setting(LLAMA), TOKENS, 2, 1, False)
    assert passes.selective > 0
    modules = parse_spec("recompute=modules:mlp+layernorm").recomputed_modules
    assert modules == ("layernorm", "mlp")
    assert set(modules) < set(RECOMPUTED_MODULES)


@pytest.mark.parametrize(
    ("sizes", "framework", "modules", "reason"),
    [
        (LLAMA, "megatron-lm", "moe", "the model's layers have no moe"),
        (LLAMA, "megatron-lm", "mla_up_proj", "the model's layers have no mla_up_proj"),
        (DEEPSEEK, "megatron-lm", "moe+moe_act", "leave out moe_act"),
        (LLAMA, "pytorch", "mlp", "pytorch recomputes no single modules"),
    ],
)
def test_modules_that_are_not_there_are_refused(sizes, framework, modules, reason):
    words = parse_spec(f"{PLAN},recompute=modules:{modules}")
    answer = price(setting(sizes, framework), words)
    assert answer.step_time is None
    assert reason in (answer.reason or "")
