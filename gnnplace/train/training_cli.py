"""``TrainingCLI``: Lightning's command line, with the defaults of this project.

It differs from Lightning's own in four points: torch has one thread by default; under ``torchrun``
the number of processes is torchrun's; wrong input gives a message of one line; and a run begins
with a validation of the start weights.

Everything that a recipe does not send elsewhere goes to one folder, ``trainer.default_root_dir``:
``csv/`` and ``tensorboard/`` (logs), ``checkpoints/`` (to resume from), ``policy/`` (the exported
network), ``predictions.csv`` (of ``predict``).
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
"""The logger classes that a run has by default, by the name of their folder."""
SPECIAL_CHECKPOINTS = ("best", "last", "hpc")
"""Words for a checkpoint that Lightning itself finds the file of."""
NEEDED_TO_GO_ON = ("optimizer_states", "loops")
"""Keys of a checkpoint that training can be resumed from; files of weights alone lack them."""
QUOTED = re.compile(r"[`'\"]([^`'\"]+)[`'\"]")
"""A name in quotes or backticks, as Lightning's messages have them."""


def complete(trainer: Namespace, *, logs: tuple[str, ...] = tuple(LOGGERS)) -> None:
    """Fill in loggers and checkpoints that a recipe leaves out, in place.

    Args:
        trainer: The parsed ``trainer`` section of a recipe, with a ``default_root_dir``.
        logs: Keys of ``LOGGERS`` to use if the recipe names no logger.
    """
    root = Path(trainer.default_root_dir)
    callbacks = trainer.callbacks or []
    if isinstance(callbacks, list):
        trainer.callbacks = callbacks
    else:
        trainer.callbacks = [callbacks]
    if trainer.logger is None:
        trainer.logger = []
        for name in logs:
            init_args = Namespace(save_dir=str(root), name=name)
            logger = Namespace(class_path=LOGGERS[name], init_args=init_args)
            trainer.logger.append(logger)
    if trainer.enable_checkpointing is not False:
        _complete_checkpoints(trainer, str(root / "checkpoints"))


def complete_export(model: Namespace, trainer: Namespace) -> None:
    """Set ``export`` to the folder ``policy`` of the run if a recipe leaves it out, in place.

    Only models that are a `Learner` of this project are changed.

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
    """Give checkpoint callbacks without a folder this one, and add one if there is none."""
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
    """A callback that writes ``predictions.csv``, or ``predictions-RANK.csv`` of each process.

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
        """Write the rows that ``predict_step`` returned for all batches.

        Args:
            trainer: Lightning's trainer.
            pl_module: The model.
            predictions: For each batch its rows, mappings of equal keys.
            batch_indices: Not used.
        """
        rows = [row for batch in predictions for row in batch]
        text = csv_text([rows[0].keys(), *(row.values() for row in rows)])
        if trainer.world_size > 1:
            suffix = f"-{trainer.global_rank}"
        else:
            suffix = ""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"predictions{suffix}.csv"
        write_text(path, text)
        write_line(f"wrote {path}: {len(rows)} problems{prediction_summary(rows)}")


