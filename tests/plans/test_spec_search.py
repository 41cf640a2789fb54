"""The search over words against every plan of small spaces, and what it says of its bound."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.setting import PricingSetting, setting_of
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.plans.spec_cuts import cuts_of
from gnnplace.plans.spec_groups import SpecSpace
from gnnplace.plans.spec_search import search_specs

DENSE = DecoderSizes(
    layers=6,
    hidden=2048,
    heads=16,
    kv_heads=4,
    feed_forward=8192,
    length=4096,
    vocabulary=128256,
    gated=True,
    batch=8,
)
MIXTURE = replace(DENSE, layers=4, experts=ExpertLayers(8, 2, 4096))
CLUSTER = "nvswitch-h100-8"


def setting(sizes: DecoderSizes, framework: str, memory: float | None) -> PricingSetting:
    return setting_of(
        sizes, resolve_cluster(CLUSTER), framework_name=framework, memory_limit=memory
    )


def every_plan(on: PricingSetting, num_devices: int) -> list[tuple[float, PlanSpec]]:
    """Seconds of all plans that fit, by the pricer alone."""
    powers = [2**k for k in range(num_devices.bit_length()) if 2**k <= num_devices]
    traits, batch = on.framework.traits, on.decoder.batch
    found: list[tuple[float, PlanSpec]] = []
    for dp, tp, cp, pp in itertools.product(powers, repeat=4):
        if dp * tp * cp * pp != num_devices or batch % dp:
            continue
        schedules = ["1f1b"]
        if pp > 1:
            chunks = range(2, on.decoder.layers // pp + 1)
            schedules += ["gpipe"] * ("gpipe" in traits.schedules)
            schedules += [f"interleaved:{v}" for v in chunks if "interleaved" in traits.schedules]
        sizes = [m for m in (1, 2, 4, 8) if batch // dp % m == 0]
        experts = [ep for ep in powers if on.decoder.experts or ep == 1]
        zeros = traits.zero_stages if dp * cp > 1 else (0,)
        axes = itertools.product(sizes, experts, zeros, (True, False), schedules)
        for size, ep, zero, sp, schedule in axes:
            for layers in cuts_of(on, pp, schedule):
                plan = PlanSpec(
                    dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, sp=sp, layers=layers, zero=zero,
                    microbatch_size=size, batch=batch, schedule=schedule,
                )  # fmt: skip
                if schedule.startswith("interleaved") and plan.num_microbatches(batch) % pp:
                    continue
                most = on.decoder.layers
                for recompute in ("none", "selective", *(f"block:{k}" for k in range(1, most))):
                    answer = price(on, replace(plan, recompute=recompute))
                    if answer.feasible:
                        found.append((answer.step_time, replace(plan, recompute=recompute)))
                        break  # more is recomputed to no end
                full = price(on, replace(plan, recompute="full"))
                if full.feasible:
                    found.append((full.step_time, replace(plan, recompute="full")))
    return found


@pytest.mark.parametrize(
    ("sizes", "framework", "memory", "num_devices"),
    [
        (DENSE, "megatron-lm", None, 4),
        (DENSE, "megatron-lm", 9e9, 4),
        (DENSE, "nanotron", 11e9, 4),
        (DENSE, "pytorch", 9e9, 4),
        (MIXTURE, "torchtitan", 14e9, 4),
        (MIXTURE, "internevo", 12e9, 4),
    ],
)
def test_what_is_found_is_the_least_of_every_plan(sizes, framework, memory, num_devices):
    on = setting(sizes, framework, memory)
    plans = every_plan(on, num_devices)
    found = search_specs(SpecSpace(on, sizes.batch, num_devices))
    assert plans
    least = min(seconds for seconds, _ in plans)
    assert found.best[0].seconds == pytest.approx(least, rel=1e-9)
    assert found.bound == pytest.approx(least, rel=1e-8)
    assert found.num_priced < len(plans)


def test_the_answer_is_the_price_of_its_words():
    on = setting(DENSE, "megatron-lm", None)
    for plan in search_specs(SpecSpace(on, 8, 8)).best:
        assert price(on, plan.spec) == plan.answer


def test_only_what_is_accepted_is_an_answer():
    on = setting(DENSE, "megatron-lm", 9e9)
    found = search_specs(SpecSpace(on, 8, 8), accepts=lambda spec: spec.pp == 1)
    free = search_specs(SpecSpace(on, 8, 8))
    assert {plan.spec.pp for plan in found.best} == {1}
    assert found.best[0].seconds >= free.best[0].seconds


def test_without_time_the_bound_is_below_every_plan():
    on = setting(DENSE, "megatron-lm", 9e9)
    first = search_specs(SpecSpace(on, 8, 8), budget=0.0)
    whole = search_specs(SpecSpace(on, 8, 8))
    assert first.best
    assert first.bound <= whole.bound <= first.best[0].seconds
