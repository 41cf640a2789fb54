"""The driver: numbers of trials over starts and workers, retries after a kill, files."""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import signal
import time
from pathlib import Path

import optuna
import pytest
import torch
import yaml
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from gnnplace.errors import FormatError, InputError
from gnnplace.train import sweep as sweeps
from gnnplace.train.cli import main
from gnnplace.train.sweep import (
    ENDED,
    first_values,
    full_key,
    open_study,
    overlay,
    parse_values,
    read_space,
    run_trial,
    suggest,
    sweep,
    table,
    write_results,
)

optuna.logging.set_verbosity(optuna.logging.CRITICAL)
SPACE = {"model.init_args.x": FloatDistribution(-1.0, 1.0)}
KEY = "model.init_args.x"
FORK = multiprocessing.get_context("fork")
torch.set_num_threads(1)
TRAINERS = Path(__file__).parents[2] / "trainers"
RECIPE = f"--config={TRAINERS / 'smoke.yaml'}"
TINY = [
    "--data.ops=[12,16]",
    "--data.held_out_ops=[12,16]",
    "--data.problems=4",
    "--data.validation_problems=2",
    "--trainer.max_epochs=2",
]


def square(trial):
    return trial.params[KEY] ** 2


def run(study, trials, objective=square, lines=None):
    sweep(
        study,
        trials,
        SPACE,
        objective,
        (lambda line: None) if lines is None else lines.append,
    )


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


def test_the_trial_of_a_killed_worker_is_failed_and_its_values_run_again(
    url, monkeypatch
):
    monkeypatch.setattr(sweeps, "BEAT", 1)
    monkeypatch.setattr(sweeps, "GRACE", 2)
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


@pytest.mark.parametrize(
    "given", ["nonsense", "mysql+nodriver://a:secret@host/db", "/proc/x"]
)
def test_a_storage_that_cannot_be_opened_is_one_line_without_the_password(given):
    with pytest.raises(InputError, match="--storage") as refused:
        open_study(given, "s")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


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
    with (
        open(folder / f"{os.getpid()}.out", "w") as output,
        contextlib.redirect_stdout(output),
    ):
        main(
            [
                *(
                    "sweep",
                    str(TRAINERS / "smoke.yaml"),
                    "--trials=4",
                    f"--folder={folder}",
                ),
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
    lines = [
        line
        for path in tmp_path.glob("*.out")
        for line in path.read_text().splitlines()
    ]
    assert {line.split()[1] for line in lines if line.startswith("trial")} >= set(
        "0123"
    )
    with open(tmp_path / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert 4 <= len(rows) <= 5  # a worker may have begun one more
    assert {row["model.init_args.hidden"] for row in rows} <= {"8", "12"}


def test_bad_sweeps_are_refused_before_a_study_is_made(tmp_path):
    common = [
        "sweep",
        RECIPE,
        f"--folder={tmp_path / 'none'}",
        "--set=model.hidden=8..9",
    ]
    for more in (["--trials=0"], ["--trials=1", "--set=model.hiden=1..2"]):
        with pytest.raises(Exception, match=r"trials|hiden"):
            main([*common, *more])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..4", IntDistribution(1, 4)),
        ("8..64:log", IntDistribution(8, 64, log=True)),
        ("0..0.5", FloatDistribution(0.0, 0.5)),
        ("1.0e-4..1e-2:log", FloatDistribution(1e-4, 1e-2, log=True)),
        ("-3..-1", IntDistribution(-3, -1)),
        ("a|b c", CategoricalDistribution(["a", "b c"])),
        ("[1, 2]|[3]", CategoricalDistribution(["[1, 2]", "[3]"])),
    ],
)
def test_values_are_read_as_they_are_meant(text, expected):
    assert parse_values("key", text) == expected


@pytest.mark.parametrize(
    "text", ["", "3", "4..1", "0..1:log", "a..b", "1..inf", "a||b", "1..2:lin"]
)
def test_values_that_are_none_are_refused_by_key(text):
    with pytest.raises(InputError, match=r"some\.key"):
        parse_values("some.key", text)


def test_arguments_win_over_the_file_and_short_keys_are_spelled_out(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("model.init_args.hidden: 8|16\ndata.seed: 0..3\n")
    space = read_space(str(path), ["model.hidden=32|64"])
    assert first_values(space) == {
        "model.init_args.hidden": "32",
        "data.init_args.seed": "0",
    }
    assert full_key("trainer.max_epochs") == "trainer.max_epochs"
    assert full_key("model.class_path") == "model.class_path"


@pytest.mark.parametrize("text", ["", "- a\n", "a: 3\n", "a: [1\n"])
def test_a_file_that_is_no_space_is_named(tmp_path, text):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"space\.yaml"):
        read_space(str(path), [])


def test_nothing_to_vary_is_an_error():
    with pytest.raises(InputError, match="--set"):
        read_space(None, [])
    with pytest.raises(InputError, match="KEY=VALUES"):
        read_space(None, ["model.hidden"])


def test_other_choices_than_the_study_has_are_refused():
    study = optuna.create_study()
    suggest(study.ask(), "a", parse_values("a", "x|y"))
    with pytest.raises(InputError, match="--study"):
        suggest(study.ask(), "a", parse_values("a", "x|z"))


def test_the_spaces_that_come_along_are_read():
    spaces = sorted((Path(__file__).parents[2] / "trainers" / "sweeps").glob("*.yaml"))
    assert spaces
    for path in spaces:
        assert len(read_space(str(path), [])) > 2


def test_optuna_before_4_9_has_other_names(monkeypatch):
    monkeypatch.delattr(optuna.storages, "RetryHeartbeatStaleTrialCallback")
    assert list(sweeps._retry_once()) == ["failed_trial_callback"]
