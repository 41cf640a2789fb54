"""Where a run keeps what it writes: everything that a recipe leaves out goes to one folder.

Under ``trainer.default_root_dir``: ``csv/`` and ``tensorboard/`` (logs), ``checkpoints/`` (to
resume from). What a recipe says itself stays as it says.
"""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
PREDICTIONS = "gnnplace.train.predictions.PredictionTable"
LOGGERS = {
    "csv": "lightning.pytorch.loggers.CSVLogger",
    "tensorboard": "lightning.pytorch.loggers.TensorBoardLogger",
}


def complete(trainer: Namespace, *, logs: tuple[str, ...] = tuple(LOGGERS)) -> None:
    """Fills in loggers and checkpoints, in place.

    Args:
        trainer: the parsed ``trainer`` section of a recipe, with a ``default_root_dir``.
        logs: keys of ``LOGGERS`` to write where the recipe names no logger.
    """
    root = Path(trainer.default_root_dir)
    callbacks = trainer.callbacks or []
    trainer.callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    if trainer.logger is None:
        trainer.logger = [_logger(name, root) for name in logs]
    if trainer.enable_checkpointing is not False:
        _complete_checkpoints(trainer, str(root / "checkpoints"))


def _logger(name: str, root: Path) -> Namespace:
    init = Namespace(save_dir=str(root), name=name)
    return Namespace(class_path=LOGGERS[name], init_args=init)


def _complete_checkpoints(trainer: Namespace, folder: str) -> None:
    found = [callback for callback in trainer.callbacks if is_checkpoint(callback)]
    for callback in found:
        if callback.init_args.dirpath is None:
            callback.init_args.dirpath = folder
    if not found:
        init = Namespace(dirpath=folder, save_last=True)
        trainer.callbacks.append(Namespace(class_path=CHECKPOINT, init_args=init))


def add_predictions(trainer: Namespace) -> None:
    """Has what is predicted written to the folder, in place; after ``complete``."""
    init = Namespace(folder=trainer.default_root_dir)
    trainer.callbacks.append(Namespace(class_path=PREDICTIONS, init_args=init))


def is_checkpoint(callback: Namespace) -> bool:
    """Whether a parsed callback writes checkpoints."""
    return str(callback.class_path).endswith("ModelCheckpoint")
