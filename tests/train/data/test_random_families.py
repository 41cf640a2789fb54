from __future__ import annotations

import numpy as np
import pytest

from gnnplace.errors import InputError
from gnnplace.problem import BACKWARD, UPDATE, problem_to_data
from gnnplace.train.data.random_families import (
    CLUSTERS,
    FAMILIES,
    TEST,
    TRAIN,
    VALIDATION,
    RandomDraws,
    random_problem,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_keep_what_was_asked_for(family):
    seen = set()
    for seed in range(12):
        problem = random_problem(
            family, seed, RandomDraws(ops=(40, 120), devices=(3, 5))
        )
        assert 15 <= problem.num_ops / problem.microbatches <= 300
        assert 3 <= problem.num_devices <= 5
        assert (problem.times > 0).all()
        assert problem.unit_allowed.any(axis=1).all()
        seen.add((problem.microbatches > 1, bool((problem.phase == BACKWARD).any())))
    assert {(False, False), (False, True), (True, True)} <= seen


def test_the_same_seed_gives_the_same_problem():
    def data(seed):
        return problem_to_data(random_problem("inception", seed))

    assert data(7) == data(7)
    assert data(7) != data(8)


def test_training_graphs_colocate_weights_with_their_updates():
    problems = (
        random_problem("seq2seq", seed, RandomDraws(microbatches=(1,)))
        for seed in range(20)
    )
    problem = next(p for p in problems if (p.phase == UPDATE).any())
    for op in np.flatnonzero(problem.phase == UPDATE):
        label = problem.colocate[op]
        phases = {
            int(problem.phase[i]) for i, c in enumerate(problem.colocate) if c == label
        }
        assert label is not None
        assert phases == {0, 1, 2}
        assert all(
            problem.colocate[i] == label for i in problem.graph.predecessors(int(op))
        )


def test_clusters_are_what_they_are_called():
    shared = random_problem(
        "chain", 1, RandomDraws(clusters=("shared",), devices=(4, 4))
    ).cluster
    assert shared.num_channels == 1
    own = random_problem(
        "chain", 1, RandomDraws(clusters=("own",), devices=(4, 4))
    ).cluster
    assert own.num_channels == 12
    two_tier = random_problem(
        "chain", 1, RandomDraws(clusters=("two-tier",), devices=(4, 4))
    ).cluster
    assert two_tier.bandwidth[0, 1] > two_tier.bandwidth[0, 2]
    mixed = random_problem(
        "chain", 1, RandomDraws(clusters=("mixed",), devices=(4, 4))
    ).cluster
    assert len(mixed.kinds) == 2


def test_splits_are_apart_and_complete():
    assert sorted((*TRAIN, *VALIDATION, *TEST)) == sorted(FAMILIES)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="family 'moon': unknown; families: layered"):
        random_problem("moon", 0)
    with pytest.raises(InputError, match="cluster 'ring': unknown; clusters: shared"):
        random_problem("chain", 0, RandomDraws(clusters=(*CLUSTERS[:0], "ring")))


def test_knobs_change_what_they_name_and_nothing_else():
    def made(**knobs):
        return random_problem(
            "layered", 4, RandomDraws(clusters=("mixed",), devices=(4, 4), **knobs)
        )

    drawn, fast, slow = made(), made(ccr=0.1), made(ccr=1.0)
    assert np.allclose(fast.cluster.bandwidth, 10 * slow.cluster.bandwidth)
    moved = (
        slow.graph.size[slow.graph.consumption_tensor].sum()
        / slow.cluster.bandwidth[0, 1]
    )
    assert moved == pytest.approx(slow.time["fast"].sum())
    for problem in (fast, slow):
        assert np.array_equal(problem.times, drawn.times)
        assert np.array_equal(problem.graph.size, drawn.graph.size)
    even, uneven = made(heterogeneity=1.0), made(heterogeneity=3.0)
    assert np.allclose(uneven.time["slow"], 3 * even.time["slow"])
    assert np.array_equal(uneven.cluster.bandwidth, drawn.cluster.bandwidth)
