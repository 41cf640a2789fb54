from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
from pathlib import Path

import optuna
import pytest
import torch

from gnnplace.errors import InputError
from gnnplace.train.cli import main
from gnnplace.train.sweep.trial import run_trial

torch.set_num_threads(1)
TRAINERS = Path(__file__).parents[2] / "trainers"
RECIPE = f"--config={TRAINERS / 'smoke.yaml'}"
TINY = [
    "--data.ops=[12,16]",
    "--data.held_out_ops=[12,16]",
    "--data.problems=4",
    "--data.validation_problems=2",
]


class Scripted(optuna.pruners.BasePruner):
    """Prunes after the first report."""

    def prune(self, study, trial):
        return True


def test_a_pruned_trial_ends_after_its_first_validation(tmp_path):
    study = optuna.create_study(pruner=Scripted())
    trial = study.ask()
    with pytest.raises(optuna.TrialPruned):
        run_trial([RECIPE, *TINY, "--trials=1"], trial, tmp_path, "val/ratio")
    assert len(study.trials[0].intermediate_values) == 1
    with open(next(tmp_path.rglob("metrics.csv")), newline="") as file:
        assert max(int(row["epoch"]) for row in csv.DictReader(file)) == 0


def test_a_trial_reports_each_validation_and_leaves_its_policy(tmp_path):
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    trial = study.ask()
    trial.suggest_int("model.init_args.hidden", 12, 12)
    figure = run_trial([RECIPE, *TINY, "--trials=1"], trial, tmp_path, "val/ratio")
    reports = study.trials[0].intermediate_values
    assert list(reports) == [0, 1]
    assert figure == min(reports.values())
    assert '"hidden": 12' in (tmp_path / "policy" / "config.json").read_text()
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_figure_that_is_not_logged_is_named(tmp_path):
    trial = optuna.create_study().ask()
    with pytest.raises(InputError, match=r"there are .*val/ratio"):
        run_trial([RECIPE, *TINY, "--trials=1"], trial, tmp_path, "nonsense")


def test_a_trial_has_one_process(tmp_path):
    args = [RECIPE, "--trainer.devices=2", "--trials=1"]
    with pytest.raises(InputError, match=r"trainer\.devices 2"):
        run_trial(args, optuna.create_study().ask(), tmp_path, "val/ratio")


def _sweep(folder: Path) -> None:
    with open(folder / f"{os.getpid()}.out", "w") as output, contextlib.redirect_stdout(output):
        main(
            [
                *("sweep", str(TRAINERS / "smoke.yaml"), "--trials=4", f"--folder={folder}"),
                *(f"--space={folder / 'space.yaml'}", *TINY),
            ]
        )


def test_two_workers_share_a_sweep(tmp_path):
    space = "model.init_args.learning_rate: 1.0e-4..1.0e-2:log\nmodel.hidden: 8|12\n"
    (tmp_path / "space.yaml").write_text(space)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_sweep, args=(tmp_path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    lines = [line for path in tmp_path.glob("*.out") for line in path.read_text().splitlines()]
    assert sorted(line.split()[1] for line in lines if line.startswith("trial")) == list("0123")
    with open(tmp_path / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {row["model.init_args.hidden"] for row in rows} <= {"8", "12"}


def test_bad_sweeps_are_refused_before_a_study_is_made(tmp_path):
    common = ["sweep", RECIPE, f"--folder={tmp_path / 'none'}", "--set=model.hidden=8..9"]
    for more in (["--trials=0"], ["--trials=1", "--set=model.hiden=1..2"]):
        with pytest.raises(Exception, match=r"trials|hiden"):
            main([*common, *more])
    assert not (tmp_path / "none").exists()
