from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.studies.orders import networks
from benchmarks.studies.orders.networks import FILE, REPORT, study_network_orders
from benchmarks.studies.orders.networks_report import OWN, PRETRAINED, RIVALS, Table
from gnnplace.errors import InputError
from gnnplace.policy.gnn.network import read_gnn
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.train.one_problem import FewProblems
from gnnplace.train.reinforce import Reinforce
from tests.bench.small_problems import drawn

torch.set_num_threads(1)
FAMILIES = ("searched-cnn", "searched-rnn", "nmt")
SMALL = {"hidden": 8, "layers": 1, "samples": 4}
ORDERS = "learned-order,reverse-topological"


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    problems = drawn(0, 4)
    spaces = [networks.SearchSpace(problem) for problem in problems]
    monkeypatch.setattr(networks, "every_graph", lambda: [spaces] * 3)
    monkeypatch.setattr(networks, "_graphs_of", lambda family: len(spaces))
    monkeypatch.setattr(networks, "own_problems", lambda family: problems[:2])
    monkeypatch.setattr(
        networks, "training_data", lambda seed: FewProblems(problems, 2, 2)
    )
    monkeypatch.setattr(
        networks, "Reinforce", lambda **given: Reinforce(**(given | SMALL))
    )


def rows(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_every_order_is_trained_and_evaluated_once(tmp_path):
    study_network_orders(tmp_path, orders=ORDERS, steps=8)
    made = rows(tmp_path)
    assert len(made) == len(RIVALS) + 2 + 2
    assert [len(r["one"]) for r in made if r["problem"] == OWN] == [6, 6]
    text, report = (tmp_path / FILE).read_text(), (tmp_path / REPORT).read_text()
    assert "| `gnn`, reverse-topological | 1 |" in report
    assert "| `learned` | 1 |" in report
    study_network_orders(tmp_path, orders=ORDERS, steps=8)
    assert (tmp_path / FILE).read_text() == text


def test_a_row_is_what_the_trained_network_places(tmp_path):
    study_network_orders(tmp_path, orders="topological", steps=8)
    network = read_gnn(tmp_path / "networks" / "topological-0")
    assert network.order == "topological"
    row = next(r for r in rows(tmp_path) if r["placer"] == "topological")
    for seconds, space in zip(row["one"], networks.every_graph()[0], strict=False):
        placed = GnnPlacer(network).place(space.problem, space=space).step_time
        assert seconds == pytest.approx(placed, rel=1e-5)
    own = read_gnn(tmp_path / "networks" / "topological-0-nmt")
    assert not torch.equal(own.decoder.last, network.decoder.last)


def test_problems_of_a_family_alone_are_its_graphs_of_odd_number():
    row = {"problem": PRETRAINED, "placer": "single", "seed": 0, "budget": 1}
    values = [float(i) for i in range(12)]
    table = Table([row | {"one": values}], [f for f in FAMILIES for _ in range(4)], 1)
    np.testing.assert_array_equal(table.single(OWN), [1, 3, 5, 7, 9, 11])
    assert table.list_families(OWN) == [f for f in FAMILIES for _ in range(2)]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(
        InputError, match="order 'sideways': unknown; orders: topological"
    ):
        study_network_orders(tmp_path, orders="sideways")
    with pytest.raises(InputError, match="give no less"):
        study_network_orders(tmp_path, steps=0)
    with pytest.raises(InputError, match="nothing to report"):
        study_network_orders(tmp_path, run=False)
