"""Graphs of Placeto and Wang et al.: costs, outputs, groups; refused where they are malformed."""

from __future__ import annotations

import copy
import json
import pickle
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gnnplace.errors import FormatError
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.problem.formats import convert
from gnnplace.problem.placement import Placement
from gnnplace.simulation import simulate

DOCS = Path(__file__).parents[3] / "docs"
# What the authors' code reads of four ops: "split" has two outputs, "left" and "right" read one
# each, "sum" reads both and waits for "split" beside.
NODES = [
    {"name": "split", "op": "Split"},
    {"name": "left", "op": "MatMul", "input": ["split"]},
    {"name": "right", "op": "MatMul", "input": ["split:1"]},
    {"name": "sum", "op": "Add", "input": ["left", "right:0", "^split"]},
]
MEGABYTE = 7_600_000  # a millisecond over their bus


def stats(name, micros, requested=None):
    allocated = {"allocation_description": {"requested_bytes": requested}}
    output = [] if requested is None else [{"tensor_description": allocated}]
    return {
        "node_name": name,
        "all_start_micros": 1,
        "op_start_rel_micros": 10,
        "all_end_rel_micros": 10 + micros,
        "output": output,
    }


SMALL = {
    "optim_mg": {"graph_def": {"node": NODES, "versions": {"producer": 24}}},
    "ungrouped_mapping": {
        "split": "split",
        "left": "sum",
        "right": "right",
        "sum": "sum",
    },
    "step_stats": {
        "dev_stats": [
            {
                "device": "/job:localhost/replica:0/task:0/device:GPU:0/stream:all",
                "node_stats": [
                    stats("split:Split", 100),
                    stats("left:MatMul", 2000),
                    stats("right:MatMul", 1000),
                    stats("right:MatMul", 2000),
                ],
            },
            {
                "device": "/job:localhost/replica:0/task:0/device:GPU:0",
                "node_stats": [stats("left", 7, MEGABYTE), stats("sum", 9, 0)],
            },
        ]
    },
    "op_perf": [
        {"node": "split", "op_memory": {"output_memory": [0, 2 * MEGABYTE]}},
        {"node": "left", "op_memory": {"output_memory": [5]}},
        {"node": "right", "op_memory": {"output_memory": [3 * MEGABYTE]}},
    ],
}


def read(folder, data, cluster=None):
    path = folder / "graph.json"
    path.write_text(json.dumps(data))
    return convert(path, "placeto", cluster)


