"""``TrainingCLI``: Lightning's command line for this project, as its users know it.

What differs from Lightning's own: one thread of torch, under ``torchrun`` the recipe takes the
number of processes from there, and bad input is one line. What a recipe leaves out goes to one
folder, ``trainer.default_root_dir``: ``csv/`` and ``tensorboard/`` (logs), ``checkpoints/`` (to
resume from), ``policy/`` (the exported network), ``predictions.csv`` (of ``predict``). What a
recipe says itself stays as it says. A run begins with a validation of the start weights.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from gnnplace.errors import GnnplaceError, InputError, MismatchError, suggestion
from gnnplace.files import csv_text, write_text
from gnnplace.imports import find_callable
from gnnplace.train import Evolution as Evolution
from gnnplace.train import MeasuredReinforce as MeasuredReinforce
from gnnplace.train import MeasuredTuning as MeasuredTuning
from gnnplace.train import OneProblem as OneProblem
from gnnplace.train import ProblemDataModule as ProblemDataModule
from gnnplace.train import ProblemFiles as ProblemFiles
from gnnplace.train import Reinforce as Reinforce
from gnnplace.train.epoch_lines import write_line
from gnnplace.train.learner import Learner

CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
PREDICTIONS = "gnnplace.train.training_cli.PredictionTable"
EPOCH_LINES = "gnnplace.train.epoch_lines.EpochLines"
LOGGERS = {
    "csv": "lightning.pytorch.loggers.CSVLogger",
    "tensorboard": "lightning.pytorch.loggers.TensorBoardLogger",
}
SPECIAL_CHECKPOINTS = ("best", "last", "hpc")  # Lightning finds these itself
# Options of a checkpoint that training continues from.
NEEDED_TO_GO_ON = ("optimizer_states", "loops")
QUOTED = re.compile(r"[`'\"]([^`'\"]+)[`'\"]")


def complete(trainer: Namespace, *, logs: tuple[str, ...] = tuple(LOGGERS)) -> None:
    """Fill in loggers and checkpoints, in place.

    Args:
        trainer: The parsed ``trainer`` section of a recipe, with a ``default_root_dir``.
        logs: Keys of ``LOGGERS`` to write where the recipe names no logger.
    """
    root = Path(trainer.default_root_dir)
    callbacks = trainer.callbacks or []
    if isinstance(callbacks, list):
        trainer.callbacks = callbacks
    else:
        trainer.callbacks = [callbacks]
    if trainer.logger is None:
        trainer.logger = [
            Namespace(
                class_path=LOGGERS[n], init_args=Namespace(save_dir=str(root), name=n)
            )
            for n in logs
        ]
    if trainer.enable_checkpointing is not False:
        _complete_checkpoints(trainer, str(root / "checkpoints"))


def complete_export(model: Namespace, trainer: Namespace) -> None:
    """Export to ``policy`` in the folder of the run where a recipe leaves ``export`` out, in place.

    Args:
        model: The parsed ``model`` section of a recipe.
        trainer: The parsed ``trainer`` section, with a ``default_root_dir``.
    """
    arguments = model.get("init_args", Namespace())
    if "export" in arguments and arguments.export is None:
        module, _, name = model.class_path.rpartition(".")
        learner = find_callable(module, name, f"model {model.class_path}")
        if isinstance(learner, type) and issubclass(learner, Learner):
            arguments.export = str(Path(trainer.default_root_dir) / "policy")


def _complete_checkpoints(trainer: Namespace, folder: str) -> None:
    checkpoints = [
        callback for callback in trainer.callbacks if is_checkpoint(callback)
    ]
    for callback in checkpoints:
        if callback.init_args.dirpath is None:
            callback.init_args.dirpath = folder
    if not checkpoints:
        init = Namespace(dirpath=folder, save_last=True)
        trainer.callbacks.append(Namespace(class_path=CHECKPOINT, init_args=init))


def is_checkpoint(callback: Namespace) -> bool:
    """Return whether a parsed callback writes checkpoints."""
    return str(callback.class_path).endswith("ModelCheckpoint")


class PredictionTable(BasePredictionWriter):
    """A callback that writes ``predictions.csv``; of several processes each a numbered file.

    Args:
        folder: The folder to write to.
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
        if trainer.world_size > 1:
            number = f"-{trainer.global_rank}"
        else:
            number = ""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"predictions{number}.csv"
        write_text(path, text)
        write_line(f"wrote {path}: {len(rows)} problems{prediction_summary(rows)}")


