from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnnplace.train.cli import main

ROOT = Path(__file__).parents[2]
RECIPE = """
trainer:
  max_epochs: 2
  enable_model_summary: false
  callbacks:
    - class_path: tests.train.recorder.Recorder
      init_args: {{folder: {folder}}}
model: {{init_args: {{hidden: 8, decoder_hidden: 8}}}}
data: {{init_args: {{ops: [12, 24], held_out_ops: [12, 24], problems: 8, validation_problems: 5,
  batch_size: 2}}}}
"""
TORCHRUN = ("torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m")


def arguments(folder: Path, command: str, *more: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    recipes = (ROOT / "trainers" / "smoke.yaml", folder / "recipe.yaml")
    given = [f"--config={recipe}" for recipe in recipes]
    return [command, *given, f"--trainer.default_root_dir={folder}", *more]


def run(folder: Path, *more: str, launcher: tuple[str, ...] = ()) -> None:
    """Learns in processes of their own."""
    given = arguments(folder, "fit", *more)
    with open(folder / "output", "w+") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", *launcher, "gnnplace", "train", *given],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = started.wait(timeout=120)
        finally:
            # A process that hangs would leave those that it started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read()
    assert code == 0, text[-2000:]


def records(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]


def ratio(folder: Path) -> float:
    with open(max(folder.rglob("metrics.csv")), newline="") as file:
        return [
            float(row["val/ratio"]) for row in csv.DictReader(file) if row["val/ratio"]
        ][-1]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp") / "run"
    run(folder, "--trainer.devices=2", "--trainer.strategy=ddp")
    return folder


def test_two_processes_learn_from_different_problems_and_end_with_the_same_policy(
    launched,
):
    first, second = records(launched)
    assert first["digest"] == second["digest"]
    assert first["seen"] == [[0, 2], [4, 6], [8, 10], [12, 14]]
    assert second["seen"] == [[1, 3], [5, 7], [9, 11], [13, 15]]
    # The start weights are validated, then those after each of two epochs.
    assert (first["validated"], second["validated"]) == ([0, 2, 4] * 3, [1, 3] * 3)


def test_the_validation_figure_is_that_of_one_process(launched, tmp_path):
    main(
        arguments(
            tmp_path,
            "validate",
            f"--ckpt_path={launched / 'checkpoints' / 'last.ckpt'}",
        )
    )
    assert ratio(tmp_path) == pytest.approx(ratio(launched), rel=1e-6)


@pytest.mark.campaign
def test_torchrun_runs_the_same_recipe_to_the_same_end(launched, tmp_path):
    run(tmp_path, launcher=TORCHRUN)
    assert [r["digest"] for r in records(tmp_path)] == [
        r["digest"] for r in records(launched)
    ]
    assert ratio(tmp_path) == ratio(launched)


def test_the_progress_bar_shows_the_quality_figure(launched):
    assert records(launched)[0]["bar"]["val/ratio"] == pytest.approx(
        ratio(launched), abs=1e-3
    )


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("Evolution", ["--model.population=4"]), ("Reinforce", ["--model.hidden=8"])],
)
def test_every_algorithm_keeps_its_processes_together(tmp_path, model, sizes):
    more = [f"--model={model}", *sizes]
    more += [
        "--trainer.devices=2",
        "--trainer.strategy=ddp_fork",
        "--trainer.max_epochs=1",
    ]
    given = arguments(tmp_path, "fit", *more)
    # In a process of its own: it has to be free of threads, and may hang.
    process = multiprocessing.get_context("fork").Process(target=main, args=(given,))
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0
    first, second = records(tmp_path)
    assert first["digest"] == second["digest"]
    assert first["seen"] != second["seen"]
