"""Bounds of plans in words: from what many share down to one plan, none is above a price."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.setting import setting_of
from gnnplace.plans.spec_bounds import family_bound, group_bound, least_rows, row_bound
from gnnplace.plans.spec_cuts import pipeline_cuts
from gnnplace.plans.spec_groups import SpecSpace, families_of
from gnnplace.plans.spec_search import rows_of_family
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
    on = setting_of(sizes, cluster, framework_name=framework, memory_limit=memory)
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
        for family in families_of(group, plain):
            rows = list(rows_of_family(group, family))
            least = least_rows(group, family)
            for row in draws.sample(rows, min(4, len(rows))):
                bound = row_bound(group, row) * (1 + 1e-9)
                assert group_bound(group) <= bound
                assert family_bound(group, family) <= bound
                assert least[numbers[row.schedule, row.layers]] <= bound
                seconds = space.answer(row).step_time
                assert seconds is None or bound <= seconds * (1 + 1e-8)
                num_rows += 1
    assert num_rows > 40
