from __future__ import annotations

from pathlib import Path

import pytest

from gnnplace.bench.kinds import check_name
from gnnplace.bench.suite import ProblemEntry, cells, read_suite
from gnnplace.placers.contract import training_chain
from gnnplace.problem import write_problem
from gnnplace.problem.cluster import preset_names
from gnnplace.train.data.captured import open_shipped_store
from gnnplace.train.data.datasets import find_dataset
from gnnplace.train.data.random_families import TEST, TRAIN

SUITES = Path(__file__).parents[2] / "benchmarks" / "suites"
SUITE = """
name: tiny
problems:
  - {captured: mlp-small, seed: 5, groups: 60, microbatches: 4, memory: tight, cluster: own}
  - {captured: bert-mini, whole: true, devices: [2, 3]}
  - {family: grid, seed: 2, ops: [30, 40], cluster: two-tier, devices: [4, 4]}
constructions: [single, heft]
placers: [annealing]
seeds: [3, 4]
budgets: [0.0, 1.0]
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "tiny.yaml").write_text(SUITE)
    return tmp_path / "tiny.yaml"


def loaded(path):
    """Problems of a suite with their entries."""
    suite, folder = read_suite(path), path.parent
    return [(entry, entry.load(folder)) for entry in suite.problems]


def test_problems_are_as_they_are_described(path):
    (one, mlp), (_, bert), (_, grid) = loaded(path)
    assert one.key == (
        "captured=mlp-small seed=5 cluster=own microbatches=4 groups=60 memory=tight"
    )
    assert mlp.microbatches == 4
    assert mlp.num_ops <= 4 * 61
    assert bert.num_ops == open_shipped_store().graph("bert-mini").num_ops
    assert bert.num_devices <= 3
    assert grid.cluster.name == "two-tier"
    assert grid.num_devices == 4


def test_keys_tell_problems_apart_and_not_what_they_are_compared_with(path):
    entries = [entry for entry, _ in loaded(path)]
    assert len({entry.key for entry in entries}) == 3
    named = ProblemEntry(file="p.json", family="grid")
    assert named.key == ProblemEntry(file="p.json").key
    assert named.labels == {"family": "grid", "cluster": "drawn"}


def test_constructions_run_once_and_placers_with_all_seeds_and_budgets(path):
    found = [(c.placer, c.seed, c.budget) for c in cells(read_suite(path))]
    assert len(found) == 3 * (2 + 1 * 2 * 2)
    assert found[:2] == [("single", 3, 0.0), ("heft", 3, 0.0)]
    assert len(set(found)) == 6


@pytest.mark.parametrize("name", ["real", "large", "small"])
def test_the_test_sets_hold_no_training_graphs_but_those_they_mark(name):
    suite = read_suite(SUITES / f"{name}.yaml")
    assert len({entry.key for entry in suite.problems}) == len(suite.problems)
    assert len(suite.problems) == {"real": 36, "large": 16, "small": 60}[name]
    held_out = {*open_shipped_store().part("test"), *TEST}
    for entry in suite.problems:
        graph = entry.captured or entry.family
        assert graph in held_out or entry.family in TRAIN
        assert 500_000 < entry.seed < 1_000_000


def test_large_problems_are_large():
    suite = read_suite(SUITES / "large.yaml")
    for entry in suite.problems[3::4]:
        assert 1_000 <= entry.load().num_ops <= 10_500


def test_datasets_and_knobs_of_random_families(tmp_path):
    text = """
name: more
problems:
  - {dataset: searched-cnn, graph: searched-cnn-03, cluster: nvlink-v100-4, microbatches: 4}
  - {dataset: store, graph: bert-mini, cluster: pcie-t4-2, groups: 60, memory: tight}
  - {family: layered, seed: 1, cluster: mixed, ccr: 0.5, heterogeneity: 3.0}
  - {family: layered, seed: 1, cluster: mixed}
placers: [single]
"""
    folder = SUITES / "none"  # a suite beside the others finds the checkout's datasets
    (tmp_path / "more.yaml").write_text(text)
    entries = read_suite(tmp_path / "more.yaml").problems
    cnn, bert, knobs, drawn = (entry.load(folder) for entry in entries)
    assert entries[0].key == (
        "dataset=searched-cnn graph=searched-cnn-03 cluster=nvlink-v100-4 microbatches=4"
    )
    assert (cnn.microbatches, cnn.cluster.name) == (4, "nvlink-v100-4")
    assert bert.num_ops <= 61
    assert bert.cluster.memory.max() < 1e9
    assert entries[2].key != entries[3].key
    assert (knobs.cluster.bandwidth != drawn.cluster.bandwidth).any()


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"dataset": "store"}, "a dataset needs a graph and a cluster"),
        (
            {"dataset": "store", "graph": "bert-mini"},
            "a dataset needs a graph and a cluster",
        ),
        ({"family": "layered", "ccr": 0.0}, "greater than 0"),
        ({"family": "layered", "heterogeneity": 0.5}, "greater than or equal to 1"),
    ],
)
def test_mistaken_entries_are_refused(entry, fault):
    with pytest.raises(ValueError, match=fault):
        ProblemEntry.model_validate(entry)


@pytest.mark.parametrize(
    "path", sorted(SUITES.glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_suite_names_what_there_is(path):
    suite = read_suite(path)
    assert suite.name == path.stem
    for name in (*suite.placers, *suite.constructions):
        check_name(suite.kind, name)
    assert len({entry.key for entry in suite.problems}) == len(suite.problems)
    for entry in suite.problems:
        if entry.dataset is not None:
            assert entry.graph in find_dataset(entry.dataset, path.parent).names
            assert entry.cluster in preset_names()


def test_standard_is_held_out_and_its_parts_are_of_all_kinds():
    problems = read_suite(SUITES / "standard.yaml").problems
    trained = open_shipped_store().part("train")
    assert not {entry.graph for entry in problems} & set(trained)
    for part in range(8):
        mine = problems[part::8]
        assert len({entry.labels["family"] for entry in mine}) >= 3
        assert len({entry.cluster for entry in mine}) >= 3


def test_families_are_those_of_the_models():
    told = {
        "searched-cnn": ProblemEntry(dataset="d", graph="searched-cnn-03", cluster="c"),
        "bert": ProblemEntry(captured="bert-mini"),
        "layered": ProblemEntry(family="layered"),
        "gpt2": ProblemEntry(model="gpt2?layers=2"),
    }
    assert {entry.labels["family"] for entry in told.values()} == set(told)
    assert told["bert"].labels["cluster"] == "drawn"


def test_a_problem_of_a_suite_has_constraints(tmp_path):
    """They are obeyed, tell its key from that without, and may not limit the number of devices."""
    write_problem(tmp_path / "p.json", training_chain())
    entry = {"file": "p.json", "constraints": {"pin": {"f0": "d1"}, "headroom": "10%"}}
    plain, bound = ProblemEntry(file="p.json"), ProblemEntry(**entry)
    problem = bound.load(tmp_path)
    assert problem.pin[problem.graph.index["f0"]] == 1
    assert problem.cluster.memory[0] == 0.9 * plain.load(tmp_path).cluster.memory[0]
    assert bound.key != plain.key
    with pytest.raises(ValueError, match="max_devices"):
        ProblemEntry(file="p.json", constraints={"max_devices": 2})
