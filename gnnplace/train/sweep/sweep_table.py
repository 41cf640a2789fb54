"""What a sweep leaves: ``trials.csv``, every trial, and ``best.yaml``, the best one's values.

``best.yaml`` goes beside the recipe: ``gnnplace train fit --config RECIPE --config best.yaml``.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from gnnplace.files import write_text
from gnnplace.train.sweep.sweep import counts, trials_of

COLUMNS = ("trial", "state", "figure", "validations", "seconds")


def write_results(study: optuna.Study, folder: Path) -> None:
    """Writes both files anew, each at once; other workers may do the same at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    before: str | None = None
    while (text := table(trials_of(study))) != before:
        # Again until nothing came in between, lest an older table replace a newer one.
        write_text(folder / "trials.csv", text)
        before = text
    best = best_trial(trials_of(study))
    if best is not None:
        write_text(folder / "best.yaml", overlay(best))


def best_trial(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The finished trial with the least figure, the earlier one of equals; None without any."""
    done = [t for t in trials if t.state == TrialState.COMPLETE]
    return min(done, key=lambda t: (t.value, t.number), default=None)


def table(trials: list[FrozenTrial]) -> str:
    """Trials that count as CSV, the best first."""
    shown = [t for t in trials if counts(t)]
    shown.sort(key=lambda t: (t.value is None, t.value, t.number))
    keys = sorted({key for t in shown for key in t.params})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *keys])
    writer.writerows([*_figures(t), *(t.params.get(key, "") for key in keys)] for t in shown)
    return file.getvalue()


def _figures(trial: FrozenTrial) -> list[Any]:
    seconds = "" if trial.duration is None else f"{trial.duration.total_seconds():.1f}"
    figure = "" if trial.value is None else f"{trial.value:.6f}"
    validations = len(trial.intermediate_values)
    return [trial.number, trial.state.name.lower(), figure, validations, seconds]


def overlay(trial: FrozenTrial) -> str:
    """A trial's values as a recipe that goes on top of another."""
    result: dict[str, Any] = {}
    for key, value in trial.params.items():
        *path, last = key.split(".")
        section = result
        for part in path:
            section = section.setdefault(part, {})
        section[last] = yaml.safe_load(value) if isinstance(value, str) else value
    return f"# Trial {trial.number}: {trial.value:.6f}\n{yaml.safe_dump(result, sort_keys=False)}"
