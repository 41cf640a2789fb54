"""One trial of a sweep: one run of the recipe with the trial's values, in this process.

After each validation the best figure so far is reported to the study, which may prune the trial.
A trial keeps its log and its best policy in a folder of its own, and no checkpoints.
"""

from __future__ import annotations

from pathlib import Path

import optuna
from jsonargparse import Namespace
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser
from optuna.trial import Trial

from gnnplace.errors import InputError
from gnnplace.train import run_folder
from gnnplace.train.training_cli import TrainingCLI


def add_sweep_options(parser: LightningArgumentParser) -> None:
    """Adds what a sweep takes beside a recipe."""
    group = parser.add_argument_group("Sweep")
    group.add_argument("--trials", type=int, required=True, help="trials of the whole study")
    group.add_argument("--study", default="sweep", help="name; the same name continues it")
    group.add_argument(
        "--storage",
        default=None,
        help="journal:///PATH, sqlite:///PATH, postgresql://...; a journal in the folder",
    )
    group.add_argument("--folder", default=None, help="of results; runs/sweeps/STUDY")
    group.add_argument("--space", default=None, help="YAML file of what varies")
    group.add_argument(
        "--set", action="append", default=[], help="KEY=LOW..HIGH[:log] or KEY=A|B|C, repeatable"
    )
    group.add_argument("--monitor", default="val/ratio", help="validation figure; less is better")
    group.add_argument("--study_seed", type=int, default=0, help="of the values drawn")


class SweepCLI(TrainingCLI):
    """Parses the arguments of a sweep: those of a run without a subcommand, and its own.

    Args:
        args: arguments after ``gnnplace train sweep``.
    """

    def __init__(self, args: list[str]) -> None:
        super().__init__(args, run=False, save_config=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of a sweep."""
        super().add_arguments_to_parser(parser)
        add_sweep_options(parser)

    def instantiate_classes(self) -> None:
        """Makes nothing: the trials do."""


class TrialCLI(TrainingCLI):
    """Makes the objects of one trial.

    Args:
        args: as of the sweep, then the trial's values.
        folder: what the trial writes goes there.
    """

    def __init__(self, args: list[str], folder: Path) -> None:
        self.folder = folder
        super().__init__(args, run=False, save_config=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of a sweep."""
        super().add_arguments_to_parser(parser)
        add_sweep_options(parser)

    def before_instantiate_classes(self) -> None:
        """Sends what the recipe writes to the trial's folder.

        Raises:
            InputError: the recipe wants several processes.
        """
        quiet_trainer(self.chosen.trainer, self.folder)
        if "export" in self.chosen.model.init_args:
            self.chosen.model.init_args.export = str(self.folder / "policy")
        super().before_instantiate_classes()


def quiet_trainer(trainer: Namespace, folder: Path) -> None:
    """Makes a recipe's trainer one of many, in place: a CSV log and nothing else."""
    if trainer.devices not in ("auto", 1, "1"):
        raise InputError(f"trainer.devices {trainer.devices}: a trial has one; start more workers")
    callbacks = trainer.callbacks or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    trainer.callbacks = [c for c in callbacks if not run_folder.is_checkpoint(c)]
    trainer.default_root_dir, trainer.logger = str(folder), None
    trainer.enable_checkpointing = False
    trainer.enable_progress_bar = trainer.enable_model_summary = False
    run_folder.complete(trainer, logs=("csv",))


class Pruning(Callback):
    """Reports the best figure after each validation, and ends the run of a pruned trial.

    Args:
        trial: the trial.
        monitor: name of the figure; less is better.
    """

    def __init__(self, trial: Trial, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor
        self.best, self.validations, self.pruned = float("inf"), 0, False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reports.

        Raises:
            InputError: the recipe logs no such figure.
        """
        if trainer.sanity_checking:
            return
        logged = trainer.callback_metrics
        if self.monitor not in logged:
            known = ", ".join(sorted(logged))
            raise InputError(f"--monitor {self.monitor}: not logged; there are {known}")
        self.best = min(self.best, float(logged[self.monitor]))
        self.trial.report(self.best, self.validations)
        self.validations += 1
        self.pruned = self.trial.should_prune()
        trainer.should_stop = trainer.should_stop or self.pruned


def run_trial(args: list[str], trial: Trial, folder: Path, monitor: str) -> float:
    """Best validation figure of one run.

    Args:
        args: arguments of the sweep.
        trial: with its values.
        folder: what the trial writes goes there.
        monitor: name of the figure.

    Raises:
        optuna.TrialPruned: the study ended it early.
        GnnplaceError: bad input.
    """
    values = [f"--{key}={value}" for key, value in trial.params.items()]
    cli = TrialCLI([*args, *values], folder)
    pruning = Pruning(trial, monitor)
    cli.trainer.callbacks.append(pruning)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    if pruning.pruned:
        raise optuna.TrialPruned
    return pruning.best
