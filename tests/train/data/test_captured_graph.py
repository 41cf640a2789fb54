from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.graph import ComputationGraph
from gnnplace.train.data.captured_graph import (
    CapturedGraph,
    op_names,
    read_captured,
    write_captured,
)


def graph_of(n, tensors):
    return ComputationGraph.from_tensors(op_names(n), tensors)


def captured(graph, unit=None, phase=None):
    n, rng = graph.num_ops, np.random.default_rng(0)
    return CapturedGraph(
        origin={"name": "toy", "family": "mlp", "part": "train", "spec": "toy"},
        graph=graph,
        kinds=("cpu", "h100"),
        work=rng.uniform(1e-4, 1e-3, (2, n)),
        launch=np.full((2, n), 5e-6),
        state=rng.uniform(0, 1e6, n),
        phase=np.zeros(n, np.int8) if phase is None else phase,
        unit=np.full(n, -1, np.int32) if unit is None else np.array(unit, np.int32),
    )


def random_dag(rng, n):
    tensors = []
    for i in range(n - 1):
        count = int(rng.integers(1, min(4, n - i)))
        targets = rng.choice(np.arange(i + 1, n), count, replace=False)
        tensors.append((i, float(rng.integers(0, 3)) * 100.0, np.sort(targets)))
    return graph_of(n, tensors)


def test_a_file_gives_back_what_was_written(tmp_path):
    rng = np.random.default_rng(1)
    before = captured(
        random_dag(rng, 50), rng.integers(-1, 9, 50), np.arange(50, dtype=np.int8) % 3
    )
    write_captured(tmp_path / "toy.npz", before)
    after = read_captured(tmp_path / "toy.npz")
    assert after.origin == before.origin
    assert after.kinds == before.kinds
    for key in ("producer", "size", "consumer", "consumer_offset"):
        assert np.array_equal(getattr(after.graph, key), getattr(before.graph, key))
    for key in ("unit", "phase"):
        assert np.array_equal(getattr(after, key), getattr(before, key))
    for key in ("work", "launch", "state"):
        assert np.allclose(getattr(after, key), getattr(before, key), rtol=1e-6)
    write_captured(tmp_path / "again.npz", after)
    assert (tmp_path / "toy.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.npz", "toy.npz"]


def test_damaged_files_and_folders_are_named(tmp_path):
    write_captured(tmp_path / "toy.npz", captured(graph_of(2, [(0, 1.0, [1])])))
    whole = (tmp_path / "toy.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "other.npz", header=np.array('{"format": "else"}'))
    for name in ("cut", "other", "missing"):
        with pytest.raises(FormatError, match=f"{name}.npz"):
            read_captured(tmp_path / f"{name}.npz")
    with pytest.raises(InputError, match="cannot be written"):
        write_captured(tmp_path / "nowhere" / "a.npz", captured(graph_of(1, [])))


@pytest.mark.parametrize("seed", range(10))
def test_coarsening_keeps_sums_reachability_and_phases(seed):
    rng = np.random.default_rng(seed)
    graph = random_dag(rng, 60)
    phase = np.repeat([0, 1, 2], 20).astype(np.int8)
    fine = captured(graph, rng.integers(-1, 12, 60), phase)
    coarse = fine.coarsened(15)
    assert coarse.num_ops < 60
    for key in ("work", "launch", "state"):
        assert getattr(coarse, key).sum() == pytest.approx(getattr(fine, key).sum())
    assert nx.is_directed_acyclic_graph(coarse.graph.to_networkx())
    assert set(coarse.phase.tolist()) == {0, 1, 2}
    assert fine.coarsened(60) is fine
