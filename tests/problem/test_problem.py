from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import FormatError, InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import (
    build_problem,
    problem_from_data,
    problem_to_data,
    read_problem,
    write_problem,
)
from gnnplace.problem.cluster import make_preset
from tests.random_problems import random_problem, seeds


def test_the_fingerprint_covers_structure_and_not_times():
    same = problem_from_data(changed(["ops", 0, "time", "h200"], 5.0))
    assert same.fingerprint == problem_from_data(TOY).fingerprint
    for other in (
        changed(["tensors", 0, "bytes"], 4097),
        changed(["ops", 0, "colocate"], "w1"),
        changed(["ops", 0, "name"], "conv2"),
    ):
        other["tensors"][0]["producer"] = other["ops"][0]["name"]
        assert problem_from_data(other).fingerprint != same.fingerprint


@pytest.mark.parametrize("value", [-1.0, np.nan, 1e31, 1e308])
def test_numbers_whose_sums_are_not_finite_are_refused_in_python_too(value):
    """Where a kernel got such times it looked for ops behind the end of its arrays."""
    problem = random_problem(np.random.default_rng(1), 5, 2)
    times = {
        kind: np.full_like(seconds, value) for kind, seconds in problem.time.items()
    }
    with pytest.raises(InputError, match=r"ops\[0\].time.* 0 to 1e\+30"):
        replace(problem, time=times)
    with pytest.raises(InputError, match=r"ops\[0\].state"):
        replace(problem, state=np.full_like(problem.state, value))
    with pytest.raises(InputError, match=r"tensors\[0\].bytes"):
        replace(problem.graph, size=np.full_like(problem.graph.size, value))


def test_devices_that_no_op_has_a_time_for_are_said():
    assert not problem_from_data(TOY).idle
    odd = problem_from_data(changed(["devices", 1, "kind"], "b200"))
    assert odd.idle == (
        "no op has a time for kind 'b200', so nothing can run on gpu:1; there are times for 'h200'"
    )


def test_units_are_numbered_as_they_come_and_ops_without_a_class_are_alone():
    names = list("abcdef")
    graph = ComputationGraph.from_tensors(names, [])
    labels = (None, "x", None, "y", "x", "y")
    problem = build_problem(
        "p", graph, make_preset("pcie-t4-2"), {"t4": np.ones(6)}, colocate=labels
    )
    assert problem.unit_of.tolist() == [0, 1, 2, 3, 1, 3]


TOY = {
    "format": "gnnplace-problem",
    "version": 1,
    "name": "toy",
    "microbatches": 1,
    "devices": [
        {"name": "gpu:0", "kind": "h200", "memory": 1.4e11},
        {"name": "gpu:1", "kind": "h200", "memory": 1.4e11},
    ],
    "links": [
        {
            "source": "gpu:0",
            "target": "gpu:1",
            "latency": 5e-6,
            "bandwidth": 1e10,
            "channel": "p",
        },
        {"source": "gpu:1", "target": "gpu:0", "latency": 5e-6, "bandwidth": 1e10},
    ],
    "ops": [
        {"name": "conv", "time": {"h200": 1.2e-3}, "state": 1048576, "colocate": "w0"},
        {"name": "relu", "time": {"h200": 1e-4}, "x-note": "ours"},
    ],
    "tensors": [{"producer": "conv", "bytes": 4096, "consumers": ["relu"]}],
}


def changed(path: list, value: object) -> dict:
    data = copy.deepcopy(TOY)
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return data


def test_reads_the_documented_example():
    problem = problem_from_data(TOY)
    assert problem.times.tolist() == [[1.2e-3, 1.2e-3], [1e-4, 1e-4]]
    assert problem.state.tolist() == [1048576.0, 0.0]
    assert problem.colocate == ("w0", None)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_round_trip(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, 10, 3, constrained=True, microbatches=int(rng.integers(1, 4))
    )
    data = json.loads(json.dumps(problem_to_data(problem)))
    again = problem_from_data(data)
    assert problem_to_data(again) == data
    assert again.fingerprint == problem.fingerprint
    assert (again.times == problem.times).all()
    assert (again.unit_of == problem.unit_of).all()


