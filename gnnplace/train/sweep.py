"""Sweeps over recipes by Optuna: its sampler, pruner, storage and retries, and one trial.

Trials are kept in a database by URL (SQLite in the study's folder by default; any database of
SQLAlchemy serves several machines). The same command again continues the study, and beside a
running one works on it too. Optuna's heartbeat fails the trial of a worker that died and queues its
values again, once. Several workers may end with one trial more each than was asked for.

A trial is one run of the recipe with the trial's values, in this process. After each validation the
best figure so far is reported to the study, which may prune the trial. A trial keeps its log and
its best policy in a folder of its own, and no checkpoints.

What a sweep varies: key paths of a recipe, each with a range or with choices.

``KEY=LOW..HIGH`` is a range with both ends, of whole numbers where both ends are whole and of real
ones otherwise; ``KEY=LOW..HIGH:log`` is drawn evenly in its logarithm; ``KEY=A|B|C`` are choices,
each of which may be a list (``[8, 16]``). The same in a YAML file, a line a key::

    model.init_args.learning_rate: 1.0e-4..1.0e-2:log
    model.init_args.layers: 1..4
    model.init_args.hidden: 32|64|128

Key paths are those of the recipe; ``init_args`` may be left out, as on the command line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import yaml
from jsonargparse import Namespace
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    OperationalError,
    SQLAlchemyError,
)

from gnnplace.errors import FormatError, InputError
from gnnplace.files import csv_text, read_yaml, within, write_text
from gnnplace.train.training_cli import TrainingCLI, complete, is_checkpoint

SearchSpace = dict[str, BaseDistribution]
RANGE = re.compile(r"(?P<low>\S+?)\.\.(?P<high>\S+?)(?P<log>:log)?")
HOW = "write LOW..HIGH, LOW..HIGH:log or A|B|C"


def read_space(path: str | None, assignments: list[str]) -> SearchSpace:
    """Return the search space of a file and of arguments, which win.

    Raises:
        InputError: It is malformed or empty.
    """
    space: SearchSpace = {}
    if path:
        data = read_yaml(path)
        if not isinstance(data, dict) or not data:
            raise FormatError(f"{path}: top level: must map key paths to values; {HOW}")
        with within(path):
            space |= {
                str(key): parse_values(str(key), str(x)) for key, x in data.items()
            }
    space |= parse_assignments(assignments)
    if not space:
        raise InputError(
            "sweep: nothing varies; give --space FILE or --set KEY=LOW..HIGH"
        )
    return {full_key(key): values for key, values in space.items()}


def full_key(key: str) -> str:
    """Return a key path as recipes spell it: ``model.hidden`` is ``model.init_args.hidden``."""
    return re.sub(r"^(model|data)\.(?!init_args\.|class_path$)", r"\1.init_args.", key)


def parse_assignments(assignments: list[str]) -> SearchSpace:
    """Return the search space of ``KEY=VALUES`` arguments.

    Raises:
        InputError: An argument is no ``KEY=VALUES``; the message names it.
    """
    space: SearchSpace = {}
    for assignment in assignments:
        key, equals, values = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"--set {assignment}: must be KEY=VALUES; {HOW}")
        space[key] = parse_values(key, values)
    return space


def parse_values(key: str, text: str) -> BaseDistribution:
    """Parse a range or choices.

    Raises:
        InputError: It is neither, or the range is empty; the message names ``key``.
    """
    match = RANGE.fullmatch(text)
    if match is None:
        return _choices(key, text)
    low = _number(key, match["low"])
    high = _number(key, match["high"])
    log = match["log"] is not None
    if low > high or (log and low <= 0):
        raise InputError(f"{key}: {text!r}: must rise, and from above 0 with ':log'")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _number(key: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if abs(value) < float("inf"):
            return value
    raise InputError(f"{key}: {text!r}: not a finite number; {HOW}")


def _choices(key: str, text: str) -> CategoricalDistribution:
    choices = [part.strip() for part in text.split("|")]
    if len(choices) < 2 or "" in choices:
        raise InputError(
            f"{key}: {text!r}: neither a range nor two choices or more; {HOW}"
        )
    return CategoricalDistribution(choices)


def first_values(space: SearchSpace) -> dict[str, str]:
    """Return one allowed value of each key, to check the key paths with."""
    return {
        key: str(
            values.choices[0]
            if isinstance(values, CategoricalDistribution)
            else values.low
        )
        for key, values in space.items()
    }


def suggest(trial: Trial, key: str, values: BaseDistribution) -> None:
    """Give ``trial`` a value for ``key``.

    Raises:
        InputError: The study has another kind of values for this key.
    """
    try:
        if isinstance(values, CategoricalDistribution):
            trial.suggest_categorical(key, values.choices)
        elif isinstance(values, IntDistribution):
            trial.suggest_int(key, values.low, values.high, log=values.log)
        elif isinstance(values, FloatDistribution):
            trial.suggest_float(key, values.low, values.high, log=values.log)
    except ValueError:
        raise InputError(
            f"{key}: the study has other choices; give another --study"
        ) from None


# Seconds between heartbeats, and of silence until a trial is given up.
BEAT, GRACE = (30, 120)
MAKING = 1.0  # seconds that making a database's tables takes at most
STARTUP, WARMUP = 5, 1  # trials and validations before anything is pruned
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
COLUMNS = ("trial", "state", "figure", "validations", "seconds")
SQLITE = "sqlite:///"


def add_sweep_options(parser: LightningArgumentParser) -> None:
    """Add what a sweep takes beside a recipe."""
    group = parser.add_argument_group("Sweep")
    group.add_argument(
        "--trials", type=int, required=True, help="trials of the whole study"
    )
    group.add_argument(
        "--study", default="sweep", help="name; the same name continues it"
    )
    group.add_argument(
        "--storage",
        default=None,
        help="sqlite:///PATH or a database's URL; SQLite in the folder by default",
    )
    group.add_argument("--folder", default=None, help="of results; runs/sweeps/STUDY")
    group.add_argument("--space", default=None, help="YAML file of what varies")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        help="KEY=LOW..HIGH[:log] or KEY=A|B|C, repeatable",
    )
    group.add_argument(
        "--monitor", default="val/ratio", help="validation figure; less is better"
    )
    group.add_argument("--study_seed", type=int, default=0, help="of the values drawn")


class SweepCLI(TrainingCLI):
    """The parser of a sweep's arguments: those of a run without a subcommand, and its own.

    Args:
        args: Arguments after ``gnnplace train sweep``.
    """

    def __init__(self, args: list[str]) -> None:
        super().__init__(args, run=False, save_config=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of a sweep."""
        super().add_arguments_to_parser(parser)
        add_sweep_options(parser)

    def instantiate_classes(self) -> None:
        """Make nothing: the trials do."""


