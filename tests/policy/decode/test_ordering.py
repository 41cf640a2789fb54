from __future__ import annotations

import numpy as np
import pytest

from gnnplace.placers import SearchSpace
from gnnplace.placers.contiguous import Contiguous
from gnnplace.policy.decode.ordering import best_order, order_by_justification
from gnnplace.simulation.list_scheduling import list_schedule
from gnnplace.train.data.random_families import RandomDraws, random_problem


@pytest.fixture(scope="module", params=[1, 4])
def placed(request):
    """A problem of so many micro-batches and devices at random."""
    shape = RandomDraws(ops=(40, 60), devices=(4, 4), microbatches=(request.param,))
    space = SearchSpace(random_problem("transformer", 2, shape))
    units = np.random.default_rng(0).integers(4, size=space.problem.num_units)
    return space, space.spread(space.allow(units))


def test_the_order_has_its_score_and_is_no_worse_than_the_schedules_it_starts_from(
    placed,
):
    space, device = placed
    by_rank = list_schedule(space.compiled, device, space.priorities[0])
    score, order = order_by_justification(
        space, device, priorities=space.priorities[:1]
    )
    assert score == space.score(device, order)
    assert sorted(order) == list(range(space.problem.num_ops))
    assert score <= space.score(device, by_rank)
    if space.problem.microbatches > 1:
        assert score <= space.score(device, space.turn_order)


def test_justification_shortens_pipelines():
    shape = RandomDraws(ops=(40, 60), devices=(4, 4), microbatches=(4,))
    ratios = []
    for seed in range(6):
        space = SearchSpace(random_problem("transformer", seed, shape))
        device = (
            Contiguous(moves=False).search(space, np.random.default_rng(0), 0.0).device
        )
        justified = order_by_justification(
            space, device, priorities=space.priorities[:1]
        )[0]
        ratios.append(justified / space.sequence(device)[0])
    assert max(ratios) < 1.0
    assert np.mean(ratios) < 0.99


def test_the_incumbent_stays_where_no_order_is_better(placed):
    space, device = placed
    score = space.score(device, space.turn_order)
    kept = best_order(space, device, [space.turn_order], (score, space.turn_order))
    assert kept[1] is space.turn_order
    assert best_order(space, device, [space.turn_order])[0] == score
