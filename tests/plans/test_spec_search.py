"""The search over words against every plan of small spaces, and what it says of its bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.plans.spec_cuts import list_cuts
from gnnplace.plans.spec_groups import SpecSpace, list_recomputed_modules
from gnnplace.plans.spec_search import search_specs
from gnnplace.problem import Cluster
from gnnplace.problem.cluster.cluster import OWN_BETWEEN
from gnnplace.problem.cluster.servers import ServerPool, Servers, Wire

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
UNLOOPED = ("gpipe", "zero-bubble", "v", "zbv")
SERVERS_OF_TWO = Servers(
    kind="h100",
    memory=79e9,
    num_servers=2,
    per_server=2,
    inside=Wire(3e11, 5e-6),
    network=Wire(5e9, 1e-5, OWN_BETWEEN),
).cluster("two servers of two")


def three_kinds() -> Cluster:
    """Two GPUs of each of three kinds, of which the fastest has the least memory."""
    network = Wire(2.5e10, 1e-5, OWN_BETWEEN)
    kinds = {"h100": 12e9, "a100-80": 80e9, "l40s": 24e9}
    parts = [
        Servers(kind, memory, 1, 2, Wire(2e11, 5e-6), network)
        for kind, memory in kinds.items()
    ]
    return ServerPool(tuple(parts)).cluster("three kinds")


def two_kinds(
    first: str, second: str, bytes_first: float, bytes_second: float
) -> Cluster:
    """A server of two GPUs of one kind and one of two of another."""
    network = Wire(5e9, 1e-5, OWN_BETWEEN)
    parts = [
        Servers(kind, memory, 1, 2, Wire(2e11, 5e-6), network)
        for kind, memory in ((first, bytes_first), (second, bytes_second))
    ]
    return ServerPool(tuple(parts)).cluster(f"{first} and {second}")


def setting(
    sizes: DecoderSizes,
    framework: str,
    memory: float | None,
    cluster: str | Cluster = CLUSTER,
) -> PricingSetting:
    return make_pricing_setting(
        sizes, resolve_cluster(cluster), framework_name=framework, memory_limit=memory
    )


def ways_to_share(
    on: PricingSetting, replicas: int, offload: str
) -> Iterator[tuple[int, int | None, str | None]]:
    """ZeRO's stages, groups of several replicas in one of several servers, and what is hidden."""
    traits, server = on.framework.traits, on.framework.network.per_server
    for zero in traits.zero_stages if replicas > 1 or offload != "none" else (0,):
        groups: list[int | None] = [None]
        if zero in traits.zero_groups and on.cluster.num_devices > server:
            groups += [
                group for group in (2, 4) if group < replicas and group <= server
            ]
        overlaps: list[str | None] = [None]
        if on.framework.name == "megatron-lm" and replicas > 1:
            overlaps += ["reduce", "reduce+gather"] if zero else ["reduce"]
        yield from itertools.product((zero,), groups, overlaps)


