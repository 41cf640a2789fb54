from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnplace.errors import ChangedWarning, FormatError
from gnnplace.problem import BACKWARD, FORWARD, UPDATE
from gnnplace.problem.cluster import make_preset
from gnnplace.problem.formats import convert

SMALL = """node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, \
activation_size=100.0, parameter_size=0.000
node2 -- Conv2d(3, 4, kernel_size=(3, 3)) -- forward_compute_time=2.0, backward_compute_time=4.0, \
activation_size=[8.0; 8.0], parameter_size=40.0
node3 -- ReLU(inplace) -- forward_compute_time=1.0, backward_compute_time=0.0, \
activation_size=16.0, parameter_size=0.000
\tnode1 -- node2
\tnode2 -- node3
"""
PROFILES = Path(__file__).parents[4] / "shared" / "data" / "pipedream"


def read(tmp_path, text):
    path = tmp_path / "net.txt"
    path.write_text(text)
    return convert(path, "pipedream", make_preset("nvlink-a100-2"))


def test_a_small_profile(tmp_path):
    problem = read(tmp_path, SMALL)
    graph = problem.graph
    assert set(graph.names) == {
        "node1", "node2", "node3", "node2/backward", "node3/backward", "node2/update",
    }  # fmt: skip
    assert problem.time["a100"][graph.index["node2/backward"]] == pytest.approx(4e-3)
    assert problem.state[graph.index["node2"]] == 120.0
    assert problem.estimated.all()
    by_phase = [
        {graph.names[i] for i in np.flatnonzero(problem.phase == phase)}
        for phase in (FORWARD, BACKWARD, UPDATE)
    ]
    assert by_phase[2] == {"node2/update"}
    after = {graph.names[k] for k in graph.successors(graph.index["node2"])}
    assert after == {"node3", "node2/backward", "node3/backward"}
    assert {graph.names[k] for k in graph.predecessors(graph.index["node2/backward"])} >= {
        "node1", "node3/backward",
    }  # fmt: skip
    assert graph.size[graph.producer == graph.index["node2"]].tolist() == [16.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SMALL.replace("activation_size=16.0", "activation_size=big"),
            "line 3: activation_size",
        ),
        (
            SMALL.replace("activation_size=16.0, ", ""),
            "line 3: activation_size is missing",
        ),
        (
            SMALL.replace("backward_compute_time=4.0", "backward_compute_time=nan"),
            "line 2",
        ),
        (SMALL + "\tnode3 -- node9\n", "line 6: no node is named 'node9'"),
        (SMALL + "\tnode3 -- node2\n", "cycle"),
        (SMALL + SMALL, "line 6: node 'node1' is repeated"),
        ("", "no node"),
        ("hello", "line 1"),
    ],
)
def test_faults_name_the_line(tmp_path, text, message):
    with pytest.raises(FormatError, match=message):
        read(tmp_path, text)


@pytest.mark.skipif(
    not PROFILES.is_dir(), reason="the public profiles are not beside the project"
)
@pytest.mark.parametrize("name", ["vgg16", "gnmt", "inception_v3", "nasnetamobile"])
def test_public_profiles(name):
    text = (PROFILES / f"{name}.txt").read_text()
    problem = convert(PROFILES / f"{name}.txt", "pipedream")
    nodes = [line for line in text.splitlines() if line and not line.startswith("\t")]
    assert (problem.phase == FORWARD).sum() == len(nodes)
    total = sum(float(x.split("_compute_time=")[1].split(",")[0]) for x in nodes)
    forward = problem.time["v100"][problem.phase == FORWARD].sum()
    assert forward == pytest.approx(total / 1e3)


def test_what_the_optimizer_writes_behind_layers_is_left_out_with_a_line(tmp_path):
    plain = read(tmp_path, SMALL)
    lines = [
        line if line.startswith("\t") else f"{line} -- stage_id={k % 2} -- replicated"
        for k, line in enumerate(SMALL.strip("\n").splitlines())
    ]
    with pytest.warns(
        ChangedWarning, match="stage_id of 3 layers, replicated of 3 layers: left out"
    ):
        problem = read(tmp_path, "\n".join(lines))
    assert problem.graph.names == plain.graph.names
    assert problem.module == plain.module
    (kind,) = problem.cluster.kinds
    assert problem.time[kind].tolist() == plain.time[kind].tolist()
    assert problem.graph.size.tolist() == plain.graph.size.tolist()
