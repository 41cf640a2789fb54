from __future__ import annotations

import multiprocessing

import optuna
import pytest
from optuna.trial import TrialState

from gnnplace.errors import InputError
from gnnplace.train.sweep.study_storage import RETRY_OF, open_storage, open_study, requeue

SAMPLER, PRUNER = optuna.samplers.RandomSampler(), optuna.pruners.NopPruner()


def urls(folder):
    return [f"journal:///{folder}/deep/trials.journal", f"sqlite:///{folder}/deep/trials.db"]


@pytest.mark.parametrize("kind", [0, 1])
def test_a_study_is_continued_by_its_name(tmp_path, kind):
    url = urls(tmp_path)[kind]
    for count in range(2):
        study = open_study(url, "one", SAMPLER, PRUNER)
        assert len(study.trials) == count
        study.tell(study.ask(), 1.0)
    assert open_study(url, "two", SAMPLER, PRUNER).trials == []


def _open(url, results):
    study = open_study(url, "race", SAMPLER, PRUNER)
    study.tell(study.ask(), 0.0)
    results.put(study.study_name)


@pytest.mark.parametrize("kind", [0, 1])
def test_workers_may_make_one_storage_at_the_same_instant(tmp_path, kind):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    url = urls(tmp_path)[kind]
    workers = [context.Process(target=_open, args=(url, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    study = open_study(url, "race", SAMPLER, PRUNER)
    assert sorted(trial.number for trial in study.trials) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "url",
    ["nowhere", "foo://x", "postgresql://u:secret@127.0.0.1:1/x", "sqlite:////proc/none/x.db"],
)
def test_a_storage_that_cannot_be_opened_is_one_line_without_the_password(url):
    with pytest.raises(InputError, match="--storage") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("some notes\n")
    with pytest.raises(InputError, match="not a journal"):
        open_storage(f"journal:///{path}")
    assert path.read_text() == "some notes\n"


def test_values_are_queued_again_once():
    study = optuna.create_study()
    first = study.ask()
    first.suggest_int("a", 0, 1000)
    study.tell(first, state=TrialState.FAIL)
    requeue(study, study.trials[0])
    again = study.ask()
    assert again.suggest_int("a", 0, 1000) == first.params["a"]
    study.tell(again, state=TrialState.FAIL)
    assert study.trials[1].user_attrs[RETRY_OF] == 0
    requeue(study, study.trials[1])
    assert len(study.trials) == 2
