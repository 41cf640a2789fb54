"""Bounds of plans in words: from what many share down to one plan, none is above a price."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.order.orders import is_listed
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price_spec
from gnnplace.plans.spec_bounds import (
    bound_family,
    bound_group,
    bound_plan,
    group_bound,
    passes_ahead,
)
from gnnplace.plans.spec_cuts import pipeline_cuts
from gnnplace.plans.spec_groups import SpecSpace, list_families
from gnnplace.plans.spec_search import bound_family_cuts, make_cut_row, ranks_that_fit
from gnnplace.problem import Cluster
from tests.plans import test_spec_search

DENSE = replace(test_spec_search.DENSE, layers=8, batch=16)
MIXTURE = replace(DENSE, experts=ExpertLayers(8, 2, 4096, dense=1))


@pytest.mark.parametrize(
    ("sizes", "framework", "memory"),
    [
        (DENSE, "megatron-lm", 6e9),
        (DENSE, "nanotron", 8e9),
        (DENSE, "pytorch", None),
        (MIXTURE, "megatron-lm", 9e9),
        (MIXTURE, "torchtitan", None),
    ],
)
def test_no_bound_is_above_that_of_what_it_stands_for(
    sizes: DecoderSizes, framework: str, memory: float | None
) -> None:
    cluster = resolve_cluster("16xH100")
    on = make_pricing_setting(
        sizes, cluster, framework_name=framework, memory_limit=memory
    )
    space, draws = SpecSpace(on, sizes.batch, 16), random.Random(framework)
    pipelines = [
        group for group in space.groups if group.spec.pp > 1 and group.sums is not None
    ]
    num_rows = 0
    for group in draws.sample(pipelines, 24):
        cuts = pipeline_cuts(on, group.spec.pp)
        numbers = {
            cut: number
            for number, cut in enumerate(zip(cuts.schedules, cuts.layers, strict=True))
        }
        plain = draws.choice(group.stages_of_zero)
        for family in list_families(group, plain):
            rows: list[PlanSpec] = []
            for _, cut in bound_family_cuts(group, family):
                row = make_cut_row(group, family, cut)
                rows += [] if row is None else [row]
            least = bound_group(group, family)
            for row in draws.sample(rows, min(4, len(rows))):
                bound = bound_plan(group, row) * (1 + 1e-9)
                assert group_bound(group) <= bound
                assert bound_family(group, family) <= bound
                assert least[numbers[row.schedule, row.layers]] <= bound
                seconds = space.answer(row).step_time
                assert seconds is None or bound <= seconds * (1 + 1e-8)
                num_rows += 1
    assert num_rows > 40


@pytest.mark.parametrize(
    ("memory", "cluster"),
    [
        (None, resolve_cluster("16xH100")),
        (11e9, test_spec_search.two_kinds("a100-80", "h200", 11e9, 9e9)),
    ],
)
def test_what_ranks_hold_before_a_plan_is_timed_is_what_they_hold_then(
    memory: float | None, cluster: Cluster
) -> None:
    on = make_pricing_setting(
        DENSE, cluster, framework_name="pytorch", memory_limit=memory
    )
    draws = random.Random(1)
    groups = list(SpecSpace(on, DENSE.batch, cluster.num_devices).groups)
    pipelines = [g for g in groups if g.spec.pp > 1 and g.sums is not None]
    exact: list[bool] = []
    for group in draws.sample(pipelines, 12):
        plain = draws.choice(group.stages_of_zero)
        for _, cut in bound_family_cuts(group, plain):
            words = {"schedule": group.cuts.schedules[cut]}
            row = plain.with_words(**words, layers=group.cuts.layers[cut])
            if is_listed(row.schedule):
                in_flight = price_spec(on, row).flying[0]
                assert passes_ahead(group, row) <= in_flight
                exact.append(passes_ahead(group, row) == in_flight)
                continue
            counts = "+".join(str(draws.randrange(3)) for _ in range(row.pp))
            row = row.with_words(recompute=f"block:{counts}")
            priced = price_spec(on, row)
            fits = [priced.held(p) <= priced.memory[p] for p in range(row.pp)]
            holding = ranks_that_fit(group, row)
            assert holding is not None
            assert holding.tolist() == fits
    assert sum(exact) > 0.5 * len(exact) > 5
