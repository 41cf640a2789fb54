from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import BaseTransform, Compose

from gnnplace.errors import FormatError, InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.network import load_gnn
from gnnplace.policy.gnn.pyg import make_graph_batch
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data import graph_dataset
from gnnplace.train.data.captured import open_shipped_store
from gnnplace.train.data.captured_graph import read_captured, write_captured
from gnnplace.train.data.graph_dataset import GraphDataset, content_key

NAMES = ("mlp-small", "two-tower-small", "bert-mini")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "few"
    target.mkdir()
    for name in NAMES:
        shutil.copy(open_shipped_store().folder / f"{name}.npz", target)
    return target


def made(folder: Path, **more) -> GraphDataset:
    return GraphDataset(str(folder), folder.parent / "kept", **more)


def processed(folder: Path) -> set[str]:
    return {path.name for path in (folder.parent / "kept" / "processed").glob("*.npz")}


class Scale(BaseTransform):
    """Its text says nothing about ``by``."""

    def __init__(self, by: float) -> None:
        self.by = by

    def forward(self, data: Data) -> Data:
        data.x = data.x * self.by
        return data


def test_graphs_are_those_of_the_store(folder):
    dataset = made(folder)
    assert len(dataset) == 3
    for data in dataset:
        graph = open_shipped_store().graph(dataset.names[int(data.graph)])
        source, target, size = graph.graph.edges
        assert np.array_equal(data.edge_index.numpy(), np.stack([source, target]))
        assert np.allclose(data.edge_attr[:, 0], size)
        assert np.allclose(data.x[:, : len(graph.kinds)], graph.work.T)
        assert np.array_equal(data.unit, graph.unit)
        assert ["train", "validation", "test"][int(data.part)] == graph.origin["part"]
    batch = next(iter(DataLoader(dataset, batch_size=3)))
    assert batch.num_nodes == sum(
        open_shipped_store().graph(name).num_ops for name in NAMES
    )


def test_on_a_cluster_graphs_are_what_the_policy_encodes(folder):
    """Loader, batch and states are those of the policy's own training, problem by problem."""
    dataset = made(folder, cluster="nvlink-v100-4", microbatches=2, groups=80)
    problems = [dataset.problem(int(data.graph)) for data in dataset]
    assert {problem.microbatches for problem in problems} == {2}
    policy, batch = load_gnn(), next(iter(DataLoader(dataset, batch_size=3)))
    inputs = [
        Episodes(SearchSpace(problem), "upward-rank").inputs for problem in problems
    ]
    for key, value in make_graph_batch(inputs).to_dict().items():
        assert torch.equal(batch[key], value), key
    with torch.no_grad():
        states = policy.encoder(batch)
        alone = torch.cat([policy.encoder(one) for one in inputs])
    torch.testing.assert_close(states, alone, rtol=1e-4, atol=1e-5)
    assert [int(data.unit.max()) + 1 for data in dataset] == [
        p.num_units for p in problems
    ]
    other = made(folder, cluster="pcie-v100-4", microbatches=2, groups=80)
    assert other.key != dataset.key != made(folder).key
    with pytest.raises(InputError, match="give cluster"):
        made(folder).problem(0)


def test_what_is_there_is_read_and_not_made_again(folder):
    first = made(folder)
    [path] = (folder.parent / "kept" / "processed").glob("*.npz")
    written = path.stat().st_mtime_ns
    again = made(folder)
    assert path.stat().st_mtime_ns == written
    assert torch.equal(first[1].x, again[1].x)
    assert path.name.startswith("few-")


def test_other_data_is_made_anew(folder):
    before = made(folder)[0].x.clone()
    path = sorted(folder.glob("*.npz"))[0]
    graph = read_captured(path)
    graph.work[:] *= 2.0
    write_captured(path, graph)
    after = made(folder)[0].x
    kinds = len(graph.kinds)
    assert torch.allclose(after[:, :kinds], 2.0 * before[:, :kinds])
    assert len(processed(folder)) == 2


def test_other_settings_of_a_transform_are_made_anew_though_its_text_is_the_same(
    folder,
):
    assert repr(Scale(2.0)) == repr(Scale(3.0))
    two, three = (made(folder, pre_transform=Scale(by))[0].x for by in (2.0, 3.0))
    assert torch.allclose(1.5 * two, three)
    nested = made(folder, pre_transform=Compose([Scale(2.0), Scale(5.0)]))[0].x
    assert torch.allclose(5.0 * two, nested)
    other = made(folder, pre_transform=Compose([Scale(2.0), Scale(6.0)]))[0].x
    assert torch.allclose(6.0 * two, other)


def test_other_code_has_another_name(folder, monkeypatch):
    sums = {"a.npz": "1"}
    plain = content_key(sums)
    assert content_key(sums) == plain
    assert content_key({"a.npz": "2"}) != plain
    assert content_key(sums, Scale(1.0)) != plain
    assert content_key(sums, None, lambda data: data.num_nodes > 200) != plain
    made_by = [content_key(sums, None, larger_than(size)) for size in (200, 300)]
    assert made_by[0] != made_by[1]
    monkeypatch.setattr(graph_dataset, "to_data", lambda captured, index: Data())
    assert content_key(sums) != plain


def larger_than(size):
    return lambda data: data.num_nodes > size


def test_filters_choose_and_may_not_choose_nothing(folder):
    assert {int(d.graph) for d in made(folder, pre_filter=larger_than(200))} == {0}
    with pytest.raises(FormatError, match="pre_filter keeps no graph"):
        made(folder, pre_filter=larger_than(10_000))


def test_a_dataset_is_found_by_name(tmp_path):
    dataset = GraphDataset("store", tmp_path)
    assert len(dataset) == len(open_shipped_store().names)
