"""The driver of a sweep: Optuna's sampler, pruner, storage and retries around ``run_trial``.

Trials are kept in a database by URL (SQLite in the study's folder by default; any database of
SQLAlchemy serves several machines). The same command again continues the study, and beside a
running one works on it too. Optuna's heartbeat fails the trial of a worker that died and queues its
values again, once. Several workers may end with one trial more each than was asked for.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, SQLAlchemyError

from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.train.sweep.space import SearchSpace, suggest

BEAT, GRACE = 30, 120  # seconds between heartbeats, and of silence until a trial is given up
MAKING = 1.0  # seconds that making a database's tables takes at most
STARTUP, WARMUP = 5, 1  # trials and validations before anything is pruned
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
COLUMNS = ("trial", "state", "figure", "validations", "seconds")
SQLITE = "sqlite:///"


def open_study(url: str, name: str, seed: int = 0) -> optuna.Study:
    """The study ``name`` in the database at ``url``, made or continued; less is better.

    The sampler's seed grows with the trials that are there, so that workers that start one after
    the other draw different values.

    Raises:
        InputError: the database cannot be opened; says why.
    """
    try:
        if url.startswith(SQLITE):
            Path(url.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        storage = _open_storage(url)
    except (ArgumentError, SQLAlchemyError, ImportError, OSError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"--storage {_plain(url)}: {why}; give {SQLITE}PATH or a URL") from None
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP)
    study = optuna.create_study(
        storage=storage, study_name=name, pruner=pruner, direction="minimize", load_if_exists=True
    )
    study.sampler = TPESampler(seed=seed + len(study.trials), constant_liar=True)
    return study


def _open_storage(url: str, again: bool = True) -> RDBStorage:
    """The database at ``url``; once more if another worker was making its tables just then."""
    try:
        return RDBStorage(
            url,
            heartbeat_interval=BEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=1),
        )
    except (IntegrityError, OperationalError):
        if not again:
            raise
        time.sleep(MAKING)
        return _open_storage(url, again=False)


def _plain(url: str) -> str:
    """``url`` without a password."""
    start, at, host = url.rpartition("@")
    return f"{start.rsplit(':', 1)[0]}:***@{host}" if at else url


def sweep(
    study: optuna.Study,
    trials: int,
    space: SearchSpace,
    objective: Callable[[Trial], float],
    report: Callable[[str], None],
) -> None:
    """Runs trials until the study has its number of them.

    Args:
        study: what ``open_study`` returned.
        trials: that have ended, over all workers and starts.
        space: what varies.
        objective: runs a trial that has its values; a figure that is not finite fails the trial.
        report: takes one line after each trial.

    Raises:
        Exception: whatever ``objective`` raised; the trial is failed and not counted.
    """

    def run(trial: Trial) -> float:
        for key, values in space.items():
            suggest(trial, key, values)
        return objective(trial)

    def told(study: optuna.Study, trial: FrozenTrial) -> None:
        report(_line(study, trial, trials))

    if len(study.get_trials(states=ENDED)) < trials:
        study.optimize(run, callbacks=[told, MaxTrialsCallback(trials, states=ENDED)])


def _line(study: optuna.Study, trial: FrozenTrial, goal: int) -> str:
    done = study.get_trials(states=ENDED)
    best = min((t.value for t in done if t.state == TrialState.COMPLETE), default=float("nan"))
    values = ", ".join(f"{key.rsplit('.', 1)[-1]} {_short(v)}" for key, v in trial.params.items())
    figure = "no figure" if trial.value is None else f"{trial.value:.4f}"
    state = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")
    told = f"trial {trial.number} {state}: {figure} ({values})"
    return f"{told}; {len(done)}/{goal}, best {best:.4f}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_results(study: optuna.Study, folder: Path) -> None:
    """Writes ``trials.csv``, every trial that ended, and ``best.yaml``, a recipe's overlay."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = study.get_trials(states=ENDED)
    write_text(folder / "trials.csv", table(ended))
    if any(trial.state == TrialState.COMPLETE for trial in ended):
        write_text(folder / "best.yaml", overlay(study.best_trial))


def table(trials: list[FrozenTrial]) -> str:
    """Trials as CSV, the best first."""
    keys = sorted({key for trial in trials for key in trial.params})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *keys])
    for trial in sorted(trials, key=lambda t: (t.value is None, t.value, t.number)):
        writer.writerow([*_figures(trial), *(trial.params.get(key, "") for key in keys)])
    return file.getvalue()


def _figures(trial: FrozenTrial) -> list[Any]:
    seconds = "" if trial.duration is None else f"{trial.duration.total_seconds():.1f}"
    figure = "" if trial.value is None else f"{trial.value:.6f}"
    validations = len(trial.intermediate_values)
    return [trial.number, trial.state.name.lower(), figure, validations, seconds]


def overlay(trial: FrozenTrial) -> str:
    """A trial's values as a recipe that goes on top of another (``--config RECIPE --config X``)."""
    result: dict[str, Any] = {}
    for key, value in trial.params.items():
        *path, last = key.split(".")
        section = result
        for part in path:
            section = section.setdefault(part, {})
        section[last] = yaml.safe_load(value) if isinstance(value, str) else value
    return f"# Trial {trial.number}: {trial.value:.6f}\n{yaml.safe_dump(result, sort_keys=False)}"
