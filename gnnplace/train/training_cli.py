"""``TrainingCLI``: Lightning's command line for this project, as its users know it.

What differs from Lightning's own: one thread of torch, under ``torchrun`` the recipe takes the
number of processes from there, and bad input is one line. What a recipe leaves out goes to one
folder, ``trainer.default_root_dir``: ``csv/`` and ``tensorboard/`` (logs), ``checkpoints/`` (to
resume from), ``predictions.csv`` (of ``predict``). What a recipe says itself stays as it says.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.files import csv_text, write_text
from gnnplace.train import Evolution as Evolution
from gnnplace.train import MeasuredReinforce as MeasuredReinforce
from gnnplace.train import MeasuredTuning as MeasuredTuning
from gnnplace.train import OneProblem as OneProblem
from gnnplace.train import ProblemDataModule as ProblemDataModule
from gnnplace.train import ProblemFiles as ProblemFiles
from gnnplace.train import Reinforce as Reinforce

CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
PREDICTIONS = "gnnplace.train.training_cli.PredictionTable"
LOGGERS = {
    "csv": "lightning.pytorch.loggers.CSVLogger",
    "tensorboard": "lightning.pytorch.loggers.TensorBoardLogger",
}
SPECIAL_CHECKPOINTS = ("best", "last", "hpc")  # Lightning finds these itself


def complete(trainer: Namespace, *, logs: tuple[str, ...] = tuple(LOGGERS)) -> None:
    """Fill in loggers and checkpoints, in place.

    Args:
        trainer: the parsed ``trainer`` section of a recipe, with a ``default_root_dir``.
        logs: keys of ``LOGGERS`` to write where the recipe names no logger.
    """
    root = Path(trainer.default_root_dir)
    callbacks = trainer.callbacks or []
    trainer.callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    if trainer.logger is None:
        trainer.logger = [
            Namespace(class_path=LOGGERS[n], init_args=Namespace(save_dir=str(root), name=n))
            for n in logs
        ]
    if trainer.enable_checkpointing is not False:
        _complete_checkpoints(trainer, str(root / "checkpoints"))


def _complete_checkpoints(trainer: Namespace, folder: str) -> None:
    found = [callback for callback in trainer.callbacks if is_checkpoint(callback)]
    for callback in found:
        if callback.init_args.dirpath is None:
            callback.init_args.dirpath = folder
    if not found:
        init = Namespace(dirpath=folder, save_last=True)
        trainer.callbacks.append(Namespace(class_path=CHECKPOINT, init_args=init))


def is_checkpoint(callback: Namespace) -> bool:
    """Whether a parsed callback writes checkpoints."""
    return str(callback.class_path).endswith("ModelCheckpoint")


class PredictionTable(BasePredictionWriter):
    """Writes ``predictions.csv``; of several processes each a file, with its number.

    Args:
        folder: the folder to write to.
    """

    def __init__(self, folder: str) -> None:
        super().__init__("epoch")
        self.folder = Path(folder)

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write the rows that ``predict_step`` returned."""
        rows = [row for batch in predictions for row in batch]
        text = csv_text([rows[0].keys(), *(row.values() for row in rows)])
        number = f"-{trainer.global_rank}" if trainer.world_size > 1 else ""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / f"predictions{number}.csv", text)


class TrainingCLI(LightningCLI):
    """Lightning's command line for this project's modules and data.

    Args:
        args: arguments without the program's name.
        run: whether a subcommand is given and run; otherwise only objects are made.
        save_config: whether to write the whole recipe beside the logs.
    """

    def __init__(self, args: list[str], *, run: bool = True, save_config: bool = True) -> None:
        given: dict[str, Any] = {} if save_config else {"save_config_callback": None}
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"default_root_dir": "runs/train"},
            seed_everything_default=0,
            # The caller turns an ArgumentError into one line.
            parser_kwargs={"exit_on_error": False, "prog": "gnnplace train"},
            args=args,
            run=run,
            **given,
        )

    @property
    def chosen(self) -> Namespace:
        """The parsed arguments of the subcommand, or all where there is none."""
        return self.config[self.subcommand] if self.subcommand else self.config

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the number of torch threads."""
        parser.add_argument("--threads", type=int, default=1, help="threads of torch")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, and check what Lightning would only find out late.

        Raises:
            InputError: the checkpoint to resume from is missing or is none.
        """
        super().parse_arguments(parser, args)
        command = self.config.get("subcommand")
        path = self.config[command].get("ckpt_path") if command else None
        if path is not None and path not in SPECIAL_CHECKPOINTS and not zipfile.is_zipfile(path):
            what = "not a checkpoint" if Path(path).exists() else "no such file"
            raise InputError(f"ckpt_path {path}: {what}; give a .ckpt file or 'last'")

    def before_instantiate_classes(self) -> None:
        """Set the threads of torch; fill in processes, loggers and checkpoints."""
        torch.set_num_threads(self.chosen.threads)
        adopt_torchrun(self.chosen.trainer)
        complete(self.chosen.trainer)
        if self.subcommand == "predict":
            folder = Namespace(folder=self.chosen.trainer.default_root_dir)
            table = Namespace(class_path=PREDICTIONS, init_args=folder)
            self.chosen.trainer.callbacks.append(table)

    def instantiate_classes(self) -> None:
        """Make model, data and trainer.

        Raises:
            GnnplaceError: one of them refuses its arguments; without the parser's words around it.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            cause = error.__cause__
            raise cause if isinstance(cause, GnnplaceError) else error from None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Lightning's trainer.

        Raises:
            InputError: Lightning refuses the settings.
        """
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError) as error:
            raise InputError(f"trainer: {error}") from None


def adopt_torchrun(trainer: Namespace) -> None:
    """Under ``torchrun``, takes the number of processes from it; in place.

    Args:
        trainer: the parsed ``trainer`` section of a recipe.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    trainer.devices, trainer.num_nodes = local, world // local
    if trainer.strategy == "auto" and world > 1:
        trainer.strategy = "ddp"
