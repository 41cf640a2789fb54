"""DOPPLER's compute graphs: their costs, edges and devices; refused where they are malformed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnplace.bench.suite import read_suite, suite_path
from gnnplace.errors import FormatError
from gnnplace.problem import Problem
from gnnplace.problem.formats import convert
from gnnplace.problem.placement import Placement
from gnnplace.simulation import simulate

GRAPHS = Path(__file__).parents[3] / "data_sets" / "doppler"
# Six nodes of which two are inputs; node 0 feeds 1 and 2, both feed 3. An edge stands twice.
SMALL = """6
0, 1,
0, 0, 0, 1, 2,
1, 1, 2, 3, 3,
10000000000,20000000000
20000000000,0
30000000000,10000000000
10000000000,0
"""


def read(folder: Path, text: str, name: str = "small.txt") -> Problem:
    """The problem of a file with some text."""
    (folder / name).write_text(text)
    return convert(folder / name, "doppler", None)


def test_costs_are_seconds_and_a_result_is_sent_once_to_each_device(tmp_path):
    problem = read(tmp_path, SMALL)
    assert (problem.num_ops, problem.num_devices, problem.graph.num_tensors) == (
        4,
        4,
        3,
    )
    together = simulate(problem, Placement(np.zeros(4, dtype=np.int32)))
    assert together.step_time == pytest.approx(1 + 2 + 3 + 1)
    # Node 2 waits two seconds for the result of 0; its own result travels one second to 3.
    apart = simulate(problem, Placement(np.array([0, 0, 1, 0], dtype=np.int32)))
    assert apart.step_time == pytest.approx(1 + 2 + 3 + 1 + 1)
    assert not apart.faults


def test_a_name_says_how_many_devices_there_are(tmp_path):
    assert read(tmp_path, SMALL, "8gpu_small.txt").num_devices == 8


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0, 1,\n", "0, x,\n", "line 2: must be whole numbers"),
        ("1, 1, 2, 3, 3,", "1, 1, 2, 3,", "line 4: 4 edges end, and 5 begin"),
        ("1, 1, 2, 3, 3,", "1, 1, 2, 3, 4,", "an edge names node 4, and there are 4"),
        (
            "20000000000,0\n",
            "20000000000,0,1,matmul\n",
            "line 6: must be two whole numbers",
        ),
        ("10000000000,0\n", "", "has costs of 3 nodes"),
        (SMALL, "6\n", "has 1 lines"),
        ("0, 0, 0, 1, 2,", "0, 0, 3, 1, 2,", "cycle"),
    ],
)
def test_a_malformed_graph_is_refused_in_one_line(old, new, message, tmp_path):
    head, _, tail = SMALL.rpartition(old)
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path, head + new + tail)
    assert len(str(caught.value).splitlines()) == 1


def test_the_suite_has_the_six_graphs_as_they_are():
    path = suite_path("doppler")
    problems = [entry.load(path.parent) for entry in read_suite(path).problems]
    assert [problem.num_ops for problem in problems] == [76, 180, 182, 229, 302, 367]
    assert [problem.num_devices for problem in problems] == [4, 4, 4, 4, 8, 8]
    assert {problem.name for problem in problems} == {
        file.stem for file in GRAPHS.glob("*.txt")
    }
