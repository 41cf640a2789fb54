from __future__ import annotations

import csv

import optuna
import yaml
from optuna.trial import TrialState

from gnnplace.train.sweep.sweep import NO_FIGURE
from gnnplace.train.sweep.sweep_table import best_trial, write_results

KEY, OTHER = "model.init_args.hidden", "data.init_args.ops"


def study_of(figures):
    study = optuna.create_study()
    for number, figure in enumerate(figures):
        trial = study.ask()
        trial.suggest_int(KEY, number, number)
        trial.suggest_categorical(OTHER, ["[1, 2]"])
        if figure is None:
            trial.set_user_attr(NO_FIGURE, True)
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, figure)
    return study


def test_the_table_lists_trials_that_count_the_best_first(tmp_path):
    study = study_of([0.5, None, 0.25, 0.25])
    study.tell(study.ask(), state=TrialState.FAIL)
    write_results(study, tmp_path / "new")
    with open(tmp_path / "new" / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["2", "3", "0", "1"]
    assert [row[KEY] for row in rows] == ["2", "3", "0", "1"]
    assert [row["figure"] for row in rows] == ["0.250000", "0.250000", "0.500000", ""]
    assert rows[0]["state"] == "complete"
    assert not [p for p in (tmp_path / "new").iterdir() if p.suffix not in (".csv", ".yaml")]


def test_the_best_values_are_a_recipe(tmp_path):
    study = study_of([0.5, 0.25])
    write_results(study, tmp_path)
    overlay = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert overlay == {
        "model": {"init_args": {"hidden": 1}},
        "data": {"init_args": {"ops": [1, 2]}},
    }


def test_no_best_without_a_finished_trial(tmp_path):
    study = study_of([None])
    write_results(study, tmp_path)
    assert best_trial(study.trials) is None
    assert not (tmp_path / "best.yaml").exists()
