"""The sweep: a study of trials, each a run of one recipe with other values.

N trials are N together, over all workers and all starts: a trial counts when it finished, was
pruned, gave no finite figure, or is running. Trial numbers come from the storage one by one, so a
trial asked for by two workers at once shows by N that count below it; it is then given up before
it starts. A trial whose worker died is failed, does not count, and is queued again with the same
values.

Values come from the tree-structured Parzen estimator (Bergstra et al., 2011) seeded by the trial's
number; a trial is pruned when its best figure is worse than the median of the others' at the same
validation (Golovin et al., 2017).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import psutil
from optuna.samplers import TPESampler
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from gnnplace.train.sweep.search_space import SearchSpace, suggest
from gnnplace.train.sweep.study_storage import requeue

WORKER, NO_FIGURE = "worker", "no figure"
STARTUP, WARMUP = 5, 1  # trials and validations before anything is pruned
CLOCK = 60  # seconds that the clock may have been set by since a process started
Objective = Callable[[Trial], float]


class Surplus(Exception):
    """Another worker has taken the last trial."""


class NoFigure(Exception):
    """The validation figure of a trial is not finite."""


class NumberedSampler(TPESampler):
    """The estimator, with randomness of its own for each trial: workers never draw the same.

    Args:
        seed: of the study.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.seed = seed

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        own = int(np.random.SeedSequence([self.seed, trial.number]).generate_state(1)[0])
        super().__init__(seed=own)
        super().before_trial(study, trial)


def pruner() -> optuna.pruners.BasePruner:
    """Prunes what is worse than the median."""
    return optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP)


@dataclass(frozen=True)
class Worker:
    """One process that works on a study.

    Attributes:
        study: the study.
        trials: how many trials the study is to have, over all workers and starts.
        space: what varies.
        objective: runs a trial that has its values; less is better.
        report: takes one line after each trial.
    """

    study: optuna.Study
    trials: int
    space: SearchSpace
    objective: Objective
    report: Callable[[str], None]

    def run(self) -> None:
        """Runs trials until the study has its number.

        Raises:
            Exception: whatever ``objective`` raised; the trial is failed and not counted.
        """
        self.release_dead()
        while self._started() < self.trials:
            self.study.optimize(
                self._trial, n_trials=1, catch=(Surplus, NoFigure), callbacks=[self._finished]
            )
            self.release_dead()

    def _started(self) -> int:
        return sum(counts(t) and t.state != TrialState.WAITING for t in trials_of(self.study))

    def _trial(self, trial: Trial) -> float:
        trial.set_user_attr(WORKER, identity())
        before = [t for t in trials_of(self.study) if t.number < trial.number]
        if sum(map(counts, before)) >= self.trials:
            raise Surplus
        for key, values in self.space.items():
            suggest(trial, key, values)
        figure = self.objective(trial)
        if not np.isfinite(figure):
            trial.set_user_attr(NO_FIGURE, True)
            raise NoFigure
        return figure

    def _finished(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if counts(trial):
            self.report(describe(trial, self.trials, trials_of(study)))

    def release_dead(self) -> None:
        """Fails running trials whose process is gone, and queues their values again."""
        fail_stale_trials(self.study)
        for trial in trials_of(self.study):
            if trial.state == TrialState.RUNNING and is_dead(trial.user_attrs.get(WORKER)):
                self._release(trial)

    def _release(self, trial: FrozenTrial) -> None:
        try:
            self.study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, optuna.exceptions.OptunaError):
            return  # another worker was first
        requeue(self.study, trial)


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """All trials as the storage has them now."""
    return study.get_trials(deepcopy=False)


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of the number that was asked for."""
    return trial.state != TrialState.FAIL or NO_FIGURE in trial.user_attrs


def identity() -> dict[str, Any]:
    """Names this process among all that ever ran, on any machine."""
    started = psutil.Process().create_time()
    return {"host": socket.gethostname(), "process": os.getpid(), "started": started}


def is_dead(worker: dict[str, Any] | None) -> bool:
    """Whether ``worker`` was a process of this machine that is gone."""
    if worker is None or worker["host"] != socket.gethostname():
        return False
    try:
        started = psutil.Process(worker["process"]).create_time()
    except psutil.NoSuchProcess:
        return True
    return bool(abs(started - worker["started"]) > CLOCK)


def describe(trial: FrozenTrial, goal: int, trials: list[FrozenTrial]) -> str:
    """One line about a trial that has ended."""
    done = [t for t in trials if counts(t) and t.state.is_finished()]
    best = min((t.value for t in done if t.state == TrialState.COMPLETE), default=float("nan"))
    values = ", ".join(f"{key.rsplit('.', 1)[-1]} {_short(v)}" for key, v in trial.params.items())
    figure = "no figure" if trial.value is None else f"{trial.value:.4f}"
    state = "pruned" if trial.state == TrialState.PRUNED else "done"
    return f"trial {trial.number} {state}: {figure} ({values}); {len(done)}/{goal}, best {best:.4f}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