def prediction_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return, as the end of a line, how predicted steps compare with the best heuristic's.

    Empty where the rows are another model's, or no problem has a reference.
    """
    pairs = [(row.get("step_time"), row.get("reference")) for row in rows]
    logs = [
        math.log(step_time / reference)
        for step_time, reference in pairs
        if step_time
        and reference
        and math.isfinite(step_time)
        and math.isfinite(reference)
    ]
    if not logs:
        return ""
    ratio = math.exp(sum(logs) / len(logs))
    return f", predicted step over the best heuristic's {ratio:.3f} (geometric mean)"


class TrainingCLI(LightningCLI):
    """Lightning's command line for this project's modules and data.

    Args:
        args: Arguments without the program's name.
        run: Whether a subcommand is given and run; otherwise only objects are made.
        save_config: Whether to write the whole recipe beside the logs.
    """

    def __init__(
        self, args: list[str], *, run: bool = True, save_config: bool = True
    ) -> None:
        options: dict[str, Any] = {} if save_config else {"save_config_callback": None}
        try:
            super().__init__(
                LightningModule,
                LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                save_config_kwargs={"overwrite": True},
                trainer_defaults={
                    "default_root_dir": "runs/train",
                    "num_sanity_val_steps": -1,
                },
                seed_everything_default=0,
                # The caller turns an ArgumentError into one line.
                parser_kwargs={"exit_on_error": False, "prog": "gnnplace train"},
                args=args,
                run=run,
                **options,
            )
        except (MisconfigurationException, RuntimeError, ValueError) as error:
            mistake = find_mistake(error)
            if mistake is None:
                raise
            raise mistake from None

    @property
    def chosen(self) -> Namespace:
        """Return the parsed arguments of the subcommand, or all where there is none."""
        if self.subcommand:
            return self.config[self.subcommand]
        return self.config

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the number of torch threads."""
        parser.add_argument("--threads", type=int, default=1, help="threads of torch")

    def before_instantiate_classes(self) -> None:
        """Set the threads of torch; fill in processes, loggers, checkpoints and the export."""
        torch.set_num_threads(self.chosen.threads)
        trainer = self.chosen.trainer
        adopt_torchrun(trainer)
        complete(trainer)
        complete_export(self.chosen.model, trainer)
        if self.subcommand == "predict":
            folder = Namespace(folder=trainer.default_root_dir)
            trainer.callbacks.append(
                Namespace(class_path=PREDICTIONS, init_args=folder)
            )
        if self.subcommand == "fit" and trainer.enable_progress_bar is not False:
            trainer.enable_progress_bar = sys.stdout.isatty()
            if not trainer.enable_progress_bar:
                lines = Namespace(class_path=EPOCH_LINES, init_args=Namespace())
                trainer.callbacks.append(lines)

    def instantiate_classes(self) -> None:
        """Make model, data and trainer.

        Raises:
            GnnplaceError: One of them refuses its arguments; the parser's words are removed.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            cause = error.__cause__
            if isinstance(cause, ImportError | MisconfigurationException):
                raise InputError(_one_line(cause)) from None
            raise cause if isinstance(cause, GnnplaceError) else error from None

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Return Lightning's trainer.

        Raises:
            InputError: Lightning refuses the settings.
        """
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError) as error:
            raise InputError(f"trainer: {_one_line(error)}") from None

    def before_fit(self) -> None:
        """Check the checkpoint that training goes on from; its weights are no start weights."""
        self._check_checkpoint()
        path = self.chosen.get("ckpt_path")
        folders = [callback.dirpath for callback in self.trainer.checkpoint_callbacks]
        has_last = any(
            list(Path(folder).glob("last*.ckpt")) for folder in folders if folder
        )
        if path is not None and (path != "last" or has_last):
            self.trainer.num_sanity_val_steps = 0

    def before_validate(self) -> None:
        """Check the checkpoint whose weights are validated."""
        self._check_checkpoint()

    before_test = before_predict = before_validate

    def after_fit(self) -> None:
        """Say which folders have the network now, and how to place with it."""
        if isinstance(self.model, Learner):
            folders = self.model.exported_folders
        else:
            folders = []
        if folders and self.trainer.is_global_zero:
            placer = self.model.policy.placer
            write_line(f"wrote {' and '.join(folders)}")
            write_line(
                f"place with it: gnnplace place PROBLEM --placer {placer} --checkpoint {folders[0]}"
            )

    def _check_checkpoint(self) -> None:
        path = self.chosen.get("ckpt_path")
        if (
            path is not None
            and path not in SPECIAL_CHECKPOINTS
            and Path(path).is_file()
        ):
            check_checkpoint(path, self.model, goes_on=self.subcommand == "fit")