class TrialCLI(TrainingCLI):
    """The maker of the objects of one trial.

    Args:
        args: Arguments of the sweep, then the trial's values.
        folder: What the trial writes goes there.
    """

    def __init__(self, args: list[str], folder: Path) -> None:
        self.folder = folder
        super().__init__(args, run=False, save_config=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of a sweep."""
        super().add_arguments_to_parser(parser)
        add_sweep_options(parser)

    def before_instantiate_classes(self) -> None:
        """Send what the recipe writes to the trial's folder.

        Raises:
            InputError: The recipe wants several processes.
        """
        quiet_trainer(self.chosen.trainer, self.folder)
        if "export" in self.chosen.model.init_args:
            self.chosen.model.init_args.export = str(self.folder / "policy")
        super().before_instantiate_classes()


def quiet_trainer(trainer: Namespace, folder: Path) -> None:
    """Make a recipe's trainer one of many, in place: a CSV log and nothing else."""
    if trainer.devices not in ("auto", 1, "1"):
        raise InputError(
            f"trainer.devices {trainer.devices}: a trial has one; start more workers"
        )
    callbacks = trainer.callbacks or []
    if not isinstance(callbacks, list):
        callbacks = [callbacks]
    trainer.callbacks = [c for c in callbacks if not is_checkpoint(c)]
    trainer.default_root_dir = str(folder)
    trainer.logger = None
    trainer.enable_checkpointing = False
    trainer.num_sanity_val_steps = 0  # the start weights are those of every trial
    trainer.enable_progress_bar = False
    trainer.enable_model_summary = False
    complete(trainer, logs=("csv",))


class Pruning(Callback):
    """A callback that reports the best figure to a trial and ends the run if it is pruned.

    Args:
        trial: The trial of the study.
        monitor: Name of the figure; less is better.
    """

    def __init__(self, trial: Trial, monitor: str) -> None:
        self.trial = trial
        self.monitor = monitor
        self.best = float("inf")
        self.validations = 0
        self.pruned = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the best figure so far and stop the training if the trial is pruned.

        Raises:
            InputError: The recipe logs no such figure.
        """
        if trainer.sanity_checking:
            return
        logged = trainer.callback_metrics
        if self.monitor not in logged:
            names = ", ".join(sorted(logged))
            raise InputError(f"--monitor {self.monitor}: not logged; there are {names}")
        self.best = min(self.best, float(logged[self.monitor]))
        self.trial.report(self.best, self.validations)
        self.validations += 1
        self.pruned = self.trial.should_prune()
        trainer.should_stop = trainer.should_stop or self.pruned


def run_trial(args: list[str], trial: Trial, folder: Path, monitor: str) -> float:
    """Train once and return the best validation figure.

    Args:
        args: Arguments of the sweep.
        trial: The trial, which has its values.
        folder: What the trial writes goes there.
        monitor: Name of the figure.

    Raises:
        optuna.TrialPruned: The study ended it early.
        GnnplaceError: The recipe or a value is wrong.
    """
    values = [f"--{key}={value}" for key, value in trial.params.items()]
    cli = TrialCLI([*args, *values], folder)
    pruning = Pruning(trial, monitor)
    cli.trainer.callbacks.append(pruning)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    if pruning.pruned:
        raise optuna.TrialPruned
    return pruning.best


def open_study(url: str, name: str, seed: int = 0) -> optuna.Study:
    """Return the study ``name`` in the database at ``url``, made or continued; less is better.

    The sampler's seed grows with the trials that are there, so that workers that start one after
    the other draw different values.

    Raises:
        InputError: The database cannot be opened; the message says why.
    """
    try:
        if url.startswith(SQLITE):
            Path(url.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        storage = _open_storage(url)
    except (ArgumentError, SQLAlchemyError, ImportError, OSError) as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"--storage {_plain(url)}: {why}; give {SQLITE}PATH or a URL"
        ) from None
    pruner = optuna.pruners.MedianPruner(
        n_startup_trials=STARTUP, n_warmup_steps=WARMUP
    )
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        pruner=pruner,
        direction="minimize",
        load_if_exists=True,
    )
    study.sampler = TPESampler(seed=seed + len(study.trials), constant_liar=True)
    return study


def _open_storage(url: str, again: bool = True) -> RDBStorage:
    """Return the database at ``url``.

    It is opened once more if another worker was making its tables just then.
    """
    try:
        return RDBStorage(
            url,
            heartbeat_interval=BEAT,
            grace_period=GRACE,
            **_retry_once(),
        )
    except (IntegrityError, OperationalError):
        if not again:
            raise
        time.sleep(MAKING)
        return _open_storage(url, again=False)


def _retry_once() -> dict[str, object]:
    """Return the option of `RDBStorage` that tries a trial of a dead worker once more.

    Optuna 4.9 renamed the option and the class, and warns of the former names.
    """
    if hasattr(optuna.storages, "RetryHeartbeatStaleTrialCallback"):
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=1)
        return {"heartbeat_stale_trial_callback": retry}
    return {
        "failed_trial_callback": optuna.storages.RetryFailedTrialCallback(max_retry=1)
    }


def _plain(url: str) -> str:
    """Return ``url`` without a password."""
    start, at, host = url.rpartition("@")
    if at:
        return f"{start.rsplit(':', 1)[0]}:***@{host}"
    return url


def sweep(
    study: optuna.Study,
    trials: int,
    space: SearchSpace,
    objective: Callable[[Trial], float],
    report: Callable[[str], None],
) -> None:
    """Run trials until the study has its number of them.

    Args:
        study: What ``open_study`` returned.
        trials: The number of trials to end with, over all workers and starts.
        space: The keys that vary, each with its values.
        objective: Runs a trial that has its values; a figure that is not finite fails the trial.
        report: Takes one line after each trial.

    Raises:
        Exception: Whatever ``objective`` raised; the trial is failed and not counted.
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
    ended = study.get_trials(states=ENDED)
    best = min(
        (t.value for t in ended if t.state == TrialState.COMPLETE), default=float("nan")
    )
    short = {
        k: f"{v:.4g}" if isinstance(v, float) else v for k, v in trial.params.items()
    }
    values = ", ".join(
        f"{key.rsplit('.', 1)[-1]} {value}" for key, value in short.items()
    )
    if trial.value is None:
        figure = "no figure"
    else:
        figure = f"{trial.value:.4f}"
    state = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned"}.get(
        trial.state, "failed"
    )
    summary = f"trial {trial.number} {state}: {figure} ({values})"
    return f"{summary}; {len(ended)}/{goal}, best {best:.4f}"