def test_files_are_written_whole(tmp_path):
    write_problem(tmp_path / "p.json", problem_from_data(TOY))
    assert (
        problem_to_data(read_problem(tmp_path / "p.json"))["ops"][0]["state"] == 1048576
    )
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (changed(["ops", 0, "time", "h200"], -1), r"ops\[0\].time.h200"),
        (changed(["ops", 0, "time", "h200"], float("nan")), r"ops\[0\].time.h200"),
        (changed(["ops", 0, "time", "h200"], "1e-3"), r"ops\[0\].time.h200"),
        (changed(["ops", 1, "state"], float("inf")), r"ops\[1\].state"),
        (changed(["ops", 1, "name"], "conv"), r"ops\[1\].name: 'conv' is repeated"),
        (changed(["ops", 1, "phase"], "sideways"), r"ops\[1\].phase"),
        (
            changed(["ops", 1, "pin"], "gpu:9"),
            r"ops\[1\].pin: no device is named 'gpu:9'",
        ),
        (changed(["ops", 1, "memory"], 3), r"ops\[1\].memory: unknown key"),
        (changed(["tensors", 0, "bytes"], -4), r"tensors\[0\].bytes"),
        (
            changed(["tensors", 0, "consumers"], ["x"]),
            r"tensors\[0\].consumers\[0\]: no op",
        ),
        (changed(["tensors", 0, "consumers"], ["conv"]), "cycle"),
        (changed(["tensors", 0, "consumers"], ["relu", "relu"]), "repeated"),
        (changed(["tensors", 0, "producer"], "x"), r"tensors\[0\].producer: no op"),
        (changed(["links", 0, "target"], "gpu:7"), r"links\[0\].target"),
        (changed(["links", 1, "source"], "gpu:1x"), r"links\[1\].source"),
        (changed(["devices", 1, "name"], "gpu:0"), r"devices\[1\].name"),
        (changed(["devices", 1, "memory"], -1), r"devices\[1\].memory"),
        (changed(["microbatches"], 0), "microbatches"),
        (changed(["microbatches"], 10**9), "microbatches: 1000000000, but there are"),
        (changed(["ops", 0, "time", "h200"], 1e308), r"ops\[0\].time.h200"),
        (changed(["ops", 0, "state"], 1e308), r"ops\[0\].state"),
        (changed(["links", 0, "latency"], 1e308), r"links\[0\].latency"),
        (changed(["links", 0, "bandwidth"], 1e-308), r"links\[0\].bandwidth"),
        (changed(["version"], 2), "version"),
        (changed(["ops"], []), "ops"),
        ([], "top level"),
    ],
)
def test_faults_name_the_key_path_in_one_line(data, where):
    with pytest.raises(FormatError, match=where) as caught:
        problem_from_data(data, "p.json")
    assert str(caught.value).startswith("p.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 column 2"),
        ('{"a": 1, "a": 2}', "'a' is repeated"),
        ("[" * 100_000, "p.json"),
        ('{"format": "gnnplace-problem", "version": 1e999}', "version"),
    ],
)
def test_files_that_are_not_json(tmp_path, text, message):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        read_problem(tmp_path / "p.json")
    (tmp_path / "p.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        read_problem(tmp_path / "p.json")


@pytest.mark.parametrize("kind", ["H200", "h-200", "H 200"])
def test_a_kind_spelt_otherwise_is_refused(kind):
    with pytest.raises(
        FormatError, match=r"devices\[1\].kind: .* but ops have for 'h200'"
    ):
        problem_from_data(changed(["devices", 1, "kind"], kind))


def test_all_faults_of_a_file_are_told_at_once():
    data = changed(["ops", 1, "pin"], "gpu:9")
    data["ops"].append({"name": "conv", "time": {"h200": 1.0}})
    data["tensors"].append(
        {"producer": "norm", "bytes": "2MB", "consumers": ["relu", "loss"]}
    )
    data["links"][0]["target"] = "gpu:2"
    with pytest.raises(FormatError) as raised:
        problem_from_data(data, "p.json")
    assert [line.split(": ")[1] for line in raised.value.faults] == [
        *("links[0].target", "ops[1].pin", "ops[2].name"),
        *("tensors[1].producer", "tensors[1].consumers[1]"),
    ]


def test_a_file_of_another_kind_is_one_fault():
    with pytest.raises(
        FormatError, match="is a gnnplace-plan file; gnnplace-problem is wanted"
    ):
        problem_from_data(TOY | {"format": "gnnplace-plan"})


def test_sizes_may_have_units_and_options_of_capture_are_kept():
    data = changed(["ops", 0, "state"], "1MiB") | {"x-capture": {"groups": 50}}
    problem = problem_from_data(data)
    assert problem.state[0] == 2**20
    assert problem.captured == {"groups": 50}