def check_checkpoint(path: str, model: LightningModule, *, goes_on: bool) -> None:
    """Refuse a checkpoint of another model.

    Args:
        path: Its file.
        model: What it is to be loaded into.
        goes_on: Whether training goes on from it, which needs more than the weights.

    Raises:
        InputError: It is no checkpoint of Lightning, or holds weights alone where more is needed.
        MismatchError: The checkpoint has other parameters, or parameters of other shapes.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        return  # holds objects of the user's, which Lightning loads where it is told to
    except (RuntimeError, ValueError, KeyError, EOFError):
        raise InputError(
            f"ckpt_path {path}: not a checkpoint; give a .ckpt file"
        ) from None
    if isinstance(checkpoint, dict):
        state = checkpoint.get("state_dict")
    else:
        state = None
    if not isinstance(state, dict):
        raise InputError(
            f"ckpt_path {path}: not a checkpoint of Lightning, it has no state_dict; give a .ckpt "
            "file of a run, and an exported policy by --model.start"
        )
    missing_keys = [key for key in NEEDED_TO_GO_ON if key not in checkpoint]
    if goes_on and missing_keys:
        raise InputError(
            f"ckpt_path {path}: holds weights alone, from which training cannot go on; give a "
            "checkpoint that was written without save_weights_only"
        )
    changes_it = (
        type(model).on_load_checkpoint is not LightningModule.on_load_checkpoint
    )
    is_ours = type(model).__module__.startswith("gnnplace.")
    if model.strict_loading and (is_ours or not changes_it):
        _check_state(path, state, model)


def _check_state(path: str, state: dict[str, Any], model: LightningModule) -> None:
    """Refuse parameters of other names or shapes than the model's."""
    name = type(model).__name__
    wanted = model.state_dict()
    different = next(
        (
            key
            for key, value in wanted.items()
            if key in state and value.shape != state[key].shape
        ),
        None,
    )
    if different is not None:
        raise MismatchError(
            f"ckpt_path {path}: {different} has shape {list(state[different].shape)} there and "
            f"{list(wanted[different].shape)} in {name} of this recipe; give the recipe that it "
            "was trained with"
        )
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    if missing or unexpected:
        if missing:
            first = f"lacks {missing[0]}"
        else:
            first = f"has {unexpected[0]}"
        raise MismatchError(
            f"ckpt_path {path}: is of another model, it {first} ({len(missing)} names missing, "
            f"{len(unexpected)} too many for {name}); give the recipe that it was trained with"
        )


def find_mistake(error: Exception) -> InputError | None:
    """Return the mistake in a recipe that Lightning found while it ran, or None without one."""
    message = _one_line(error)
    is_monitor = (
        "Early stopping conditioned on metric" in message
        or "could not find the monitored key" in message
        or "ReduceLROnPlateau conditioned on metric" in message
    )
    if is_monitor:
        named = re.search(r"on metric `?([^` ]+)|monitor='([^']+)'", message)
        if named is None:
            monitor = ""
        else:
            monitor = named[1] or named[2]
        listed_part = (
            message.partition("metrics: ")[2] or message.partition("following: ")[2]
        )
        listed_part = listed_part or message.partition("metrics are: ")[2]
        metrics = QUOTED.findall(
            listed_part.partition("HINT")[0].partition("Condition")[0]
        )
        if metrics:
            listed = f"; there are {', '.join(sorted(set(metrics)))}"
        else:
            listed = ""
        near = suggestion(monitor, metrics) or listed
        return InputError(f"monitor {monitor}: the model logs no such figure{near}")
    if "(ckpt_path=" in message or "Checkpoint at" in message:
        return InputError(f"ckpt_path: {message}")
    if isinstance(error, MisconfigurationException):
        return InputError(f"trainer: {message}")
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def adopt_torchrun(trainer: Namespace) -> None:
    """Take the number of processes from ``torchrun``, if it started this one, in place.

    Args:
        trainer: The parsed ``trainer`` section of a recipe.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    world = int(os.environ["WORLD_SIZE"])
    trainer.devices = local
    trainer.num_nodes = world // local
    if trainer.strategy == "auto" and world > 1:
        trainer.strategy = "ddp"
