"""The search against all contiguous plans of small chains: never worse than the best of its space,
and the bound below all of them."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from gnnplace.plans.answers import find_plans, make_plan, price_given_plan
from gnnplace.plans.given import draft_spec
from gnnplace.plans.job import SearchOptions
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.reading import plan_from_data
from gnnplace.plans.search.draft import realize_draft
from gnnplace.plans.search.drafts import draft_baselines
from gnnplace.plans.search.search import Shortlist, improve_orders, search
from gnnplace.plans.search.space import price_space
from gnnplace.plans.search.stage import Pricer, Stage
from gnnplace.plans.spec import parse_spec
from tests.plans.toys import all_drafts, chain, cluster


@pytest.mark.parametrize("seed", range(3))
def test_bound_and_best_against_all_plans(seed):
    rng = np.random.default_rng(seed)
    model, machine = chain(rng, count=4, batch=4), cluster(3)
    fabric = MeshFabric(machine)
    found = search(model, machine, SearchOptions(budget=3.0))
    least = np.inf
    for draft in all_drafts(model, machine):
        priced = realize_draft(Pricer(model, fabric, draft.size), draft)
        assert priced is not None
        least = min(least, priced.step_time)
        assert priced.step_time >= found.bound * (1 - 1e-9)
    assert found.best[0].step_time <= least * (1 + 1e-9)
    assert found.bound <= found.best[0].step_time


def leanest(pricer, draft, kinds=((0, False),)):
    """The draft with the least recomputation of any subset of segments, ZeRO and all.

    Kinds are layers that keep one input together, and whether attention alone is recomputed.
    """
    best = np.inf
    for zeros in itertools.product((1, 2, 3), repeat=len(draft.stages)):
        sets = (itertools.product(subsets(s), kinds) for s in draft.stages)
        for again in itertools.product(*sets):
            stages = tuple(
                replace(s, zero=z if s.mesh.replicas > 1 else 0, recompute=frozenset(a),
                        together=k[0], attention=k[1])
                for s, z, (a, k) in zip(draft.stages, zeros, again, strict=True)
            )  # fmt: skip
            priced = realize_draft(pricer, replace(draft, stages=stages))
            if priced is not None and priced.lacking[1] <= 0:
                best = min(best, priced.step_time)
        if all(s.mesh.replicas == 1 for s in draft.stages):
            break
    return best


def subsets(stage):
    run = range(stage.first, stage.last)
    return [a for k in range(len(run) + 1) for a in itertools.combinations(run, k)]


@pytest.mark.parametrize("seed", range(2))
def test_best_of_all_recomputation_and_zero_where_memory_is_tight(seed):
    """Every cut, mesh, micro-batch, ZeRO and set of recomputed segments under 1F1B, two devices."""
    rng = np.random.default_rng(seed)
    model, machine = chain(rng, count=4, batch=4), cluster(2, memory=120.0)
    fabric = MeshFabric(machine)
    found = search(model, machine, SearchOptions(budget=3.0))
    least = min(
        leanest(Pricer(model, fabric, d.size), d) for d in all_drafts(model, machine)
    )
    assert np.isfinite(least)
    assert (
        found.best[0].step_time <= least * 1.02
    )  # half-way between segments is not a set of them
    assert found.bound <= least * (1 + 1e-9)


@pytest.mark.parametrize(("part", "taken"), [(0.2, True), (0.9, False)])
def test_attention_is_recomputed_where_that_frees_more_a_second(part, taken):
    model = chain(np.random.default_rng(0), count=4, batch=4, attention=part)
    pricer = Pricer(model, MeshFabric(cluster(1)), 4)
    stage = Stage(0, 4, Mesh.over(0, 1, (1,)))
    whole = pricer.held([stage], [3])
    (found,) = pricer.fitted([stage], [3], 0.8 * whole)
    assert found.recompute
    assert found.attention == taken
    assert pricer.held([found], [3]) <= 0.8 * whole


def test_segments_of_one_layer_keep_one_input():
    model = chain(np.random.default_rng(0), count=4, batch=4, attention=0.2)
    pricer, saved = Pricer(model, MeshFabric(cluster(1)), 4), 4 * model.source.saved
    again = Stage(0, 4, Mesh.over(0, 1, (1,)), recompute=frozenset(range(4)))
    found = [pricer.cost(replace(again, together=k)) for k in (0, 1, 2)]
    assert [c.saved for c in found] == pytest.approx([8.0, 4.0, 2.0])  # 2 bytes each
    largest = saved.max(), max(saved[:2].sum(), saved[2:].sum()), saved.sum()
    assert [c.working for c in found] == pytest.approx([0.1 + x for x in largest])
    assert len({c.recomputed for c in found}) == 1


@pytest.mark.parametrize("seed", range(2))
def test_best_of_layers_that_keep_one_input_and_of_attention_alone(seed):
    rng = np.random.default_rng(seed)
    model, machine = (
        chain(rng, count=4, batch=4, attention=0.3),
        cluster(2, memory=90.0),
    )
    fabric = MeshFabric(machine)
    found = search(model, machine, SearchOptions(budget=2.0))
    kinds = ((0, False), (1, False), (0, True))
    drafts = all_drafts(model, machine)
    least = min(leanest(Pricer(model, fabric, d.size), d, kinds) for d in drafts)
    assert np.isfinite(least)
    assert found.best[0].step_time <= least * 1.02
    assert found.bound <= least * (1 + 1e-9)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_four_devices_against_all_plans_with_all_recomputation_and_zero(seed):
    """Every cut, mesh, micro-batch, ZeRO and set of recomputed segments under 1F1B."""
    rng = np.random.default_rng(seed)
    model, machine = (
        chain(rng, count=4, batch=4),
        cluster(4, memory=(1e9, 80.0)[seed % 2]),
    )
    fabric = MeshFabric(machine)
    found = search(model, machine, SearchOptions(budget=3.0))
    least = min(
        leanest(Pricer(model, fabric, d.size), d) for d in all_drafts(model, machine)
    )
    assert found.bound_of_one <= least * (1 + 1e-9)
    assert found.best[0].step_time <= least * 1.02


def test_plans_that_run_have_as_many_replicas_in_every_stage():
    model, machine = chain(np.random.default_rng(0), count=6, batch=8), cluster(3)
    free, held = (
        search(model, machine, SearchOptions(budget=0.0, runnable=r))
        for r in (False, True)
    )
    assert {len({s.mesh.replicas for s in p.draft.stages}) for p in free.best} > {1}
    assert {len({s.mesh.replicas for s in p.draft.stages}) for p in held.best} == {1}
    assert held.best[0].step_time >= free.best[0].step_time * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_more_time_is_never_worse_and_baselines_are_never_better(seed):
    rng = np.random.default_rng(seed)
    model, machine = chain(rng, count=8, batch=16), cluster(4, memory=200.0)
    steps = [search(model, machine, SearchOptions(budget=b)) for b in (0.0, 0.3, 2.0)]
    times = [found.best[0].step_time for found in steps]
    assert times == sorted(times, reverse=True)
    assert len({found.bound for found in steps}) == 1
    for found in steps:
        assert found.baselines
        for priced in found.baselines.values():
            assert priced.step_time >= found.best[0].step_time


@pytest.mark.parametrize("seed", range(3))
def test_pipedream_has_the_least_slowest_stage_of_all_cuts_and_replicas(seed):
    """Against all of them: kernels of a micro-batch, and a micro-batch's share of what ends it."""
    model, machine = chain(np.random.default_rng(seed), count=5, batch=4), cluster(4)
    for size in (1, 2, 4):
        pricer = Pricer(model, MeshFabric(machine), size)
        found = draft_baselines(price_space(pricer, model.batch // size))["pipedream"]
        slowest = {
            d.stages: max(
                slow.microbatch + slow.end / d.microbatches for slow in priced.costs
            )
            for d in all_drafts(model, machine)
            if d.size == size and all(s.mesh.shards == 1 for s in d.stages)
            for d in [replace(d, stages=tuple(replace(s, zero=0) for s in d.stages))]
            for priced in [realize_draft(pricer, d)]
        }
        assert [slowest[d.stages] for _, d in found] == [
            pytest.approx(min(slowest.values()), rel=2e-3)
        ]


def test_a_batch_that_stays_whole_has_no_replicas():
    """Neither in the plan nor in a baseline: those of given words are refused."""
    model = replace(
        chain(np.random.default_rng(0), count=6, batch=8), mixes="op sort mixes it"
    )
    found = search(model, cluster(4), SearchOptions(budget=0.0))
    plans = (*found.best, *found.baselines.values())
    assert {
        stage.mesh.replicas for priced in plans for stage in priced.draft.stages
    } == {1}
    assert "ddp" not in found.baselines


def test_searched_orders_are_better_and_kept_by_files():
    model, machine = chain(np.random.default_rng(3), count=8, batch=16), cluster(4)
    words = "pp=4,microbatch_size=1,schedule="
    plain = [
        price_given_plan(model, machine, f"{words}{s}").step_time
        for s in ("1f1b", "zero-bubble")
    ]
    assert plain[1] < 0.97 * plain[0]
    made = Shortlist(model, MeshFabric(machine))
    draft = replace(draft_spec(model, machine, parse_spec(f"{words}zero-bubble")))
    start = made.keep(draft)
    for _ in improve_orders([start], made.pricer, made.keep):
        pass
    best = made.best[0]
    assert best.step_time < start.step_time
    plan = make_plan(model, machine, best)
    again = price_given_plan(model, machine, plan_from_data(plan.to_data(), "plan"))
    assert again.step_time == pytest.approx(best.step_time)
    assert again.file.schedule == "zero-bubble:searched"


@pytest.mark.parametrize("seed", range(4))
def test_memory_is_kept_and_a_plan_survives_its_file(seed):
    rng = np.random.default_rng(seed)
    model = chain(rng, count=6, batch=8)
    machine = cluster(4, memory=150.0)
    plan = find_plans(model, machine)[0]
    if not plan.feasible:
        assert "lacks" in plan.reason
        return
    for memory in plan.file.memory.values():
        assert sum(memory.model_dump().values()) <= 150.0
    again = price_given_plan(model, machine, plan_from_data(plan.to_data(), "plan"))
    assert again.step_time == pytest.approx(plan.step_time)
    assert again.file.actions == plan.file.actions


def test_less_memory_is_never_faster():
    rng = np.random.default_rng(0)
    model = chain(rng, count=6, batch=8)
    times = [
        find_plans(model, cluster(4, memory=memory))[0]
        for memory in (1e9, 300.0, 150.0, 110.0, 1.0)
    ]
    steps = [plan.step_time if plan.feasible else np.inf for plan in times]
    assert steps == sorted(steps)
    assert not times[-1].feasible
    assert "nothing fits" in times[-1].reason
    least = int(re.search(r"take at least (\d+) such devices", times[-1].reason)[1])
    state = 8 * sum(
        model.costs(["gpu"], (1,), 8).parameters
    )  # SGD: values and gradients
    assert least - 1 < state <= least


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("dp=2,speed=3", "'speed=3': must be NAME=VALUE"),
        ("dp", "'dp': must be NAME=VALUE"),
        ("dp=two", "dp=two: must be a whole number"),
        ("dp=8", "dp x tp x pp is 8; 'toy' has 4 devices"),
        ("dp=2,microbatch_size=3", "no multiple of 2 replicas x 3 examples"),
        ("pp=2,schedule=gpipe", "schedule=gpipe: a captured model runs 1f1b"),
        ("recompute=half", "recompute=half: must be one of none"),
        ("dp=0", "a whole number from 1 on"),
    ],
)
def test_words_that_are_wrong_are_named(words, told):
    from gnnplace.errors import InputError

    with pytest.raises(InputError) as caught:
        price_given_plan(chain(np.random.default_rng(0), batch=8), cluster(4), words)
    assert told in str(caught.value)


def test_replicas_halve_the_examples_and_exchange_gradients():
    model = chain(np.random.default_rng(0), batch=8)
    one = price_given_plan(model, cluster(4), "microbatch_size=8")
    two = price_given_plan(model, cluster(4), "dp=2,microbatch_size=4")
    assert one.file.parts["reduction"] == 0.0
    assert two.file.parts["reduction"] > 0.0
    assert two.file.parts["compute"] == pytest.approx(
        one.file.parts["compute"] * 4.1 / 8.1
    )
