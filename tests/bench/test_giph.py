"""What a problem becomes in GiPH's terms; its code itself is in a clone and not here."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from benchmarks.rivals.giph import Giph, task_graph
from gnnplace.errors import InputError
from gnnplace.placers import contract
from gnnplace.train.data.random_families import random_problem


def test_ops_stand_between_one_source_and_one_sink_with_their_times_and_bytes():
    problem = random_problem("layered", 1)
    tasks = task_graph(problem)
    graph, num_ops = tasks.graph, problem.num_ops
    assert [node for node in graph if graph.in_degree(node) == 0] == [0]
    assert [node for node in graph if graph.out_degree(node) == 0] == [num_ops + 1]
    assert nx.is_directed_acyclic_graph(graph)
    assert sorted(tasks.order) == list(range(num_ops))
    milliseconds = [graph.nodes[node]["compute"] for node in range(1, num_ops + 1)]
    np.testing.assert_allclose(
        milliseconds, problem.times[tasks.order].mean(axis=1) * 1e3
    )
    source, target, size = problem.graph.edges
    node_of = {op: node for node, op in enumerate(tasks.order, 1)}
    for a, b, count in zip(
        source.tolist(), target.tolist(), size.tolist(), strict=True
    ):
        assert graph.edges[node_of[a], node_of[b]]["bytes"] == count


def test_devices_have_speeds_and_messages_take_what_links_say():
    problem = random_problem("layered", 1)
    tasks = task_graph(problem)
    cluster = problem.cluster
    work = np.array(
        [graph_node["compute"] for _, graph_node in tasks.graph.nodes(data=True)]
    )
    np.testing.assert_allclose(
        work.sum() / tasks.speed, problem.times.sum(axis=0) * 1e3
    )
    assert (np.diag(tasks.delay) == 0).all()
    assert (np.diag(tasks.pace) == 0).all()
    taken = tasks.delay[0, 1] + 1e6 * tasks.pace[0, 1]
    assert taken == pytest.approx(
        1e3 * (cluster.latency[0, 1] + 1e6 / cluster.bandwidth[0, 1])
    )


def test_what_it_cannot_say_is_refused(monkeypatch, tmp_path):
    with pytest.raises(
        InputError, match=r"giph: (dgl|simpy) is missing|no clone of uidmice"
    ):
        Giph(clone=str(tmp_path), embedding="e.pk", policy="p.pk")
    monkeypatch.setattr("benchmarks.rivals.giph.find_spec", lambda name: name)
    (tmp_path / "experiment.py").write_text("")
    placer = Giph(clone=str(tmp_path), embedding="e.pk", policy="p.pk")
    assert "share a device" in str(
        placer.supports(contract.training_chain(num_layers=3))
    )
