"""``gnnplace train fit|validate|test|predict|sweep``."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import optuna
from lightning.pytorch.utilities.exceptions import SIGTERMException
from optuna.exceptions import ExperimentalWarning
from optuna.trial import Trial

from gnnplace.errors import InputError
from gnnplace.imports import importable
from gnnplace.train.sweep import (
    SQLITE,
    SweepCLI,
    first_values,
    open_study,
    read_space,
    run_trial,
    sweep,
    write_results,
)
from gnnplace.train.training_cli import TrainingCLI


def quiet() -> None:
    """Silences warnings that say nothing about a training run here."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for message in ("does not have many workers", "LeafSpec", "LightningCLI's args parameter"):
        warnings.filterwarnings("ignore", f".*{message}.*")
    warnings.filterwarnings("ignore", category=ExperimentalWarning)


def start_no_python() -> None:
    """Tells typeshed_client, which jsonargparse reads stubs by, where this Python's modules are.

    It would start another Python to ask, which prints a traceback if this one is killed meanwhile.
    """
    with suppress(ImportError):
        import typeshed_client

        found = typeshed_client.get_search_context
        paths = [Path(path) for path in sys.path if path]
        typeshed_client.get_search_context = partial(found, search_path=paths)


PLACES = ("recipes", "../../trainers")  # of the recipes: in a wheel, in a checkout


def _recipe(arg: str) -> str:
    option, equals, path = arg.rpartition("=")
    if not (path.startswith("trainers/") and path.endswith(".yaml")) or Path(path).exists():
        return arg
    own = [Path(__file__).parent / place / path.removeprefix("trainers/") for place in PLACES]
    found = next((one.resolve() for one in own if one.exists()), path)
    return f"{option}{equals}{found}"


COMMANDS = ("fit", "validate", "test", "predict", "sweep")


def run_sweep(args: list[str]) -> None:
    """Runs trials of a recipe until the study has its number of them.

    Args:
        args: arguments after ``gnnplace train sweep``; recipes may come first and bare.

    Raises:
        InputError: bad arguments, or a recipe that cannot run.
    """
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
    SweepCLI([*args, *(f"--{key}={value}" for key, value in first_values(space).items())])
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
    report(f"every trial: {folder / 'trials.csv'}; overlay for recipes: {folder / 'best.yaml'}")


def main(args: list[str]) -> None:
    """Runs the training command line.

    ``--model`` is the training algorithm (a class of ``gnnplace.train``), ``--data`` the problems
    (``ProblemDataModule``); ``--config`` a recipe of ``trainers/``.

    Args:
        args: arguments after ``gnnplace train``.

    Raises:
        InputError: bad arguments.
        SystemExit: with 143 where the run was asked to end by SIGTERM; Lightning's own says 0.
    """
    if not args or not (args[0] in COMMANDS or args[0].startswith("-")):
        given = f"train {args[0]}: unknown" if args else "train: what?"
        raise InputError(f"{given}; give one of {', '.join(COMMANDS)}, or --help")
    quiet()
    start_no_python()
    before, args = sys.argv[1:], [_recipe(arg) for arg in args]
    # Lightning starts further processes with these.
    sys.argv[1:] = ["train", *args]
    try:
        with importable(""):  # classes beside the recipe
            if args[:1] == ["sweep"]:
                run_sweep(args[1:])
            else:
                TrainingCLI(args)
    except SIGTERMException:
        sys.exit(128 + signal.SIGTERM)
    finally:
        sys.argv[1:] = before
