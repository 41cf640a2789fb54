from __future__ import annotations

import multiprocessing
import os
import signal
import time

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from gnnplace.train.sweep import study_storage
from gnnplace.train.sweep.study_storage import RETRY_OF, open_study
from gnnplace.train.sweep.sweep import NumberedSampler, Worker, counts, identity, is_dead, pruner

optuna.logging.set_verbosity(optuna.logging.CRITICAL)
SPACE = {"x": FloatDistribution(-1.0, 1.0)}
FORK = multiprocessing.get_context("fork")


def square(trial):
    return trial.params["x"] ** 2


def worker(study, trials, objective=square, lines=None):
    report = (lambda line: None) if lines is None else lines.append
    return Worker(study, trials, SPACE, objective, report)


def study_at(url):
    return open_study(url, "s", NumberedSampler(0), pruner())


def study_in_memory(seed=0):
    return optuna.create_study(sampler=NumberedSampler(seed), pruner=pruner())


def counted(study):
    return [trial for trial in study.trials if counts(trial)]


def test_a_study_gets_its_number_of_trials_over_several_starts_and_a_line_each():
    study, lines = study_in_memory(), []
    worker(study, 3, lines=lines).run()
    assert len(lines) == 3
    worker(study, 3, lines=lines).run()
    assert len(lines) == 3
    worker(study, 5, lines=lines).run()
    assert len(counted(study)) == len(study.trials) == 5
    assert lines[-1].startswith("trial 4 done")
    assert "5/5" in lines[-1]
    assert f"best {study.best_value:.4f}" in lines[-1]


def test_values_depend_on_the_seed_and_the_number_alone():
    drawn = []
    for starts in ([6], [2, 6]):
        study = study_in_memory(seed=3)
        for count in starts:
            study.sampler = NumberedSampler(3)
            worker(study, count).run()
        drawn.append([trial.params["x"] for trial in study.trials])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 6
    other = study_in_memory(seed=4)
    worker(other, 1).run()
    assert other.trials[0].params["x"] != drawn[0][0]


def test_the_estimator_finds_better_values_than_its_first_random_ones():
    study = study_in_memory()
    worker(study, 40).run()
    late = sorted(square(trial) for trial in study.trials[20:])
    assert late[10] < 0.05


def test_a_trial_without_a_finite_figure_counts_and_the_sweep_goes_on():
    study = study_in_memory()
    worker(study, 3, lambda trial: float("nan") if trial.number == 1 else 1.0).run()
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert len(counted(study)) == 3


def test_an_error_ends_the_sweep_and_its_trial_does_not_count():
    study = study_in_memory()

    def fail(trial):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        worker(study, 2, fail).run()
    assert counted(study) == []
    worker(study, 2).run()
    assert len(counted(study)) == 2


def _slow(trial):
    time.sleep(0.05)
    return square(trial)


def _work(url, trials):
    worker(study_at(url), trials, _slow).run()


@pytest.mark.parametrize("kind", ["journal:///{}/j", "sqlite:///{}/s.db"])
def test_workers_finish_the_number_of_trials_together_and_no_more(tmp_path, kind):
    url = kind.format(tmp_path)
    processes = [FORK.Process(target=_work, args=(url, 9)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    done = [t for t in study_at(url).trials if t.state == TrialState.COMPLETE]
    assert len(done) == 9
    assert len({trial.user_attrs["worker"]["process"] for trial in done}) > 1
    assert len({trial.params["x"] for trial in done}) == 9


def _hang(url, trials, begun):
    def hang(trial):
        begun.set()
        time.sleep(600)
        return 0.0

    worker(study_at(url), trials, hang).run()


@pytest.mark.parametrize("kind", ["journal:///{}/j", "sqlite:///{}/s.db"])
def test_the_trial_of_a_killed_worker_is_failed_and_run_again_with_its_values(tmp_path, kind):
    url, begun = kind.format(tmp_path), FORK.Event()
    process = FORK.Process(target=_hang, args=(url, 2, begun))
    process.start()
    assert begun.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    study = study_at(url)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    worker(study, 2).run()
    first, again, other = study.trials
    assert first.state == TrialState.FAIL
    assert again.params == first.params
    assert again.user_attrs[RETRY_OF] == 0
    assert {again.state, other.state} == {TrialState.COMPLETE}


def test_a_trial_beyond_the_number_is_given_up_before_it_starts():
    study = study_in_memory()
    worker(study, 2).run()
    late = worker(study, 2)
    ran = []
    study.optimize(late._trial, n_trials=1, catch=(Exception,))
    assert study.trials[2].params == {}
    assert not counts(study.trials[2])
    assert ran == []


def test_who_is_dead():
    assert not is_dead(identity())
    assert not is_dead(None)
    assert is_dead({**identity(), "started": 0.0})
    assert not is_dead({**identity(), "host": "elsewhere", "started": 0.0})
    process = FORK.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    assert is_dead({**identity(), "process": process.pid})


def test_the_trial_of_a_worker_that_died_elsewhere_is_released_by_its_silence(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(study_storage, "BEAT", 1)
    monkeypatch.setattr(study_storage, "GRACE", 2)
    url, begun = f"sqlite:///{tmp_path}/s.db", FORK.Event()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
        process = FORK.Process(target=_hang, args=(url, 1, begun))
        process.start()
    assert begun.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    study = study_at(url)
    worker(study, 1).run()
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    time.sleep(3.5)
    worker(study, 1).run()
    first, again = study.trials
    assert (first.state, again.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert again.params == first.params
