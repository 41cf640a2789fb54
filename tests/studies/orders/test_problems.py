from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.orders.problems import (
    HELD_OUT,
    NETWORKS,
    OWN,
    PARTS,
    SEARCHED,
    SEEN,
    drawn,
    families,
    graph_features,
    study_problems,
    training_problems,
)
from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.problem import build_problem, compute_digest
from gnnplace.train.data.random_clusters import CLUSTERS, TRAIN_CLUSTERS


def test_parts_share_no_family():
    names = [name for part in PARTS if part != OWN for name in families(part)]
    assert len(names) == len(set(names))
    assert {"searched-cnn*", "searched-rnn*", "nmt*"} == set(families(SEARCHED))
    assert "bert*" in families(HELD_OUT)
    assert "gpt2*" in families(SEEN)
    with pytest.raises(InputError, match="part 'none': unknown; parts: seen"):
        families("none")


@pytest.mark.parametrize("part", [NETWORKS, SEARCHED])
def test_every_family_is_on_every_cluster_with_ample_memory(part):
    entries = study_problems(part, each=1)
    cells = [(entry.family, entry.cluster) for entry in entries]
    assert cells == [
        (family, cluster) for family in families(part) for cluster in CLUSTERS
    ]
    for entry in entries:
        assert entry.problem.cluster.name == entry.cluster
        assert not SearchSpace(entry.problem).memory_matters
        assert 2 <= entry.problem.num_devices <= 8


def test_training_draws_from_families_and_clusters_seen_alone():
    problems = training_problems(3, 30)
    assert {problem.cluster.name for problem in problems} <= set(TRAIN_CLUSTERS)
    assert {problem.microbatches for problem in problems} == {1, 4} or len(
        problems
    ) < 60
    again, other = training_problems(3, 4), training_problems(4, 4)
    assert [compute_digest(p) for p in again] == [
        compute_digest(p) for p in problems[:4]
    ]
    assert all(
        compute_digest(a) != compute_digest(b)
        for a, b in zip(again, other, strict=True)
    )


def test_problems_of_a_searched_family_are_of_different_graphs():
    names = [drawn("nmt*", 1, ("own",), graph, 1).name for graph in range(3)]
    assert len(set(names)) == 3


def test_features_of_a_diamond_are_what_they_say(diamond):
    found = graph_features(WalkGraph(SearchSpace(diamond)))
    assert found["ops"] == 4
    assert found["depth"] == 3
    assert found["width"] == pytest.approx(2 * 3 / 4)
    assert found["degree"] == 1.0
    assert found["fan-out"] == pytest.approx(2 / 4)
    assert found["critical share"] == pytest.approx((1 + 3 + 1) / 6)
    assert found["ccr"] == pytest.approx(4 * (1e-6 + 100 / 1000) / 2 / 6)
    assert found["uneven"] == pytest.approx(np.log([1, 1, 3, 1]).std())
    assert found["shared"] == 0.0
    assert (found["devices"], found["microbatches"], found["mixed"]) == (2, 1, 1)
    assert found["channels"] == 1.0


@pytest.fixture
def diamond():
    from gnnplace.graph import ComputationGraph
    from gnnplace.train.data.random_clusters import make_cluster

    graph = ComputationGraph.from_tensors(
        list("abcd"), [(0, 100.0, [1, 2]), (1, 100.0, [3]), (2, 100.0, [3])]
    )
    cluster = make_cluster("own", 2, 1000.0, 1e-6, 1e9, np.random.default_rng(0))
    return build_problem(
        "diamond", graph, cluster, {"fast": np.array([1.0, 1.0, 3.0, 1.0])}
    )


def test_own_trainings_and_their_problems_share_no_graph():
    trained = {p.name.rsplit("-", 1)[0] for p in training_problems(0, 8, "nmt*")}
    entries = [e for e in study_problems(OWN, each=2) if e.family == "nmt*"]
    evaluated = {entry.problem.name.rsplit("-", 1)[0] for entry in entries}
    assert len(trained) == len(evaluated) == 8
    assert not trained & evaluated
