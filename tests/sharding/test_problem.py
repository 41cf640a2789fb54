from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.sharding import Edge, ShardingProblem, best_strategy, read_sharding
from gnnplace.sharding.problem import write_sharding
from tests.sharding.problems import clique, random_problem, write_files


@pytest.fixture
def path(tmp_path):
    return write_files(tmp_path, random_problem(1, nodes=3, edges=3, memory=True))


def changed(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def changed_arrays(path, change):
    file = path.with_suffix(".npz")
    arrays = dict(np.load(file))
    change(arrays)
    np.savez(file, **arrays)
    return path


def test_files_are_read_as_written(path):
    problem, read = (
        random_problem(1, nodes=3, edges=3, memory=True),
        read_sharding(path),
    )
    assert (read.name, read.devices, read.names) == ("random", 4, problem.names)
    configuration = tuple(len(cost) - 1 for cost in problem.cost)
    assert read.value(configuration) == problem.value(configuration)
    assert read.bytes(configuration) == problem.bytes(configuration)


def test_entries_share_one_array(tmp_path):
    table = np.arange(4.0).reshape(2, 2)
    node = np.ones(2)
    problem = ShardingProblem(
        "shared", 2, ("a", "b"), (node, node), (Edge(0, 1, table), Edge(1, 0, table))
    )
    path = write_files(tmp_path, problem)
    assert len(np.load(path.with_suffix(".npz")).files) == 2
    assert read_sharding(path).value((0, 1)) == 1 + 1 + 1 + 2


def test_memory_of_edges_alone_counts():
    edge = Edge(0, 1, np.zeros((1, 1)), np.full((1, 1), 7.0))
    problem = ShardingProblem("m", 2, ("a", "b"), (np.zeros(1), np.zeros(1)), (edge,))
    assert problem.bytes((0, 0)) == 7.0


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.update(format="other"), "format"),
        (lambda d: d.update(version=2), "version"),
        (lambda d: d.update(devices=0), "devices"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d.update(nodes=[]), "nodes"),
        (lambda d: d.pop("edges"), "edges"),
        (lambda d: d["nodes"][1].pop("cost"), r"nodes\[1\]\.cost"),
        (lambda d: d["nodes"][1].update(name="n0"), r"nodes\[1\]\.name.*repeated"),
        (lambda d: d["nodes"][2].update(cost="zz"), r"nodes\[2\]\.cost.*'zz'"),
        (lambda d: d["nodes"][2].update(memory="zz"), r"nodes\[2\]\.memory.*'zz'"),
        (lambda d: d["edges"][0].update(u="nobody"), r"edges\[0\]\.u.*'nobody'"),
        (lambda d: d["edges"][1].update(cost="zz"), r"edges\[1\]\.cost.*'zz'"),
        (
            lambda d: d["edges"][0].update(v=d["edges"][0]["u"]),
            r"edges\[0\]\.v.*itself",
        ),
        (
            lambda d: d["edges"][0].update(cost=d["nodes"][0]["cost"]),
            r"edges\[0\]\.cost.*shape",
        ),
    ],
)
def test_a_fault_is_one_line_with_file_and_key_path(path, change, where):
    with pytest.raises(FormatError, match=where) as caught:
        read_sharding(changed(path, change))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_private_keys_are_allowed(path):
    assert read_sharding(changed(path, lambda d: d.update({"x-note": 1}))).devices == 4


@pytest.mark.parametrize(
    "value",
    [np.array([np.nan, 1.0]), np.array([np.inf]), np.zeros(0), np.zeros((1, 1))],
)
def test_node_costs_are_finite_vectors(path, value):
    key = json.loads(path.read_text())["nodes"][0]["cost"]
    with pytest.raises(FormatError, match=r"nodes\[0\]\.cost"):
        read_sharding(changed_arrays(path, lambda arrays: arrays.update({key: value})))


def test_memory_is_not_negative(path):
    nodes = json.loads(path.read_text())["nodes"]
    index = next(i for i, node in enumerate(nodes) if "memory" in node)
    key = nodes[index]["memory"]
    with pytest.raises(FormatError, match=rf"nodes\[{index}\]\.memory"):
        read_sharding(changed_arrays(path, lambda a: a.update({key: -1 - a[key]})))


@pytest.mark.parametrize("content", [None, b"", b"not a zip", b"PK\x03\x04broken"])
def test_an_archive_that_cannot_be_read(path, content):
    file = path.with_suffix(".npz")
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FormatError, match=r"\.npz"):
        read_sharding(path)


def test_an_archive_of_something_else(path):
    file = path.with_suffix(".npz")
    np.savez(file, a0=np.array(["text"]))
    with pytest.raises(FormatError, match="numbers"):
        read_sharding(path)
    with file.open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(FormatError, match="npz"):
        read_sharding(path)


@pytest.mark.parametrize("memory", [True, False])
def test_what_is_written_is_read(tmp_path, memory):
    problem = random_problem(3, nodes=4, edges=5, memory=memory)
    write_sharding(tmp_path / "a.json", problem)
    again = read_sharding(tmp_path / "a.json")
    assert again.names == problem.names
    assert again.has_memory == problem.has_memory
    for a, b in zip(again.cost, problem.cost, strict=True):
        assert np.array_equal(a, b)
    for a, b in zip(again.edges, problem.edges, strict=True):
        assert (a.u, a.v) == (b.u, b.v)
        assert np.array_equal(a.cost, b.cost)


def test_equal_tables_are_stored_once(tmp_path):
    drawn = clique(4, 3)
    table = drawn.edges[0].cost
    edges = tuple(Edge(edge.u, edge.v, table.copy()) for edge in drawn.edges)
    problem = replace(drawn, edges=edges)
    write_sharding(tmp_path / "a.json", problem)
    with np.load(tmp_path / "a.npz") as arrays:
        assert len(arrays.files) == len(problem.cost) + 1
    again = read_sharding(tmp_path / "a.json")
    assert best_strategy(again).cost == best_strategy(problem).cost


def test_no_folder_is_one_error(tmp_path):
    problem = random_problem(3, nodes=3, edges=2, memory=False)
    with pytest.raises(InputError, match="cannot be written"):
        write_sharding(tmp_path / "none" / "a.json", problem)
    assert list(tmp_path.iterdir()) == []