def write_results(study: optuna.Study, folder: Path) -> None:
    """Write ``trials.csv``, every trial that ended, and ``best.yaml``, a recipe's overlay."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = study.get_trials(states=ENDED)
    write_text(folder / "trials.csv", table(ended))
    if any(trial.state == TrialState.COMPLETE for trial in ended):
        write_text(folder / "best.yaml", overlay(study.best_trial))


def table(trials: list[FrozenTrial]) -> str:
    """Return the trials as CSV, the best first."""
    keys = sorted({key for trial in trials for key in trial.params})
    ranked = sorted(trials, key=lambda t: (t.value is None, t.value, t.number))
    lines = [[*_figures(t), *(t.params.get(key, "") for key in keys)] for t in ranked]
    return csv_text([[*COLUMNS, *keys], *lines])


def _figures(trial: FrozenTrial) -> list[Any]:
    if trial.duration is None:
        seconds = ""
    else:
        seconds = f"{trial.duration.total_seconds():.1f}"
    if trial.value is None:
        figure = ""
    else:
        figure = f"{trial.value:.6f}"
    validations = len(trial.intermediate_values)
    return [trial.number, trial.state.name.lower(), figure, validations, seconds]


def overlay(trial: FrozenTrial) -> str:
    """Return a trial's values as a recipe to add to another (``--config RECIPE --config X``)."""
    result: dict[str, Any] = {}
    for key, value in trial.params.items():
        *path, last = key.split(".")
        section = result
        for part in path:
            section = section.setdefault(part, {})
        section[last] = yaml.safe_load(value) if isinstance(value, str) else value
    return f"# Trial {trial.number}: {trial.value:.6f}\n{yaml.safe_dump(result, sort_keys=False)}"