def prediction_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how predicted steps compare with the best heuristic's, as the end of a line.

    It is empty if no row has both figures: the model is the user's own, or no problem has a
    reference.

    Args:
        rows: Rows of predictions, with seconds as "step_time" and "reference".
    """
    log_ratios = []
    for row in rows:
        step_time = row.get("step_time")
        reference = row.get("reference")
        if not step_time or not reference:
            continue
        if math.isfinite(step_time) and math.isfinite(reference):
            log_ratios.append(math.log(step_time / reference))
    if not log_ratios:
        return ""
    ratio = math.exp(sum(log_ratios) / len(log_ratios))
    return f", predicted step over the best heuristic's {ratio:.3f} (geometric mean)"


class TrainingCLI(LightningCLI):
    """Lightning's command line for this project's modules and data.

    Args:
        args: Arguments without the program's name.
        run: Whether to run the subcommand that the arguments begin with. Otherwise there is none,
            and only model, data and trainer are made.
        save_config: Whether to write the complete recipe beside the logs.

    Raises:
        InputError: If Lightning finds a mistake in the recipe.
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
        """Return the parsed arguments of the subcommand, or all of them if there is none."""
        if self.subcommand:
            return self.config[self.subcommand]
        return self.config

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the option `--threads`, the number of torch's threads."""
        parser.add_argument("--threads", type=int, default=1, help="threads of torch")

    def before_instantiate_classes(self) -> None:
        """Set torch's threads, and fill in processes, loggers, checkpoints and the export."""
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
        # A progress bar is for a terminal; in a file there is a line for each epoch.
        if self.subcommand == "fit" and trainer.enable_progress_bar is not False:
            trainer.enable_progress_bar = sys.stdout.isatty()
            if not trainer.enable_progress_bar:
                lines = Namespace(class_path=EPOCH_LINES, init_args=Namespace())
                trainer.callbacks.append(lines)

    def instantiate_classes(self) -> None:
        """Make model, data and trainer.

        Raises:
            GnnplaceError: If one of them refuses its arguments. The parser adds text to such an
                error, which is removed.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            cause = error.__cause__
            if isinstance(cause, ImportError | MisconfigurationException):
                raise InputError(_join_lines(cause)) from None
            raise cause if isinstance(cause, GnnplaceError) else error from None

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Return Lightning's trainer.

        Raises:
            InputError: If Lightning refuses the settings.
        """
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError) as error:
            raise InputError(f"trainer: {_join_lines(error)}") from None

    def before_fit(self) -> None:
        """Check the checkpoint that training resumes from.

        Such a run has no start weights, so the validation at its beginning is left out.
        """
        self._check_checkpoint()
        path = self.chosen.get("ckpt_path")
        folders = [callback.dirpath for callback in self.trainer.checkpoint_callbacks]
        # With the path "last" and no such file Lightning begins anew.
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
        """Write which folders the network was exported to, and how to place with it."""
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
        """Check the file of `ckpt_path`. A missing one is left to Lightning, which names it."""
        path = self.chosen.get("ckpt_path")
        if path is None or path in SPECIAL_CHECKPOINTS or not Path(path).is_file():
            return
        check_checkpoint(path, self.model, goes_on=self.subcommand == "fit")


def check_checkpoint(path: str, model: LightningModule, *, goes_on: bool) -> None:
    """Check that a checkpoint can be loaded into a model.

    Args:
        path: The checkpoint's file.
        model: The model.
        goes_on: Whether training resumes from it, which needs more than the weights.

    Raises:
        InputError: If the file is no checkpoint of Lightning, or has only weights and training is
            to resume.
        MismatchError: If parameters have other names or shapes than the model's.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        return  # it has objects of the user's classes: Lightning decides whether to load them
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
            "file of a run, or give an exported policy by --model.start"
        )
    missing_keys = [key for key in NEEDED_TO_GO_ON if key not in checkpoint]
    if goes_on and missing_keys:
        raise InputError(
            f"ckpt_path {path}: holds weights alone, from which training cannot go on; give a "
            "checkpoint that was written without save_weights_only"
        )
    # A user's model may change the checkpoint before it is loaded, so that nothing can be said.
    changes_checkpoint = (
        type(model).on_load_checkpoint is not LightningModule.on_load_checkpoint
    )
    is_ours = type(model).__module__.startswith("gnnplace.")
    if model.strict_loading and (is_ours or not changes_checkpoint):
        _check_parameters(path, state, model)


def _check_parameters(path: str, state: dict[str, Any], model: LightningModule) -> None:
    """Check that a checkpoint's parameters have the names and shapes of the model's.

    Args:
        path: The checkpoint's file, for messages.
        state: Its parameters by name.
        model: The model.

    Raises:
        MismatchError: If they do not; the message names the first.
    """
    name = type(model).__name__
    wanted = model.state_dict()
    for key, value in wanted.items():
        if key in state and value.shape != state[key].shape:
            raise MismatchError(
                f"ckpt_path {path}: {key} has shape {list(state[key].shape)} there and "
                f"{list(value.shape)} in {name} of this recipe; give the recipe that it was "
                "trained with"
            )
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    if missing or unexpected:
        if missing:
            difference = f"lacks {missing[0]}"
        else:
            difference = f"has {unexpected[0]}"
        raise MismatchError(
            f"ckpt_path {path}: is of another model, it {difference} ({len(missing)} names are "
            f"missing, {len(unexpected)} too many for {name}); give the recipe that it was "
            "trained with"
        )


def find_mistake(error: Exception) -> InputError | None:
    """Return the mistake in a recipe that an error of Lightning reports, or None.

    Args:
        error: An error that a run raised. None is returned if it is no mistake of the recipe.
    """
    message = _join_lines(error)
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
        # Each of the three messages lists the metrics that exist after other words.
        listed_part = ""
        for words in ("metrics: ", "following: ", "metrics are: "):
            listed_part = listed_part or message.partition(words)[2]
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


def _join_lines(error: BaseException) -> str:
    """Return an error's text in one line."""
    return " ".join(str(error).split())


def adopt_torchrun(trainer: Namespace) -> None:
    """Set devices and nodes to those of ``torchrun``, if it started this process, in place.

    Several processes train by DDP, unless the recipe names a strategy.

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
