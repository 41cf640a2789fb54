from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.problem import UPDATE
from gnnplace.problem.cluster import load_cluster
from gnnplace.train.data.captured import PARTS, open_shipped_store
from gnnplace.train.data.datasets import (
    SUMS,
    checksums,
    dataset_problem,
    find_dataset,
    verify,
    write_sums,
)
from gnnplace.train.data.recipes import RECIPES

HERE = Path(__file__).parent
DATASETS = [name for name in RECIPES if name != "store"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("mlp-small", "bert-mini"):
        shutil.copy(open_shipped_store().folder / f"{name}.npz", tmp_path)
    write_sums(tmp_path)
    return tmp_path


def test_a_folder_is_what_its_checksums_say(folder):
    assert verify(folder) == 2
    assert len(checksums(folder)) == 2


def test_what_is_changed_missing_or_more_is_named(folder):
    data = bytearray((folder / "bert-mini.npz").read_bytes())
    data[100] ^= 1
    (folder / "bert-mini.npz").write_bytes(data)
    with pytest.raises(FormatError, match=r"bert-mini\.npz: changed"):
        verify(folder)
    (folder / "bert-mini.npz").unlink()
    with pytest.raises(FormatError, match=r"bert-mini\.npz: missing"):
        verify(folder)
    write_sums(folder)
    shutil.copy(folder / "mlp-small.npz", folder / "other.npz")
    with pytest.raises(FormatError, match=r"other\.npz: not in SHA256SUMS"):
        verify(folder)
    (folder / SUMS).write_text("nothing\n")
    with pytest.raises(FormatError, match="line 1: not a SHA-256"):
        verify(folder)
    (folder / SUMS).unlink()
    with pytest.raises(FormatError, match="cannot be read"):
        verify(folder)


@pytest.mark.parametrize("name", DATASETS)
def test_the_committed_datasets_are_whole_and_what_their_recipes_say(name):
    store = find_dataset(name, HERE)
    measured_files = [path.name for path in store.folder.glob("*.jsonl")]
    assert verify(store.folder) == len(RECIPES[name].models) + len(measured_files)
    assert store.names == tuple(sorted(model.name for model in RECIPES[name].models))
    for model in RECIPES[name].models:
        graph = store.graph(model.name)
        assert graph.origin["spec"] == model.spec
        assert graph.origin["part"] == model.part
        assert graph.origin["part"] in PARTS
        assert set(graph.phase.tolist()) == {0, 1, 2}
        assert (graph.unit[graph.phase == UPDATE] >= 0).all()


def test_a_dataset_is_found_from_below(tmp_path):
    (tmp_path / "data_sets" / "few").mkdir(parents=True)
    shutil.copy(
        open_shipped_store().folder / "mlp-small.npz", tmp_path / "data_sets" / "few"
    )
    below = tmp_path / "suites" / "mine"
    below.mkdir(parents=True)
    assert find_dataset("few", below).names == ("mlp-small",)
    assert find_dataset("store", below) is open_shipped_store()
    with pytest.raises(InputError, match="no data_sets/none in"):
        find_dataset("none", below)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_costs_are_those_of_the_clusters_kinds(microbatches):
    graph, cluster = (
        open_shipped_store().graph("bert-mini"),
        load_cluster("mixed-a100-t4-4"),
    )
    problem = dataset_problem(graph, cluster, microbatches=microbatches, groups=None)
    assert problem.microbatches == microbatches
    assert problem.cluster.kinds == cluster.kinds
    for kind in ("a100", "t4"):
        row = graph.kinds.index(kind)
        many = np.where(graph.phase == UPDATE, 1, microbatches)
        expected = (graph.work[row] + many * graph.launch[row]).sum()
        assert problem.time[kind].sum() == pytest.approx(expected)
    assert problem.state.sum() == pytest.approx(graph.state.sum())


def test_groups_and_tight_memory():
    graph, cluster = (
        open_shipped_store().graph("bert-mini"),
        load_cluster("nvlink-v100-4"),
    )
    ample, tight = (
        dataset_problem(graph, cluster, groups=60, memory=m) for m in ("ample", "tight")
    )
    assert ample.num_ops <= 61
    assert (ample.cluster.memory == cluster.memory).all()
    everything = tight.state.sum() + tight.graph.size.sum()
    assert tight.cluster.memory.max() < everything < ample.cluster.memory.min()
    assert tight.fingerprint == ample.fingerprint


def test_mistakes_are_named():
    graph, cluster = open_shipped_store().graph("mlp-small"), load_cluster("pcie-t4-2")
    with pytest.raises(InputError, match="memory is ample or tight"):
        dataset_problem(graph, cluster, memory="little")
    with pytest.raises(InputError, match="micro-batches >= 1"):
        dataset_problem(graph, cluster, microbatches=0)
    few = type(graph)(
        graph.origin,
        graph.graph,
        ("cpu",),
        graph.work[:1],
        graph.launch[:1],
        graph.state,
        graph.phase,
        graph.unit,
    )
    with pytest.raises(InputError, match="no costs for device kind 't4'; kinds: cpu"):
        dataset_problem(few, cluster)
