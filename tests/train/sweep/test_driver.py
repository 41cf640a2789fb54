"""The driver: numbers of trials over starts and workers, retries after a kill, files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import optuna
import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from gnnplace.errors import InputError
from gnnplace.train.sweep import driver
from gnnplace.train.sweep.driver import ENDED, open_study, overlay, sweep, table, write_results

optuna.logging.set_verbosity(optuna.logging.CRITICAL)
SPACE = {"model.init_args.x": FloatDistribution(-1.0, 1.0)}
KEY = "model.init_args.x"
FORK = multiprocessing.get_context("fork")


def square(trial):
    return trial.params[KEY] ** 2


def run(study, trials, objective=square, lines=None):
    sweep(study, trials, SPACE, objective, (lambda line: None) if lines is None else lines.append)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/folder/trials.db"


def test_a_study_gets_its_number_of_trials_over_several_starts_and_a_line_each(url):
    lines = []
    for goal in (3, 3, 5):
        run(open_study(url, "s"), goal, lines=lines)
    study = open_study(url, "s")
    assert len(study.trials) == len(lines) == 5
    assert lines[-1].startswith("trial 4 done")
    assert "5/5" in lines[-1]
    assert f"best {study.best_value:.4f}" in lines[-1]


def test_values_depend_on_the_seed_and_starts_differ(url):
    run(open_study(url, "a", seed=3), 4)
    run(open_study(url, "b", seed=3), 4)
    run(open_study(url, "c", seed=4), 4)
    drawn = [[t.params[KEY] for t in open_study(url, name).trials] for name in "abc"]
    assert drawn[0] == drawn[1] != drawn[2]
    run(open_study(url, "a", seed=3), 8)
    assert len({t.params[KEY] for t in open_study(url, "a").trials}) == 8


def test_an_error_ends_the_sweep_and_its_trial_does_not_count(url):
    def fail(trial):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        run(open_study(url, "s"), 2, fail)
    run(open_study(url, "s"), 2)
    assert len(open_study(url, "s").get_trials(states=ENDED)) == 2


def test_a_figure_that_is_not_finite_fails_its_trial_and_the_sweep_goes_on(url):
    study = open_study(url, "s")
    run(study, 2, lambda trial: float("nan") if trial.number == 0 else 1.0)
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]


def _work(url, trials):
    def slow(trial):
        time.sleep(0.05)
        return square(trial)

    run(open_study(url, "s"), trials, slow)


def test_workers_share_a_study(url):
    open_study(url, "s")
    processes = [FORK.Process(target=_work, args=(url, 8)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert 8 <= len(open_study(url, "s").get_trials(states=ENDED)) <= 9


def _hang(url, begun):
    def hang(trial):
        begun.set()
        time.sleep(600)
        return 0.0

    run(open_study(url, "s"), 1, hang)


def test_the_trial_of_a_killed_worker_is_failed_and_its_values_run_again(url, monkeypatch):
    monkeypatch.setattr(driver, "BEAT", 1)
    monkeypatch.setattr(driver, "GRACE", 2)
    begun = FORK.Event()
    process = FORK.Process(target=_hang, args=(url, begun))
    process.start()
    assert begun.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    study = open_study(url, "s")
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    time.sleep(3.5)
    run(study, 1)
    first, again = study.trials
    assert (first.state, again.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert again.params == first.params


def test_files_of_a_study(url, tmp_path):
    study = open_study(url, "s")
    run(study, 3)
    write_results(study, tmp_path / "out")
    lines = (tmp_path / "out" / "trials.csv").read_text().splitlines()
    assert lines[0] == f"trial,state,figure,validations,seconds,{KEY}"
    assert [float(line.split(",")[2]) for line in lines[1:]] == sorted(
        float(f"{trial.value:.6f}") for trial in study.trials
    )
    best = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    assert best == {"model": {"init_args": {"x": study.best_params[KEY]}}}
    assert table([]).startswith("trial,state")


def test_an_overlay_reads_lists_back():
    trial = optuna.trial.create_trial(
        params={"data.init_args.ops": "[8, 16]"},
        distributions={
            "data.init_args.ops": optuna.distributions.CategoricalDistribution(
                ["[8, 16]", "[1, 2]"]
            )
        },
        value=1.0,
    )
    assert yaml.safe_load(overlay(trial)) == {"data": {"init_args": {"ops": [8, 16]}}}


@pytest.mark.parametrize("given", ["nonsense", "mysql+nodriver://a:secret@host/db", "/proc/x"])
def test_a_storage_that_cannot_be_opened_is_one_line_without_the_password(given):
    with pytest.raises(InputError, match="--storage") as refused:
        open_study(given, "s")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