def run_sweep(args: list[str]) -> None:
    """Run trials of a recipe until the study has its number of them.

    Args:
        args: Arguments after ``gnnplace train sweep``; recipes may come first and bare.

    Raises:
        InputError: An argument is wrong, or the recipe cannot run.
    """
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    first = next((i for i, arg in enumerate(args) if arg.startswith("-")), len(args))
    args = [*(f"--config={recipe}" for recipe in args[:first]), *args[first:]]
    options = SweepCLI(args).chosen
    space = read_space(options.space, options.set)
    if options.trials < 1:
        raise InputError(f"--trials {options.trials}: must be at least 1")
    # A wrong key or value shows before the study is made.
    SweepCLI(
        [*args, *(f"--{key}={value}" for key, value in first_values(space).items())]
    )
    folder = Path(options.folder or f"runs/sweeps/{options.study}")
    url = options.storage or f"{SQLITE}{folder / 'trials.db'}"
    study = open_study(url, options.study, options.study_seed)

    def objective(trial: Trial) -> float:
        return run_trial(args, trial, folder / f"trial-{trial.number}", options.monitor)

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        write_results(study, folder)

    sweep(study, options.trials, space, objective, report)
    report(
        f"every trial: {folder / 'trials.csv'}; overlay for recipes: {folder / 'best.yaml'}"
    )
