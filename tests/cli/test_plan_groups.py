"""``plan --goal epochs`` of problem files and captured models: groups of devices."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gnnplace.cli import main as cli
from gnnplace.placers.contract import branches, training_chain
from gnnplace.problem import write_problem

EPOCHS = ("--goal", "epochs", "--budget", "0")


@pytest.fixture
def problem(tmp_path: Path) -> str:
    """A chain of layers on four devices."""
    path = tmp_path / "p.json"
    write_problem(path, training_chain(num_layers=8, num_devices=4))
    return str(path)


def training(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    """The answer as data."""
    assert cli.run(["plan", *arguments, *EPOCHS, "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)["training"]
    return answer


def test_every_row_can_be_worked_out_by_hand(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps, epochs and seconds from the columns beside them."""
    (tmp_path / "e.csv").write_text("batch,epochs\n16,4\n64,9\n")
    given = [
        "--batch",
        "16",
        "--examples",
        "1000",
        "--epochs-table",
        str(tmp_path / "e.csv"),
    ]
    answer = training([problem, *given], capsys)
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert {(r["groups"], r["group_devices"]) for r in rows} == {
        (1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4)
    }  # fmt: skip
    for row in rows:
        assert row["global_batch"] == 16 * row["groups"]
        assert row["steps_per_epoch"] == math.ceil(1000 / row["global_batch"])
        assert row["epochs"] == pytest.approx({1: 4, 2: 6.5, 4: 9}[row["groups"]])
        assert row["step"] == pytest.approx(row["step_alone"] + row["exposed"])
        assert row["exposed"] <= row["all_reduce"] + 1e-9
        total = row["step"] * row["steps_per_epoch"] * row["epochs"]
        assert row["seconds"] == pytest.approx(total)
    best = answer["best"]
    assert isinstance(best, dict)
    assert best["seconds"] == min(row["seconds"] for row in rows)
    origin = answer["origin"]
    assert isinstance(origin, dict)
    assert origin["epochs"].startswith("given")
    assert origin["examples"] == "given"


def test_the_table_the_sentence_and_the_page(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people, on fewer devices than the cluster has; the page has the picture."""
    page = tmp_path / "page.html"
    arguments = ["plan", problem, "--batch", "16", "--max-devices", "2", *EPOCHS]
    assert cli.run([*arguments, "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "With 2 devices, use" in said
    assert "cross-over" in said
    assert "assumed" in said
    assert "<svg" in page.read_text()


def test_copies_of_a_cluster_are_more_devices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Groups lie inside of a copy."""
    answer = training(["mlp", "--cluster", "4xpcie-a100-4"], capsys)
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert max(row["devices"] for row in rows) == 16
    assert max(row["group_devices"] for row in rows) == 4
    origin = answer["origin"]
    assert isinstance(origin, dict)
    assert "between copies" in origin["all_reduce"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["PROBLEM"], "--batch"),
        (["mlp"], "--cluster"),
        (["PROBLEM", "--batch", "4", "--max-devices", "5"], "--max-devices 5"),
        (["PROBLEM", "--batch", "4", "--least-epochs", "0"], "--least-epochs"),
        (["PROBLEM", "--batch", "4", "-o", "plan.json"], "ops alone"),
        (["PROBLEM", "--batch", "4", "--precision", "bf16-true"], "--precision"),
        (["PROBLEM", "--batch", "4", "--epochs-table", "nowhere.csv"], "nowhere.csv"),
        (["mlp", "--cluster", "cpu:2", "--tokens", "1B"], "no rows of tokens"),
        (["mlp", "--cluster", "cpu:2", "--pin", "*=cpu:0"], "--pin"),
        (["mlp", "--cluster", "cpu:2", "--top", "2"], "--top"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2."""
    given = [problem if word == "PROBLEM" else word for word in arguments]
    assert cli.run(["plan", *given, *EPOCHS]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.splitlines()[-1].startswith("gnnplace:")


def test_the_command_of_old_says_where_it_went(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line."""
    assert cli.run(["hybrid", "mlp", "--cluster", "cpu:2"]) == 2
    error = capsys.readouterr().err
    assert "plan MODEL --cluster C --goal epochs" in error
    assert error.count("\n") == 1


def test_what_does_not_fit_is_left_to_model_parallelism(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One device is too small; where nothing fits the exit is 3."""
    write_problem(tmp_path / "p.json", training_chain(num_devices=4, memory=48.0))
    answer = training([str(tmp_path / "p.json"), "--batch", "8"], capsys)
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert all((row["step"] is None) == (row["group_devices"] == 1) for row in rows)
    write_problem(tmp_path / "q.json", training_chain(num_devices=4, memory=8.0))
    assert cli.run(["plan", str(tmp_path / "q.json"), "--batch", "8", *EPOCHS]) == 3


def test_a_group_has_the_batch_of_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Or that which is asked for; micro-batches that cannot be cut are left out."""
    model = ["mlp?batch=6", "--cluster", "nvlink-v100-4"]
    rows = training(model, capsys)["rows"]
    assert isinstance(rows, list)
    assert [r["global_batch"] for r in rows] == [6 * r["groups"] for r in rows]
    assert {r["microbatches"] for r in rows} == {1}
    rows = training([*model, "--batch", "8"], capsys)["rows"]
    assert isinstance(rows, list)
    assert rows[0]["global_batch"] == 8


def test_without_updates_the_all_reduce_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the answer says so."""
    write_problem(tmp_path / "p.json", branches())
    answer = training([str(tmp_path / "p.json"), "--batch", "8"], capsys)
    origin = answer["origin"]
    assert isinstance(origin, dict)
    assert origin["all_reduce"].startswith("not counted")
