"""The batch with which training ends first, against all batches and the formulas' own figures."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.hybrid.batches import plan_batches
from gnnplace.plans.hybrid.convergence import (
    CriticalBatch,
    EpochTable,
    Training,
    make_token_preset,
)


@dataclass(frozen=True)
class StepFile:
    """What a plan's file says of its step."""

    step_time: float | None


@dataclass(frozen=True)
class StepPlan:
    """A plan that takes so long, or cannot be."""

    file: StepFile
    feasible: bool = True


def plan_of(batch: int) -> StepPlan:
    """Return a plan: 50 ms of exchanges, and 1 ms for each example."""
    return StepPlan(StepFile(0.05 + 0.001 * batch))


def training(first: int, critical: float = 1000.0) -> Training:
    """Return training on a million examples."""
    return Training(first, 1_000_000, CriticalBatch(2.0, critical))


@pytest.mark.parametrize("first", [1, 8, 256, 1 << 14])
def test_the_shortest_training_is_found_from_any_batch(first):
    entries = plan_batches(plan_of, training(first))
    shortest = min(entries, key=lambda entry: entry.seconds)
    # (0.05 + 0.001 B) / B (1 + B / 1000) is least at B = sqrt(50 * 1000).
    assert shortest.batch == 256 or 0.5 < shortest.batch / 224 < 2
    for entry in entries:
        steps = -(-1_000_000 // entry.batch)
        assert entry.epochs == pytest.approx(2 * (1 + entry.batch / 1000))
        seconds = plan_of(entry.batch).file.step_time * steps * entry.epochs
        assert entry.seconds == pytest.approx(seconds)
    assert [entry.batch for entry in entries] == sorted(
        entry.batch for entry in entries
    )


def test_what_cannot_be_is_left_out():
    def of_64_devices(batch: int) -> StepPlan:
        if batch < 64:
            raise InputError("a batch of fewer examples than devices")
        return (
            plan_of(batch) if batch < 512 else StepPlan(StepFile(None), feasible=False)
        )

    entries = plan_batches(of_64_devices, training(64))
    assert [entry.batch for entry in entries] == [64, 128, 256]
    with pytest.raises(InputError, match="fewer examples"):
        plan_batches(of_64_devices, training(8))


def test_a_table_of_epochs_says_nothing_beyond_its_last_row():
    table = EpochTable(((16.0, 10.0), (64.0, 11.0)))
    entries = plan_batches(plan_of, Training(32, 1000, table))
    assert max(entry.batch for entry in entries) == 64
    with pytest.raises(InfeasibleError, match="epochs"):
        plan_batches(
            plan_of, Training(1 << 20, 1000, EpochTable(((1.0, 1.0), (2.0, 1.0))))
        )


def test_tokens_converge_as_published():
    """Chinchilla: 70 billion parameters, 1.4 trillion tokens, a loss of 1.94 (table A3)."""
    preset = make_token_preset(70_000_000_000, 2048, 1.4e12)
    assert "loss of 1.94" in preset.convergence.source
    assert preset.examples == pytest.approx(1.4e12 / 2048, rel=1e-9)
    critical = preset.convergence.critical_batch * 2048
    assert critical == pytest.approx(2.1e8 / 1.94 ** (1 / 0.21), rel=0.03)
    assert make_token_preset(10**9, 1024).examples == pytest.approx(
        20e9 / 1024, rel=1e-9
    )


def test_the_command_line_shows_what_was_tried(capsys):
    arguments = [
        "plan",
        "HuggingFaceTB/SmolLM2-135M",
        "--cluster",
        "1xH100",
        "--goal",
        "epochs",
    ]
    arguments += ["--launcher", "nanotron", "--batch", "16", "--tokens", "2B", "--json"]
    assert run(arguments) == 0
    data = json.loads(capsys.readouterr().out)
    tried = data["training"]["batches"]
    shortest = min(tried, key=lambda entry: entry["seconds"])
    assert data["step_time"] == shortest["step_time"]
    assert all(entry["launcher"] == "nanotron" for entry in tried)
    assert "Kaplan" in data["training"]["epochs"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--goal", "epochs", "--cluster", "4xH100", "--fits"], "--fits"),
        (
            ["--goal", "epochs", "--cluster", "4xH100,4xA100"],
            "compared by time or cost",
        ),
        (
            ["--cluster", "4xH100", "--least-epochs", "3"],
            "--least-epochs: is for --goal epochs",
        ),
    ],
)
def test_what_is_of_one_batch_or_one_goal_is_refused(options, told, capsys):
    assert run(["plan", "gpt2", *options]) == 2
    assert told in capsys.readouterr().err
