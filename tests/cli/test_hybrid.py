"""``gnnplace hybrid``: the command on a problem file and on a model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gnnplace.cli import main as cli
from gnnplace.cli.hybrid import microbatch_counts
from gnnplace.placers.contract import branches, training_chain
from gnnplace.problem import write_problem


@pytest.fixture
def problem(tmp_path: Path) -> str:
    """A chain of layers on four devices."""
    path = tmp_path / "p.json"
    write_problem(path, training_chain(num_layers=8, num_devices=4))
    return str(path)


def hybrid(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    """The answer as data."""
    common = ["--placer", "contiguous", "--budget", "0", "--json"]
    assert cli.run(["hybrid", *arguments, *common]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
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
    answer = hybrid([problem, *given], capsys)
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


def test_the_table_the_sentence_and_the_plot(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people; more devices than the cluster has."""
    plot = tmp_path / "plot.svg"
    arguments = ["hybrid", problem, "--batch", "16", "--devices", "16", "-o", str(plot)]
    assert cli.run([*arguments, "--placer", "contiguous", "--budget", "0"]) == 0
    said = capsys.readouterr().out
    assert "With 16 devices, use" in said
    assert "cross-over" in said
    assert "assumed" in said
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["PROBLEM"], "--batch"),
        (["mlp"], "--cluster"),
        (["mlp", "--cluster", "nvlink-v100-4", "--batch", "4"], "--batch"),
        (["PROBLEM", "--batch", "4", "--devices", "0"], "devices 0"),
        (["PROBLEM", "--batch", "4", "--least-epochs", "0"], "--least-epochs"),
        (["PROBLEM", "--batch", "4", "--microbatches", "two"], "--microbatches"),
        (["PROBLEM", "--batch", "4", "-o", "plot.png"], "plot.png"),
        (["PROBLEM", "--batch", "4", "--most", "0"], "--most"),
        (["PROBLEM", "--batch", "4", "--placer", "plan"], "--placer plan"),
        (["PROBLEM", "--batch", "4", "--forward-only"], "--forward-only"),
        (["PROBLEM", "--batch", "4", "--epochs-table", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2."""
    given = [problem if word == "PROBLEM" else word for word in arguments]
    assert cli.run(["hybrid", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.splitlines()[-1].startswith("gnnplace:")


def test_what_does_not_fit_is_left_to_model_parallelism(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One device is too small; where nothing fits the exit is 3."""
    write_problem(tmp_path / "p.json", training_chain(num_devices=4, memory=48.0))
    answer = hybrid([str(tmp_path / "p.json"), "--batch", "8"], capsys)
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert all((row["step"] is None) == (row["group_devices"] == 1) for row in rows)
    write_problem(tmp_path / "q.json", training_chain(num_devices=4, memory=8.0))
    assert cli.run(["hybrid", str(tmp_path / "q.json"), "--batch", "8"]) == 3


def test_a_model_says_its_batch_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine that is not here nothing is measured; micro-batches that cannot be cut go."""
    given = ["mlp?batch=6", "--cluster", "nvlink-v100-4", "--microbatches", "1,2,4"]
    answer = hybrid(given, capsys)
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert rows[0]["global_batch"] == 6
    origin = answer["origin"]
    assert isinstance(origin, dict)
    assert "estimated" in origin["step"]


def test_without_updates_the_all_reduce_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the answer says so."""
    write_problem(tmp_path / "p.json", branches())
    answer = hybrid(
        [str(tmp_path / "p.json"), "--batch", "8", "--microbatches", "1"], capsys
    )
    origin = answer["origin"]
    assert isinstance(origin, dict)
    assert origin["all_reduce"].startswith("not counted")


def test_numbers_of_micro_batches() -> None:
    """Sorted, each once."""
    assert microbatch_counts("4, 1,4") == [1, 4]
