from __future__ import annotations

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.problem import build_problem, problem_from_data
from gnnplace.problem.cluster import preset
from tests.problem.test_problem_file import TOY, changed


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
    problem = build_problem("p", graph, preset("pcie-t4-2"), {"t4": np.ones(6)}, colocate=labels)
    assert problem.unit_of.tolist() == [0, 1, 2, 3, 1, 3]
