"""Losses that micro-batches would change, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnnplace.cli.main import run

MODELS = """
import torch
from torch import nn
from torch.nn import functional

RANDOM = torch.Generator().manual_seed(0)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        return self.left(x), self.right(y)


def clip(towers):
    scores = towers[0] @ towers[1].T
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def contrastive():
    return Towers(), (torch.randn(8, 8), torch.randn(8, 8)), clip


def summed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, (torch.randn(8, 8), torch.randint(3, (8,))), nn.CrossEntropyLoss(reduction="sum")
"""
PLACE = [
    "--cluster",
    "cpu:2",
    "--placer",
    "contiguous",
    "--budget",
    "0",
    "-o",
    "p.json",
]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_losses.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GNNPLACE_STORE", "none")


def test_a_contrastive_loss_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["place", "odd_losses:contrastive", *PLACE, "--microbatches", "4"]) == 2
    said, error = capsys.readouterr().err.strip().split("\n")
    assert said.strip() == "capturing the step of odd_losses:contrastive"
    assert error.startswith("gnnplace: ")
    assert "op 'matmul'" in error
    assert "odd_losses.py:19 cannot be cut: it pairs examples of the batch" in error
    assert not Path("p.json").exists()


def test_auto_leaves_the_batch_whole_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(["place", "odd_losses:contrastive", *PLACE, "--microbatches", "auto"]) == 0
    )
    assert "the batch is left whole" in capsys.readouterr().err
    assert json.loads(Path("p.json").read_text())["x-capture"]["microbatches"] == 1


def test_who_accepts_it_is_told_in_every_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ["--microbatches", "2", "--accept-other-loss"]
    assert run(["place", "odd_losses:contrastive", *PLACE, *more]) == 0
    assert "accepted although op 'matmul'" in capsys.readouterr().err
    execute = [
        "execute",
        "odd_losses:contrastive",
        "p.json",
        "--mode",
        "emulated",
        "--no-eager",
    ]
    assert run([*execute, "--steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "not compared with eager PyTorch on the whole batch: op 'matmul'" in shown


def test_a_sum_is_added_up_and_compared_with_eager_pytorch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["place", "odd_losses:summed", *PLACE, "--microbatches", "4"]) == 0
    assert (
        "sums over the examples are added up, not averaged" in capsys.readouterr().err
    )
    execute = [
        "execute",
        "odd_losses:summed",
        "p.json",
        "--mode",
        "emulated",
        "--no-eager",
    ]
    assert run([*execute, "--steps", "1"]) == 0
    assert (
        "loss and 4 gradients equal those of eager PyTorch" in capsys.readouterr().out
    )
    assert run([*execute, "--steps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]


def test_other_commands_refuse_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "odd_losses:contrastive", "--cluster", "cpu:2", "--goal", "epochs"]
    assert run([*plan, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["training"]["rows"]
    assert [row["groups"] for row in rows if "'matmul'" in row["note"]] == [2]
    assert run([*plan, "--json", "--accept-other-loss"]) == 0
    rows = json.loads(capsys.readouterr().out)["training"]["rows"]
    assert all(row["step"] is not None for row in rows)
    suite = "name: odd\nkind: execute\nmode: emulated\nplacers: [contiguous]\n"
    suite += (
        "budgets: [0]\nproblems:\n"
        "  - {model: 'odd_losses:contrastive', cluster: 'cpu:2', microbatches: 2}\n"
    )
    Path("odd.yaml").write_text(suite)
    assert run(["bench", "odd.yaml", "-o", "first"]) == 0
    assert "op 'matmul'" in json.loads(Path("first/odd.jsonl").read_text())["error"]
    assert run(["bench", "odd.yaml", "-o", "second", "--accept-other-loss"]) == 0
    assert json.loads(Path("second/odd.jsonl").read_text())["feasible"]