def with_spelling(data):
    """Return the same contents as protobuf's own JSON: camel case, 64-bit numbers as text."""

    def camel(key):
        return re.sub(r"_(\w)", lambda letter: letter[1].upper(), key)

    def of(value, key=""):
        if isinstance(value, dict):
            named = key in ("ungrouped_mapping", "cost_d", "out_d")
            return {k if named else camel(k): of(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [of(each) for each in value]
        return str(value) if isinstance(value, int) else value

    return {key: of(value, key) for key, value in data.items()}


@pytest.mark.parametrize("spelled", [lambda data: data, with_spelling])
def test_costs_outputs_and_groups_are_what_their_simulator_has(tmp_path, spelled):
    problem = read(tmp_path, spelled(SMALL))
    micros = [100, 2000, 3000, 0]
    expected = [(each + 5.7) * 1e-6 if each else 0.0 for each in micros]
    np.testing.assert_allclose(problem.time["gpu"], expected)
    graph = problem.graph
    tensors = {
        (
            graph.names[graph.producer[k]],
            tuple(graph.names[c] for c in graph.consumers(k)),
        ): size
        for k, size in enumerate(graph.size)
    }
    assert tensors == {
        ("split", ("left", "sum")): 0,  # a control input carries the first output
        ("split", ("right",)): 2 * MEGABYTE,
        ("left", ("sum",)): MEGABYTE,  # the first output that was measured, not 5
        ("right", ("sum",)): 3 * MEGABYTE,
    }
    assert problem.unit_of[1] == problem.unit_of[3]
    assert problem.num_units == 3
    assert problem.num_devices == 3


def test_a_transfer_takes_its_bytes_over_their_bus(tmp_path):
    problem = read(tmp_path, SMALL)
    together = simulate(problem, Placement(np.zeros(4, dtype=np.int32)))
    assert together.step_time == pytest.approx(5100e-6 + 3 * 5.7e-6)
    apart = simulate(problem, Placement(np.array([0, 0, 1, 0], dtype=np.int32)))
    # Two milliseconds to the other device and three back, with a latency each way.
    assert apart.step_time == pytest.approx(3100e-6 + 2 * 5.7e-6 + 5e-3 + 2 * 25e-6)


def test_on_another_cluster_times_are_estimated(tmp_path):
    problem = read(tmp_path, SMALL, make_preset("pcie-t4-2"))
    assert problem.num_devices == 2
    assert problem.estimated.all()
    assert not read(tmp_path, SMALL).estimated.any()


def test_costs_may_stand_by_op(tmp_path):
    data = {key: SMALL[key] for key in ("optim_mg", "ungrouped_mapping")}
    data |= {"cost_d": {"left": 2000.0}, "out_d": {"left": [MEGABYTE]}}
    problem = read(tmp_path, data)
    assert problem.time["gpu"].tolist() == pytest.approx([0, 2005.7e-6, 0, 0])
    assert sorted(problem.graph.size.tolist()) == [0, 0, 0, MEGABYTE]


def changed(change):
    data = copy.deepcopy(SMALL)
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("optim_mg"), r"graph.json: optim_mg: required key is missing"),
        (lambda d: d["ungrouped_mapping"].pop("sum"), "no group of the op 'sum'"),
        (
            lambda d: d.pop("step_stats"),
            "step_stats: missing; give it with op_perf, or cost_d",
        ),
        (
            lambda d: d["step_stats"]["dev_stats"].pop(0),
            "none is of a device with 'all'",
        ),
        (
            lambda d: d["step_stats"]["dev_stats"][0]["node_stats"][1].update(
                all_end_rel_micros=4
            ),
            r"node_stats\[1\]: ends 6 microseconds before it starts",
        ),
        (
            lambda d: d["optim_mg"]["graph_def"]["node"][1].update(input=["nowhere"]),
            r"node\[1\].input: no op is called 'nowhere'",
        ),
        (
            lambda d: d["optim_mg"]["graph_def"]["node"][1].update(input=["split:x"]),
            "'split:x': must be OP",
        ),
        (
            lambda d: d["optim_mg"]["graph_def"]["node"][0].update(input=["sum"]),
            "cycle",
        ),
        (
            lambda d: d["op_perf"][0]["op_memory"].update(output_memory=[-1]),
            r"op_perf\[0\]\.op_memory\.output_memory\[0\]",
        ),
    ],
)
def test_what_is_malformed_is_one_line(tmp_path, change, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path, changed(change))
    assert "graph.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pickle_is_not_loaded(tmp_path):
    path = tmp_path / "input.pkl"
    path.write_bytes(pickle.dumps(SMALL))
    with pytest.raises(FormatError, match=r"input\.pkl"):
        convert(path, "placeto", None)


def as_messages(data):
    """Return contents with TensorFlow's own messages where they are at hand without it."""
    from google.protobuf.json_format import ParseDict
    from tensorboard.compat.proto import graph_pb2, step_stats_pb2

    graph = ParseDict(data["optim_mg"]["graph_def"], graph_pb2.GraphDef())
    performance = [
        SimpleNamespace(node=op["node"], op_memory=SimpleNamespace(**op["op_memory"]))
        for op in data["op_perf"]
    ]
    return {
        "optim_mg": SimpleNamespace(graph_def=graph),
        "ungrouped_mapping": data["ungrouped_mapping"],
        "op_perf": performance,
        "step_stats": ParseDict(data["step_stats"], step_stats_pb2.StepStats()),
        "G": None,
        "argv": ["grouper.py"],
    }


def test_the_page_s_script_writes_what_is_read(tmp_path, monkeypatch):
    """The script of docs/howto/graphs.md, on a pickle that has the shape of theirs."""
    pytest.importorskip("tensorboard.compat.proto")
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / "howto/graphs.md").read_text(), re.DOTALL
    )
    (script,) = [block for block in blocks if block.startswith("# pickle_to_json.py")]
    (tmp_path / "pickle_to_json.py").write_text(script)
    (tmp_path / "input.pkl").write_bytes(pickle.dumps(as_messages(SMALL)))
    arguments = [
        "pickle_to_json.py",
        str(tmp_path / "input.pkl"),
        str(tmp_path / "written.json"),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(tmp_path / "pickle_to_json.py"), run_name="__main__")
    written = convert(tmp_path / "written.json", "placeto", None)
    assert written.fingerprint == read(tmp_path, SMALL).fingerprint
