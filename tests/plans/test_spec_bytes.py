"""Bytes beside what Megatron-LM's own functional tests have (NVIDIA/Megatron-LM, BSD-3-Clause,
d98e8a6, golden values): a GPT of 12 layers, 512 wide, 8 heads, 1024 tokens, 4 examples."""

from __future__ import annotations

from functools import cache

import pytest

from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.search.draft import rank_bytes
from gnnplace.plans.search.stage import RankBytes
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import price_spec
from gnnplace.problem.cluster.presets import make_preset

# Words; megabytes of the last rank between steps and at its peak.
GOLDEN = {
    "dp=8,zero=1": (552, 2712),
    "pp=2,dp=4": (892, 2596),
    "pp=4,dp=2": (719, 2195),
    "pp=4,dp=2,zero=1,schedule=interleaved:3": (522, 2441),
    "tp=2,pp=2,dp=2,sp=off": (487, 1410),
    "tp=2,pp=2,cp=2": (434, 858),
}


@cache
def megatron(environment: str | None = None) -> PricingSetting:
    """The functional tests' GPT."""
    gpt = DecoderSizes(12, 512, 8, 8, 2048, 1024, 50304, False, True, 32)
    return make_pricing_setting(
        gpt, make_preset("nvswitch-a100-80-8"), framework_name="megatron-lm",
        environment_name=environment, optimizer="adam",
    )  # fmt: skip


def held(words: str, environment: str | None = None) -> list[RankBytes]:
    """Bytes of every rank of a plan of it."""
    own, plan = megatron(environment), parse_spec(f"microbatch_size=4,batch=32,{words}")
    return rank_bytes(price_spec(own, plan))


@pytest.mark.parametrize("words", GOLDEN)
def test_bytes_are_those_of_megatrons_own_tests(words):
    state, peak = GOLDEN[words]
    found = held(words)
    workspace = megatron().framework.workspace
    assert found[-1].state + workspace == pytest.approx(state * 1e6, rel=0.11)
    assert found[-1].allocated == pytest.approx(peak * 1e6, rel=0.06)


def test_attention_in_products_keeps_its_scores():
    """Its golden of one device a replica: 4673 MB unfused, 2712 MB in one kernel."""
    assert held("dp=8,zero=1", "unfused-attention")[0].allocated == pytest.approx(
        4.673e9, rel=0.03
    )


def test_earlier_ranks_keep_more_micro_batches():
    """p - r of them, as 1F1B has in flight."""
    own = megatron()
    layer = 4096 * (34 * 512 + 4 * 8) * 3
    workspace = own.framework.workspace
    moving = [rank.allocated - rank.state - workspace for rank in held("pp=4,dp=2")]
    assert moving[0] - moving[1] == pytest.approx(layer, rel=0.01)
    assert moving[1] - moving[2] == pytest.approx(layer, rel=0.01)


def test_a_device_twice_as_large_is_likely_enough():
    framework = megatron().framework
    memory = framework.memory
    assert framework.fit_probability(memory / 2, memory) > 0.99
    assert framework.fit_probability(memory, memory) == pytest.approx(0.5)
    assert framework.fit_probability(memory * 1.5, memory) < 0.01
