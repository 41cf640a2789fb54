"""``gnnplace fidelity`` as a user types it: rows, failures as rows, files that place can use."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli.main import run
from gnnplace.errors import ExecutionError
from gnnplace.measurements import MeasurementStore, Selection
from gnnplace.measurements.calibration import read_calibration
from gnnplace.problem import read_problem
from gnnplace.problem.placement import read_placement
from gnnplace.run.measuring import fidelity

MODEL = "mlp?batch=8&depth=2"
COMMAND = [
    "fidelity",
    MODEL,
    "--cluster",
    "cpu:2",
    "--placements",
    "9",
    "--budget",
    "0",
]
COMMAND += [
    "--rounds",
    "1",
    "--placers",
    "single,contiguous,heft,nosuch",
    "--steps",
    "3",
    "--mode",
    "emulated",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One study, in which the third placement's worker dies."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        real, calls = fidelity.execute_placement, []

        def execute(*args, **kwargs):
            calls.append(0)
            if len(calls) == 3:
                raise ExecutionError("worker 'cpu:1' was killed by SIGKILL")
            return real(*args, **kwargs)

        patch.setattr(fidelity, "execute_placement", execute)
        store = ["--store", str(folder / "store.db")]
        assert run([*COMMAND, *store, "-o", str(folder / "out")]) == 0
    return folder


def test_every_placement_is_a_row_also_those_that_failed(folder):
    data = json.loads((folder / "out" / "fidelity.json").read_text())
    rows = data["rows"]
    assert len(rows) == 10  # nine, and a placer that does not exist
    failed = [row for row in rows if row["measured"] is None]
    assert sorted(row["error"].split()[0] for row in failed) == ["placer", "worker"]
    for row in rows:
        if row["measured"] is not None:
            assert 0 < row["predicted"] < 1
            assert row["calibrated"] > 0
    assert data["before"]["pairs"] == data["after"]["pairs"] == 8
    assert set(data["calibration"]) == {
        "op_overhead",
        "send_overhead",
        "receive_overhead",
        "contention",
        "slowdown",
    }
    assert data["ops"][0]["measured"] > 0
    assert "nosuch" in (folder / "out" / "fidelity.html").read_text()


def test_every_run_is_in_the_store(folder):
    runs = MeasurementStore(folder / "store.db").runs(Selection(model=MODEL))
    assert len(runs) == 8
    assert {r.source for r in runs} == {"fidelity"}
    assert all(r.steps == 3 and r.outcome.verified for r in runs)


def test_the_calibrated_problem_can_be_placed_and_is_of_the_same_structure(
    folder, capsys
):
    path, output = folder / "out" / "problem.json", folder / "p.json"
    place = ["place", str(path), "--placer", "heft", "--budget", "0", "-o", str(output)]
    assert run(place) == 0
    data = json.loads((folder / "out" / "fidelity.json").read_text())
    problem = read_problem(path)
    assert problem.fingerprint == data["fingerprint"]
    assert read_placement(output, problem).predicted_step_time > 0
    calibration, overlap = read_calibration(folder / "out" / "calibration.json")
    assert calibration.contention == data["calibration"]["contention"]
    assert overlap >= 0
    cluster = ["--cluster", str(folder / "out" / "cluster.yaml")]
    assert run([*place[:2], *cluster, *place[2:]]) == 0


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (["--clock", "sun"], "sun"),
        (["--placements", "2"], "at least 5"),
        (["--rounds", "0"], "--rounds 0"),
        (["-o", "/proc/x"], "/proc/x"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(extra, complaint, capsys):
    assert run([*COMMAND, *extra]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert complaint in error
