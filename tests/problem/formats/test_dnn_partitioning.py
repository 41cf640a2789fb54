from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from gnnplace.errors import FormatError
from gnnplace.problem.cluster import make_preset
from gnnplace.problem.formats import convert
from gnnplace.problem.placement import Placement
from gnnplace.simulation import simulate

SMALL = {
    "maxSizePerFPGA": 1000.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": 7, "supportedOnFpga": 1, "cpuLatency": 8.0, "fpgaLatency": 2.0, "size": 5.0,
         "isBackwardNode": 0, "colorClass": 3, "name": "embed"},
        {"id": 9, "supportedOnFpga": 0, "cpuLatency": 1.0, "fpgaLatency": 0.5, "size": 1.0,
         "isBackwardNode": 0},
        {"id": 2, "supportedOnFpga": True, "cpuLatency": 9.0, "fpgaLatency": 4.0, "size": 7.0,
         "isBackwardNode": True, "colorClass": 3},
    ],
    "edges": [
        {"sourceId": 7, "destId": 9, "cost": 3.0, "size": 123},
        {"sourceId": 7, "destId": 2, "cost": 3.0},
        {"sourceId": 9, "destId": 2, "cost": 1.0},
    ],
}  # fmt: skip


def read(tmp_path, data, cluster=None):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(data))
    return convert(path, "dnn-partitioning", cluster)


def test_its_own_cluster_takes_what_the_file_says(tmp_path):
    problem = read(tmp_path, SMALL)
    assert [device.name for device in problem.cluster.devices] == [
        "acc:0",
        "acc:1",
        "cpu:0",
    ]
    assert problem.graph.num_tensors == 2
    result = simulate(problem, Placement(np.array([0, 2, 0])))
    assert result.step_time == pytest.approx((2 + 3 + 1 + 1 + 4) * 1e-3)
    assert problem.colocate[0] == problem.colocate[2]
    assert problem.phase.tolist() == [0, 0, 1]
    apart = simulate(problem, Placement(np.array([0, 2, 1]))).step_time
    assert apart == pytest.approx((2 + 6 + 4) * 1e-3)


def test_unsupported_ops_and_other_clusters(tmp_path):
    problem = read(tmp_path, SMALL, make_preset("nvlink-a100-2"))
    assert np.isinf(problem.times[1]).all()
    assert problem.times[0].tolist() == [2e-3, 2e-3]
    assert problem.estimated.all()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["nodes", 1, "id"], 7, r"nodes\[1\].id: 7 is repeated"),
        (["nodes", 1, "cpuLatency"], -1, r"nodes\[1\].cpuLatency"),
        (["edges", 0, "destId"], 99, r"edges\[0\].destId: no node has the id 99"),
        (["edges", 2, "destId"], 7, "cycle"),
        (["nodes"], [], "nodes"),
    ],
)
def test_faults_name_the_key(tmp_path, path, value, message):
    data = copy.deepcopy(SMALL)
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(FormatError, match=message):
        read(tmp_path, data)