def every_plan(
    on: PricingSetting, num_devices: int, offload: str = "none"
) -> list[tuple[float, PlanSpec]]:
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
            schedules += [name for name in UNLOOPED if name in traits.schedules]
            schedules += [
                f"interleaved:{v}" for v in chunks if "interleaved" in traits.schedules
            ]
        sizes = [m for m in (1, 2, 4, 8) if batch // dp % m == 0]
        experts = [ep for ep in powers if on.decoder.experts or ep == 1]
        shared = list(ways_to_share(on, dp * cp, offload))
        axes = itertools.product(sizes, experts, shared, (True, False), schedules)
        for size, ep, (zero, group, overlap), sp, schedule in axes:
            if group is not None and group % math.lcm(cp, ep):
                continue
            for layers in list_cuts(on, pp, schedule):
                plan = PlanSpec(
                    dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, sp=sp, layers=layers, zero=zero,
                    microbatch_size=size, batch=batch, schedule=schedule,
                    zero_group=group, overlap=overlap, offload=offload,
                )  # fmt: skip
                if (
                    schedule.startswith("interleaved")
                    and plan.num_microbatches(batch) % pp
                ):
                    continue
                found += priced_recomputations(on, plan)
    return found


def priced_recomputations(
    on: PricingSetting, plan: PlanSpec
) -> Iterator[tuple[float, PlanSpec]]:
    """Seconds of a plan with everything that it may recompute, if it fits then."""
    layers = range(1, on.decoder.layers)
    parts = ("selective", *list_recomputed_modules(on))
    is_enough = False
    for recompute in ("none", *parts, *(f"block:{k}" for k in layers), "full"):
        if is_enough and recompute != "full":
            continue
        row = replace(plan, recompute=recompute)
        answer = price(on, row)
        if answer.feasible:
            yield answer.step_time, row
            is_enough = recompute not in parts
        if answer.feasible and recompute == "none":
            return
    if not on.framework.traits.recomputes_by_rank or plan.pp == 1:
        return
    # A rank's layers do not count for the others: the fewest of each, one rank after another.
    counts = [on.decoder.layers] * plan.pp
    for rank in range(plan.pp):
        while counts[rank] > 0:
            counts[rank] -= 1
            if not price(on, recomputed_by_rank(plan, counts)).feasible:
                counts[rank] += 1
                break
    row = recomputed_by_rank(plan, counts)
    answer = price(on, row)
    if answer.feasible:
        yield answer.step_time, row


def recomputed_by_rank(plan: PlanSpec, counts: Sequence[int]) -> PlanSpec:
    """The plan with so many recomputed layers of each stage of every rank."""
    return replace(plan, recompute="block:" + "+".join(map(str, counts)))


@pytest.mark.parametrize(
    ("sizes", "framework", "memory", "cluster"),
    [
        (DENSE, "megatron-lm", None, CLUSTER),
        (DENSE, "megatron-lm", 9e9, CLUSTER),
        (DENSE, "megatron-lm", 9e9, SERVERS_OF_TWO),
        (DENSE, "nanotron", 11e9, CLUSTER),
        (DENSE, "pytorch", 9e9, CLUSTER),
        (DENSE, "torchtitan", None, SERVERS_OF_TWO),
        (MIXTURE, "torchtitan", 14e9, CLUSTER),
        (MIXTURE, "internevo", 12e9, SERVERS_OF_TWO),
        (DENSE, "megatron-lm", None, two_kinds("h100", "a100-80", 79e9, 79e9)),
        (DENSE, "megatron-lm", None, two_kinds("a100-80", "h100", 9e9, 14e9)),
        (DENSE, "pytorch", None, two_kinds("a100-80", "h200", 11e9, 9e9)),
        (MIXTURE, "torchtitan", None, two_kinds("h100", "a100-80", 14e9, 20e9)),
    ],
)
def test_what_is_found_is_the_least_of_every_plan(sizes, framework, memory, cluster):
    on, num_devices = setting(sizes, framework, memory, cluster), 4
    plans = every_plan(on, num_devices)
    found = search_specs(SpecSpace(on, sizes.batch, num_devices))
    assert plans
    least = min(seconds for seconds, _ in plans)
    assert found.best[0].seconds == pytest.approx(least, rel=1e-9)
    assert found.bound == pytest.approx(least, rel=1e-8)
    assert found.num_priced < len(plans)


def test_layers_are_divided_over_three_kinds_by_memory_too():
    sizes = replace(DENSE, layers=24, vocabulary=32000)
    on = setting(sizes, "megatron-lm", None, three_kinds())
    plan = PlanSpec(dp=2, pp=3, microbatch_size=1, zero=1)

    def least(cuts: Sequence[tuple[int, ...] | None]) -> float:
        answers = [price(on, replace(plan, layers=layers)) for layers in cuts]
        return min(a.step_time for a in answers if a.feasible and a.step_time)

    every = [
        (first, second, 24 - first - second)
        for first, second in itertools.product(range(1, 23), repeat=2)
        if first + second < 24
    ]
    cuts = list_cuts(on, 3, "1f1b")
    assert len(cuts) < 0.6 * len(every)
    assert least(cuts) == pytest.approx(least(every), rel=0.05)


@pytest.mark.parametrize(
    ("framework", "offload", "memory"),
    [
        ("megatron-lm", "optimizer", 5e9),
        ("pytorch", "optimizer", 5e9),
        ("pytorch", "optimizer+parameters", 3e9),
        ("torchtitan", "optimizer+parameters", 4e9),
    ],
)
def test_with_state_on_the_host_it_is_the_least_too(framework, offload, memory):
    on = setting(DENSE, framework, memory)
    plans = every_plan(on, 4, offload)
    modes = PlanSpec(offload=offload)
    found = search_specs(SpecSpace(on, DENSE.batch, 4, modes))
    assert plans
    assert found.best[0].seconds == pytest.approx(
        min(seconds for seconds, _ in plans), rel=1e-9
    )
    assert found.best[0].spec.offload == offload
    # Without it nothing fits.
    assert not search_specs(SpecSpace(on, DENSE.batch, 4)).best


def test_every_rank_recomputes_the_fewest_layers_that_fit():
    on = setting(replace(DENSE, vocabulary=8192), "pytorch", 5e9)

    def accepts(spec: PlanSpec) -> bool:
        is_fixed = spec.pp == 4 and spec.microbatch_size == 1 and spec.zero == 0
        return is_fixed and spec.schedule == "1f1b" and spec.layers is None

    found = search_specs(SpecSpace(on, DENSE.batch, 4), accepts=accepts)
    plan = replace(found.best[0].spec, recompute="none")
    rows = itertools.product(range(3), repeat=4)
    answers = [price(on, recomputed_by_rank(plan, counts)) for counts in rows]
    fitting = [answer.step_time for answer in answers if answer.feasible]
    assert found.best[0].spec.recomputes_by_rank
    assert 0 < len(fitting) < len(answers)
    assert found.best[0].seconds == pytest.approx(min(fitting), rel=1e-9)
    uniform = [price(on, replace(plan, recompute=f"block:{k}")) for k in (1, 2)]
    feasible = [answer.step_time for answer in uniform if answer.feasible]
    assert found.best[0].seconds < min(feasible) * 0.995


def test_numbers_of_recomputed_layers_are_one_a_rank():
    on = setting(DENSE, "pytorch", None)
    plan = PlanSpec(pp=2, recompute="block:2+1+0")
    assert "3 numbers for 2 ranks" in price(on, plan).reason
    other = setting(DENSE, "megatron-lm", None)
    assert "as many layers of every rank" in price(other, plan).reason


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


@pytest.mark.parametrize("framework", ["pytorch", "torchtitan"])
def test_who_cannot_recompute_some_layers_may_recompute_all(framework):
    on = setting(DENSE, framework, 13e9)

    def accepts(spec: PlanSpec) -> bool:
        is_fixed = spec.dp == 4 and spec.microbatch_size == 2
        return is_fixed and spec.recompute in ("none", "full")

    plans = [seconds for seconds, spec in every_plan(on, 4) if accepts(spec)]
    found = search_specs(SpecSpace(on, DENSE.batch, 4), accepts=accepts)
    assert found.best[0].seconds == pytest.approx(min(plans), rel=1e-9)
    assert found.bound == pytest.approx(min(plans), rel=1e-8)


def test_without_time_the_bound_is_below_every_plan():
    on = setting(DENSE, "megatron-lm", 9e9)
    first = search_specs(SpecSpace(on, 8, 8), budget=0.0)
    whole = search_specs(SpecSpace(on, 8, 8))
    assert first.best
    assert first.bound <= whole.bound <= first.best[0].seconds
