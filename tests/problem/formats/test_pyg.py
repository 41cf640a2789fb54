from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch_geometric.data import Data, HeteroData

import gnnplace
from gnnplace.errors import InputError
from gnnplace.problem.formats import convert
from tests.random_problems import random_problem, seeds


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_a_problem_comes_back_from_pyg(seed):
    """All but what a ``Data`` cannot say."""
    problem = random_problem(np.random.default_rng(seed), 12, 3)
    data = gnnplace.to_pyg(problem)
    source, target, _ = problem.graph.edges
    assert set(zip(*data.edge_index.tolist(), strict=True)) == set(
        zip(source.tolist(), target.tolist(), strict=True)
    )
    assert data.validate()
    if any(not np.isfinite(time).all() for time in problem.time.values()):
        return
    again = gnnplace.from_pyg(data, problem.cluster)
    assert again.graph.names == problem.graph.names
    for kind in problem.cluster.kinds:
        assert (again.time[kind] == problem.time[kind]).all()
    assert (again.state == problem.state).all()
    assert (again.phase == problem.phase).all()
    assert (again.unit_of == problem.unit_of).all()


def simple(**given):
    plain = {
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "edge_bytes": torch.tensor([8.0, 16.0]),
        "time": torch.tensor([1e-3, 2e-3, 3e-3]),
        "num_nodes": 3,
    }
    return Data(**{k: v for k, v in (plain | given).items() if v is not None})


def test_a_saved_data_is_read_without_running_its_code(tmp_path):
    path = tmp_path / "three.pt"
    torch.save(simple(), path)
    problem = convert(path, "pyg")
    assert problem.graph.size.tolist() == [8.0, 16.0]
    assert problem.time["v100"].tolist() == pytest.approx([1e-3, 2e-3, 3e-3])

    class Evil:
        def __reduce__(self):
            return (path.unlink, ())

    torch.save(Evil(), tmp_path / "evil.pt")
    with pytest.raises(InputError, match="cannot be read"):
        convert(tmp_path / "evil.pt", "pyg")
    assert path.exists()
    torch.save({"a": 1}, path)
    with pytest.raises(InputError, match="a dict, not a torch_geometric"):
        convert(path, "pyg")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edge_bytes": None}, "edge_bytes: missing"),
        ({"time": None}, r"data\[0\].time: missing"),
        ({"time": torch.ones(2)}, r"time: has shape \(2,\), must have 3"),
        ({"time": torch.tensor([1.0, -1.0, 1.0])}, r"data\[1\].time: -1.0: must be"),
        ({"time": None, "flops": torch.ones(3)}, r"data\[0\].bytes: missing"),
        (
            {"edge_index": torch.tensor([[0, 1], [1, 5]])},
            "edge_index: 5 is outside of 3 ops",
        ),
        (
            {"edge_tensor": torch.tensor([0, 0])},
            r"edge_tensor\[1\]: 0 has another producer",
        ),
        ({"names": ["a"]}, "names: 1 of 3 ops"),
        ({"phase": torch.tensor([0, 9, 0])}, r"data\[1\].phase: 9"),
    ],
)
def test_what_a_data_lacks_is_named_by_its_field(change, said):
    with pytest.raises(InputError, match=said):
        gnnplace.from_pyg(simple(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"time": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)},
        {"time": torch.tensor([1.0, 2.0, 3.0]).to(torch.float8_e4m3fn)},
        {"time": torch.tensor([1.0, 2.0, 3.0], requires_grad=True)},
        {"time": torch.tensor([1.0, 2.0, 3.0]).to_sparse()},
        {"time": torch.tensor([1, 2, 3], dtype=torch.int16)},
        {"time": [1, 2, 3]},
        {"time": np.array([1.0, 2.0, 3.0])},
    ],
)
def test_numbers_of_every_type_are_read(change):
    assert gnnplace.from_pyg(simple(**change)).time["v100"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"edge_index": torch.tensor([[0, 1.5], [1, 2]])},
            r"edge_index\[0, 1\]: 1.5: must be whole",
        ),
        ({"edge_index": torch.tensor([[0, -1], [1, 2]])}, "edge_index: -1 is outside"),
        (
            {"unit": torch.tensor([float("nan"), 0, 0])},
            r"unit\[0\]: nan: must be whole",
        ),
        ({"phase": torch.tensor([0.0, 0.5, 1.0])}, r"phase\[1\]: 0.5: must be whole"),
        ({"time": torch.ones(3, device="meta")}, "time: on the meta device"),
        ({"time": [[1.0], [2.0, 3.0], [1.0]]}, "time: no tensor of numbers"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        gnnplace.from_pyg(simple(**change))


def test_a_heterogeneous_graph_is_named():
    with pytest.raises(InputError, match=r"a HeteroData, .* to_homogeneous"):
        gnnplace.from_pyg(HeteroData())
