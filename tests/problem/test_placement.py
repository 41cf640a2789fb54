from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import FormatError, MismatchError
from gnnplace.problem import problem_from_data
from gnnplace.problem.placement import (
    Placement,
    list_faults,
    placement_from_data,
    placement_to_data,
    read_placement,
    sequence_from_order,
    write_placement,
)
from tests.problem.test_problem import TOY, changed
from tests.random_problems import random_order, random_problem, seeds

PROBLEM = problem_from_data(TOY)
GOOD = {
    "format": "gnnplace-placement",
    "version": 1,
    "problem": "toy",
    "device": {"conv": "gpu:0", "relu": "gpu:0"},
    "sequence": {"gpu:0": ["conv", "relu"], "gpu:1": []},
}


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_round_trip(seed, tmp_path_factory):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 9, 3)
    device = rng.integers(0, 3, 9).astype(np.int32)
    sequence = sequence_from_order(device, random_order(problem, rng), 3)
    placement = Placement(device, sequence, 1.5, 1.0, "random", 0.1, 7)
    path = tmp_path_factory.mktemp("p") / "placement.json"
    write_placement(path, placement, problem)
    again = read_placement(path, problem)
    assert placement_to_data(again, problem) == placement_to_data(placement, problem)
    assert again.device.tolist() == device.tolist()


def test_a_placement_without_sequence_or_fingerprint_is_fine():
    data = {key: GOOD[key] for key in ("format", "version", "device")}
    assert placement_from_data(data, PROBLEM).sequence is None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"device": {"conv": "gpu:0"}}, FormatError, "op 'relu' has no device"),
        (
            {"device": {"conv": "gpu:0", "relu": "gpu:5"}},
            FormatError,
            "device.relu: no device",
        ),
        ({"device": {**GOOD["device"], "x": "gpu:0"}}, FormatError, "device.x: no op"),
        ({"sequence": {"gpu:0": ["conv"]}}, FormatError, "'relu' is missing"),
        (
            {"sequence": {"gpu:0": ["conv", "relu", "relu"]}},
            FormatError,
            "'relu' is repeated",
        ),
        (
            {"sequence": {"gpu:1": ["conv"], "gpu:0": ["relu"]}},
            FormatError,
            r"gpu:1\[0\]",
        ),
        ({"sequence": {"gpu:3": []}}, FormatError, "sequence.gpu:3"),
        ({"fingerprint": "0" * 64}, MismatchError, "fingerprint"),
        ({"seconds": float("nan")}, FormatError, "seconds"),
        ({"colour": 1}, FormatError, "colour: unknown key"),
    ],
)
def test_faults_of_files(change, error, message):
    with pytest.raises(error, match=message):
        placement_from_data(GOOD | change, PROBLEM)


def test_a_placement_of_another_structure_is_refused():
    placement = placement_to_data(Placement(np.array([0, 1])), PROBLEM)
    other = problem_from_data(changed(["tensors", 0, "bytes"], 9))
    with pytest.raises(MismatchError, match="another problem"):
        placement_from_data(placement, other)
    measured_again = problem_from_data(changed(["ops", 0, "time", "h200"], 9.0))
    assert placement_from_data(placement, measured_again).device.tolist() == [0, 1]


def test_every_fault_of_devices_is_named():
    data = changed(["links"], [])
    data["ops"].append({"name": "add", "time": {"cpu": 1.0}, "colocate": "w0"})
    data["ops"].append({"name": "out", "time": {"h200": 1.0}, "pin": "gpu:1"})
    found = "\n".join(list_faults(problem_from_data(data), np.array([0, 1, 1, 0])))
    assert "op 'add' cannot run on 'gpu:1'" in found
    assert "op 'out' is on 'gpu:0' but pinned to 'gpu:1'" in found
    assert "'conv' and 'add' are colocated ('w0')" in found
    assert "tensor of 'conv' for 'relu': no link from 'gpu:0' to 'gpu:1'" in found


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            (["x-capture"], {"groups": 100, "optimizer": "sgd"}),
            "captured with --groups 200, not --groups 100;",
        ),
        ((["devices", 1, "name"], "gpu:7"), "devices gpu:0, gpu:1, not gpu:0, gpu:7;"),
        ((["ops", 1, "name"], "tanh"), "2 ops, not 2, such as 'relu' there alone;"),
        ((["tensors", 0, "bytes"], 9), "the same ops, but other sizes of tensors"),
    ],
)
def test_a_mismatch_says_what_differs(change, told):
    made = placement_to_data(placement_from_data(GOOD, PROBLEM), PROBLEM)
    made["x-capture"] = {"groups": 200, "optimizer": "sgd"}
    data = changed(*change)
    if change[0][0] == "devices":
        data["links"] = []
    if change[0][0] in ("ops", "x-capture"):
        data["tensors"] = []
    with pytest.raises(MismatchError) as raised:
        placement_from_data(made, problem_from_data(data))
    assert told in str(raised.value)
