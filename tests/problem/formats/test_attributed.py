from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace import from_networkx
from gnnplace.cli.main import run
from gnnplace.errors import InputError
from gnnplace.problem.cluster.gpus import GPUS
from gnnplace.problem.formats import convert
from tests.random_problems import random_problem, seeds


def diamond():
    """One tensor to b and c; c on T4 alone has another time; d from flops and bytes."""
    graph = nx.DiGraph(name="diamond")
    graph.add_node("a", time=1e-3, output=64.0, state=8.0)
    graph.add_node("b", time=2e-3, phase="backward", colocate="w")
    graph.add_node("c", **{"time": 3e-3, "time.t4": 9e-3, "module": "head"})
    graph.add_node("d", flops=14e12, bytes=1e6)
    graph.add_edges_from([("a", "b"), ("a", "c")])
    graph.add_edge("b", "d", bytes=16.0)
    graph.add_edge("c", "d", bytes=32.0)
    return graph


def check(problem):
    assert problem.graph.names == ("a", "b", "c", "d")
    assert problem.graph.size.tolist() == [64.0, 16.0, 32.0]
    assert problem.graph.consumers(0).tolist() == [1, 2]
    assert problem.time["t4"][:3].tolist() == [1e-3, 2e-3, 9e-3]
    assert problem.time["v100"][2] == 3e-3
    for kind in ("v100", "t4"):
        assert problem.time[kind][3] == 14e12 / GPUS[kind].rates["float32"]
    assert problem.estimated.tolist() == [False, False, False, True]
    assert problem.state.tolist() == [8.0, 0.0, 0.0, 0.0]
    assert (problem.phase[1], problem.colocate[1], problem.module[2]) == (
        1,
        "w",
        "head",
    )


@pytest.mark.parametrize("key", ["edges", "links"])
def test_networkx_node_link_and_graphml_say_the_same(tmp_path, key, monkeypatch):
    cluster = "mixed-v100-t4-4"
    check(from_networkx(diamond(), cluster))
    path = tmp_path / "diamond.json"
    path.write_text(json.dumps(nx.node_link_data(diamond(), edges=key)))
    monkeypatch.chdir(tmp_path)
    for name, format_name in (
        ("diamond.json", "networkx"),
        ("diamond.graphml", "graphml"),
    ):
        nx.write_graphml(diamond(), tmp_path / "diamond.graphml")
        command = ["convert", name, "--from", format_name, "--cluster", cluster]
        assert run([*command, "-o", "problem.json"]) == 0
        from gnnplace.problem import read_problem

        check(read_problem("problem.json"))


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_a_problem_s_graph_comes_back_from_networkx(seed):
    """As many tensors as there were, each with its consumers: by ``tensor``, written by hand."""
    problem = random_problem(np.random.default_rng(seed), 12, 2)
    graph, kinds = nx.MultiDiGraph(), problem.cluster.kinds
    for k, name in enumerate(problem.graph.names):
        times = {f"time.{kind}": problem.time[kind][k] for kind in kinds}
        graph.add_node(name, **times, state=problem.state[k])
    for t, size in enumerate(problem.graph.size):
        for c in problem.graph.consumers(t):
            ends = (
                problem.graph.names[problem.graph.producer[t]],
                problem.graph.names[c],
            )
            graph.add_edge(*ends, bytes=size, tensor=t)
    if any(not np.isfinite(problem.time[kind]).all() for kind in kinds):
        with pytest.raises(InputError, match="finite"):
            from_networkx(graph, problem.cluster)
        return
    again = from_networkx(graph, problem.cluster)
    for kind in kinds:
        assert (again.time[kind] == problem.time[kind]).all()
    mine, other = (
        sorted(
            (int(p.graph.producer[t]), float(s), sorted(p.graph.consumers(t).tolist()))
            for t, s in enumerate(p.graph.size)
            if len(p.graph.consumers(t))
        )
        for p in (problem, again)
    )
    assert mine == other


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda g: g.nodes["b"].pop("time"),
            r"nodes\['b'\].time: missing; give time or time.v100",
        ),
        (lambda g: g.nodes["d"].pop("flops"), r"nodes\['d'\].flops: missing"),
        (
            lambda g: g.nodes["d"].update(bytes=-1),
            r"nodes\['d'\].bytes: -1: must be a finite",
        ),
        (lambda g: g.nodes["a"].update(state="much"), r"nodes\['a'\].state: 'much'"),
        (lambda g: g.nodes["b"].update(phase="later"), r"nodes\['b'\].phase: 'later'"),
        (lambda g: g.edges["b", "d"].clear(), r"edges\['b', 'd'\].bytes: missing"),
        (lambda g: g.add_edge("d", "a", bytes=1), "cycle"),
        (lambda g: g.clear(), "nodes: none"),
    ],
)
def test_what_a_graph_lacks_is_named_by_its_key(change, said):
    graph = diamond()
    change(graph)
    with pytest.raises(InputError, match=said):
        from_networkx(graph)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"nodes": [], "edges": []}, "directed: must be true"),
        ({"directed": True, "edges": []}, "nodes: missing"),
        ({"directed": True, "nodes": [{"id": "a"}]}, "edges: missing"),
        (
            {"directed": True, "nodes": [{"name": "a"}], "edges": []},
            r"nodes\[0\].id: missing",
        ),
        (
            {"directed": True, "nodes": [{"id": 1}, {"id": 1}], "edges": []},
            "1 is repeated",
        ),
        (
            {
                "directed": True,
                "nodes": [{"id": 1}],
                "edges": [{"source": 1, "target": 2}],
            },
            r"edges\[0\].target: no node has the id 2",
        ),
    ],
)
def test_what_a_file_lacks_is_named_by_its_key(tmp_path, data, said):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=said):
        convert(path, "networkx")


