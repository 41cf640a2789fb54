from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from gnnplace.errors import FormatError, MismatchError
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import DECODED, Aim
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import build_clusters
from gnnplace.policy.gnn.features import STATIC, message_features
from gnnplace.policy.gnn.features import static_features as features_of_ops
from gnnplace.policy.gnn.network import GnnPolicy
from gnnplace.policy.network import PlacementPolicy, read_policy
from gnnplace.policy.weights import (
    GLOBAL,
    POLICY_CHECKPOINT,
    global_features,
    read_weights,
)
from gnnplace.problem import Problem
from gnnplace.train.data.random_families import RandomDraws
from gnnplace.train.data.random_families import random_problem as family_problem
from tests.policy.problems import permuted_devices, permuted_ops, trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
AIMS = [Aim(order, limit) for limit in (4, 2, 1) for order in DECODED]
POLICY = trained_like()


def test_checkpoint_round_trip(tmp_path):
    policy = trained_like()
    policy.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    for again in (read_policy(tmp_path), PlacementPolicy.from_pretrained(tmp_path)):
        for name, value in policy.state_dict().items():
            assert torch.equal(again.state_dict()[name], value)
    weights = read_weights(tmp_path)
    assert (weights.decoder == policy.decoder.detach().numpy()).all()
    assert (weights.refiner == policy.refiner.detach().numpy()).all()


def test_other_features_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"feature_version": "99"})
    )
    with pytest.raises(MismatchError, match="feature_version 99"):
        read_policy(tmp_path)
    with pytest.raises(MismatchError, match="feature_version 99"):
        PlacementPolicy.from_pretrained(tmp_path)


def test_broken_configurations_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"colour": 1}))
    with pytest.raises(FormatError, match=r"config\.json: colour: unknown key"):
        read_policy(tmp_path)


def test_parameters_of_other_sizes_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "decoder": torch.zeros(3)}, path)
    for read in (read_policy, read_weights):
        with pytest.raises(MismatchError, match="do not fit"):
            read(tmp_path)


def test_missing_or_broken_parameters_are_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_policy(tmp_path / "nowhere")
    trained_like().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    for read in (read_policy, read_weights):
        with pytest.raises(FormatError, match="cannot be read"):
            read(tmp_path)


def test_shipped_checkpoint_is_small_and_loads():
    assert (POLICY_CHECKPOINT / "model.safetensors").stat().st_size < 2e4
    assert isinstance(read_policy(POLICY_CHECKPOINT), PlacementPolicy)


@pytest.mark.parametrize(
    ("kind", "placer"), [(PlacementPolicy, "learned"), (GnnPolicy, "gnn")]
)
def test_a_saved_policy_has_a_card_that_says_how_to_use_it(tmp_path, kind, placer):
    kind().save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert f"--placer {placer} --checkpoint" in card
    assert "license: apache-2.0" in card
    assert "pushed" not in card


def test_the_policy_does_not_import_lightning():
    code = "import sys, gnnplace.policy; print('lightning' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def graph_of(problem: Problem) -> WalkGraph:
    return WalkGraph(SearchSpace(problem))


def static_features(graph: WalkGraph) -> np.ndarray:
    return features_of_ops(graph, build_clusters(graph))


def faster(problem: Problem, factor: float) -> Problem:
    links = tuple(
        link.model_copy(
            update={
                "latency": link.latency / factor,
                "bandwidth": link.bandwidth * factor,
            }
        )
        for link in problem.cluster.links
    )
    return replace(
        problem,
        cluster=replace(problem.cluster, links=links),
        time={kind: seconds / factor for kind, seconds in problem.time.items()},
    )


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_all_features_are_finite(seed):
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 25)), int(rng.integers(1, 5))
    problem = random_problem(rng, *shape, complete=False, constrained=True)
    graph = graph_of(problem)
    static, whole = static_features(graph), global_features(graph)
    assert static.shape == (len(graph.ops), len(STATIC))
    assert whole.shape == (len(GLOBAL),)
    assert np.isfinite(static).all()
    assert np.isfinite(whole).all()
    assert np.isfinite(message_features(graph)).all()
    if problem.unit_allowed.any(axis=1).all():
        rollouts = Rollouts(graph.space, POLICY)
        for aim in rollouts.aims:
            seen = rollouts.watch(aim, np.full(problem.num_units, -1, np.int32))
            assert seen.features.shape[2] == len(DYNAMIC)
            assert np.isfinite(seen.features).all()


def test_a_machine_twice_as_fast_looks_the_same():
    problem = family_problem("inception", 2)
    graphs = graph_of(problem), graph_of(faster(problem, 2.0))
    for of in (static_features, global_features, message_features):
        np.testing.assert_allclose(of(graphs[0]), of(graphs[1]), rtol=1e-5, atol=1e-6)
    aim = Aim("upward-rank", 2)
    device = np.arange(problem.num_units, dtype=np.int32) % problem.num_devices
    seen = [Rollouts(graph.space, POLICY).watch(aim, device) for graph in graphs]
    np.testing.assert_allclose(seen[0].features, seen[1].features, rtol=1e-4, atol=1e-5)


def test_features_follow_a_new_listing_of_ops_and_devices():
    problem = family_problem("layered", 4, RandomDraws(ops=(40, 60)))
    rng = np.random.default_rng(0)
    order = rng.permutation(problem.num_ops)
    plain, moved = graph_of(problem), graph_of(permuted_ops(problem, order))
    if problem.microbatches == 1:
        np.testing.assert_allclose(
            static_features(plain)[order], static_features(moved), rtol=1e-5, atol=1e-6
        )
    turned = graph_of(permuted_devices(problem, rng.permutation(problem.num_devices)))
    np.testing.assert_allclose(
        static_features(plain), static_features(turned), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        global_features(plain), global_features(turned), rtol=1e-5
    )
