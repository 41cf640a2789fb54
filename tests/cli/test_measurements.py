"""``gnnplace measurements`` as a user types it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gnnplace.cli.console import open_store
from gnnplace.cli.main import run
from gnnplace.measurements import MeasurementStore, Outcome
from gnnplace.measurements.calibration import Calibration, read_calibration
from gnnplace.problem import problem_to_data, write_problem
from gnnplace.problem.cluster.machine import describe_machine
from gnnplace.problem.placement import placement_to_data
from gnnplace.report import collect_environment as environment
from gnnplace.train.workbench import Workbench
from tests.measurements.test_calibration import samples
from tests.measurements.writer import run_record, step_record


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "store.db"
    monkeypatch.setenv("GNNPLACE_STORE", str(path))
    made = MeasurementStore(path)
    for k, (model, outcome) in enumerate(
        [
            ("bert", Outcome("ok", verified=True)),
            ("vit", Outcome("failed", "worker 'cpu:1' died")),
        ]
    ):
        record = replace(
            run_record(model, k), began=f"2026-01-0{k + 1}T00:00:00.000000+00:00"
        )
        made.begin(record)
        made.add_steps(record.id, [step_record(0, 0.25)])
        made.end(record.id, outcome)
    return made


def test_list_shows_every_run_and_narrows(store, capsys):
    assert run(["measurements", "list"]) == 0
    out = capsys.readouterr().out
    assert "bert" in out
    assert "250 ms" in out
    assert "died" in out
    assert run(["measurements", "list", "--failed", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["model"] for line in lines] == ["vit"]


def test_export_has_everything_the_oldest_first(store, tmp_path, capsys):
    assert run(["measurements", "export"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["model"] for line in lines] == ["bert", "vit"]
    assert lines[0]["steps"][0]["ops"] == {
        "a": [0.0, 0.25, 0.25],
        "b": [0.5, 0.25, 0.125],
    }
    assert lines[0]["placement"]["device"] == {"a": "cpu:0"}
    assert lines[0]["problem"]["name"] == "bert"
    output = tmp_path / "runs.jsonl"
    assert run(["measurements", "export", "--model", "vit", "-o", str(output)]) == 0
    assert len(output.read_text().splitlines()) == 1


def test_prune_forgets_what_it_is_told(store, capsys):
    assert run(["measurements", "prune", "--before", "2026-01-02"]) == 0
    assert "1 runs forgotten, 1 left" in capsys.readouterr().out
    assert [r.model for r in store.runs()] == ["vit"]
    assert run(["measurements", "prune", "--keep", "1"]) == 0
    assert len(store.runs()) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["forget"], "forget"),
        (["prune"], "say what"),
        (["prune", "--before", "yesterday"], "yesterday"),
        (["list", "--limit", "0"], "--limit 0"),
        (["prune", "--keep", "-1"], "--keep -1"),
        (["list", "--store", "nosuch://x"], "nosuch"),
        (["list", "--store", "none"], "nothing is kept"),
        (["export", "-o", "/nowhere/x.jsonl"], "/nowhere"),
        (["list", "--limit", "many"], "many"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(store, arguments, complaint, capsys):
    assert run(["measurements", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert complaint in error
    assert len(store.runs()) == 2


def test_a_calibration_is_fitted_to_the_store_and_used_by_place(
    tmp_path, monkeypatch, capsys
):
    """Runs whose every op took 100 microseconds more than profiled."""
    store = MeasurementStore(tmp_path / "store.db")
    monkeypatch.setenv("GNNPLACE_STORE", str(tmp_path / "store.db"))
    for sample in samples(Calibration(op_overhead=1e-4)):
        record = run_record(
            "p", fingerprint=sample.problem.fingerprint, machine=describe_machine()
        )
        record = replace(
            record,
            problem=problem_to_data(sample.problem),
            placement=placement_to_data(sample.placement, sample.problem),
        )
        store.begin(record)
        store.add_steps(record.id, [step_record(0, sample.measured)])
        store.end(record.id, Outcome("ok", verified=True))
    output = tmp_path / "calibration.json"
    assert run(["measurements", "calibrate", "--clock", "wall", "-o", str(output)]) == 0
    assert "written to" in capsys.readouterr().out
    calibration, overlap = read_calibration(output)
    assert calibration.op_overhead == pytest.approx(1e-4, rel=0.2)
    assert 0 < overlap <= 1
    write_problem(tmp_path / "problem.json", sample.problem)
    place = [
        "place",
        str(tmp_path / "problem.json"),
        "--placer",
        "single",
        "--budget",
        "0",
    ]
    times = []
    for extra in ([], ["--calibration", str(output)]):
        assert run([*place, "-o", str(tmp_path / "p.json"), *extra]) == 0
        times.append(
            json.loads((tmp_path / "p.json").read_text())["predicted_step_time"]
        )
    assert times[1] > times[0] + 0.8 * 1e-4 * sample.problem.num_ops
    broken = ["--calibration", str(tmp_path / "problem.json")]
    assert run([*place, "-o", str(tmp_path / "p.json"), *broken]) == 2


def test_a_store_without_runs_of_this_machine_cannot_calibrate(store, tmp_path, capsys):
    assert run(["measurements", "calibrate", "-o", str(tmp_path / "c.json")]) == 2
    assert "fidelity" in capsys.readouterr().err


def test_every_road_keeps_nothing_where_the_variable_says_none(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GNNPLACE_STORE", "none")
    assert open_store(None) is None
    assert open_store("none") is None
    assert Workbench("mlp?depth=1&width=8&batch=2", "cpu:1").objective is not None
    assert environment()["caches"]["store of measured steps"] == "none"
    assert run(["measurements", "list"]) == 2
    assert "nothing is kept" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