@pytest.mark.parametrize("text", ["", "<graphml", "<nothing/>", "<a><b></a>"])
def test_what_is_no_graphml_is_one_line(tmp_path, text):
    path = tmp_path / "graph.graphml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"graph\.graphml: ") as told:
        convert(path, "graphml")
    assert "\n" not in str(told.value)


DEFAULTS = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="t" for="node" attr.name="time" attr.type="double"><default>0.005</default></key>
<key id="b" for="edge" attr.name="bytes" attr.type="double"><default>10</default></key>
<key id="p" attr.name="phase" attr.type="string"><default>backward</default></key>
<key id="m" for="all" attr.name="module" attr.type="string"><default>head</default></key>
<graph id="G" edgedefault="directed">
<node id="a"/><node id="b"><data key="t">0.002</data><data key="p">forward</data></node>
<node id="c"><data key="m">body</data></node>
<edge source="a" target="b"/><edge source="b" target="c"><data key="b">7</data></edge>
</graph></graphml>"""


def test_defaults_of_graphml_count_where_nothing_is_said(tmp_path):
    path = tmp_path / "graph.graphml"
    path.write_text(DEFAULTS)
    problem = convert(path, "graphml")
    assert problem.time["v100"].tolist() == [0.005, 0.002, 0.005]
    assert problem.graph.size.tolist() == [10.0, 7.0]
    assert problem.phase.tolist() == [1, 0, 1]
    assert problem.module == ("head", "head", "body")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '<node id="c">',
            '<node id="d"/><node id="c"><graph id="H"/>',
            "graph: 2, beside or within",
        ),
        ('target="c"', 'target="d"', "edge: no node has the id 'd'"),
        ("<default>10</default>", "<default/>", "a key or its default is empty"),
        ("<default>10</default>", "<default>ten</default>", "could not convert"),
        ('<node id="a"/>', '<node id="a"/><hyperedge/>', "hyperedges"),
        ("UTF-8", "UTF-x", "unknown encoding"),
    ],
)
def test_what_networkx_leaves_out_of_graphml_is_refused(tmp_path, old, new, said):
    path = tmp_path / "graph.graphml"
    path.write_text(DEFAULTS.replace(old, new))
    with pytest.raises(InputError, match=said) as error:
        convert(path, "graphml")
    assert "\n" not in str(error.value)


def test_nodes_of_a_grid_have_pairs_as_ids(tmp_path):
    """networkx writes tuples as lists."""
    graph = nx.DiGraph([((0, 0), (0, 1)), ((0, 1), (1.5, ("a", 2)))])
    nx.set_node_attributes(graph, 1e-3, "time")
    nx.set_edge_attributes(graph, 8.0, "bytes")
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    problem = convert(path, "networkx")
    assert problem.graph.names == ("(0, 0)", "(0, 1)", "(1.5, ('a', 2))")
    assert problem.graph.num_tensors == 2
