from __future__ import annotations

import json
import multiprocessing
import signal
from pathlib import Path

import pytest
import torch

from gnnplace.train.cli import main

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
RECIPE = """
trainer:
  max_epochs: 3
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: {folder}
  callbacks:
    - class_path: tests.train.recorder.Recorder
      init_args: {{folder: {folder}, kill_after: {kill}, kill_with: {signal}}}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{filename: whole-epochs, enable_version_counter: false}}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{train_time_interval: "0:00:00.000001", filename: last-timed,
        enable_version_counter: false}}
model: {{init_args: {{hidden: 8, decoder_hidden: 8}}}}
data: {{init_args: {{ops: [12, 24], held_out_ops: [12, 24], problems: 7, validation_problems: 2,
  batch_size: 2}}}}
"""
STEPS = [[0, 1], [2, 3], [4, 5], [6], [7, 8], [9, 10], [11, 12], [13]]
STEPS += [[14, 15], [16, 17], [18, 19], [20]]


def arguments(folder: Path, *more: str, kill: int = 0, signal: int = 9) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(
        RECIPE.format(folder=folder, kill=kill, signal=signal)
    )
    smoke = ROOT / "trainers" / "smoke.yaml"
    return ["fit", f"--config={smoke}", f"--config={folder / 'recipe.yaml'}", *more]


def exit_code(given: list[str]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=main, args=(given,))
    process.start()
    process.join(120)
    return process.exitcode


def end(folder: Path) -> dict:
    return json.loads((folder / "0.json").read_text())


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that SIGKILL ended after 6 of 12 steps, in the middle of the second of 3 epochs."""
    folder = tmp_path_factory.mktemp("resume") / "killed"
    assert exit_code(arguments(folder, kill=6)) == -signal.SIGKILL
    return folder / "checkpoints"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "whole"
    main(arguments(folder))
    assert end(folder)["seen"] == STEPS
    return end(folder)


def test_a_killed_run_goes_on_from_a_whole_epoch_to_the_same_bits(
    killed, whole, tmp_path
):
    main(arguments(tmp_path, f"--ckpt_path={killed / 'whole-epochs.ckpt'}"))
    assert end(tmp_path)["seen"] == STEPS[4:]
    assert end(tmp_path)["digest"] == whole["digest"]


def test_the_last_checkpoint_is_found_by_itself_in_the_middle_of_an_epoch(
    killed, whole
):
    main(arguments(killed.parent, "--ckpt_path=last"))
    assert end(killed.parent)["seen"] == STEPS[6:]
    assert end(killed.parent)["digest"] == whole["digest"]


def test_a_run_that_was_asked_to_end_does_not_say_that_it_is_done(tmp_path):
    assert exit_code(arguments(tmp_path, kill=2, signal=signal.SIGTERM)) == 143
    assert not (tmp_path / "0.json").exists()
