"""``EpochLines``: one line an epoch, where no progress bar can be watched."""

from __future__ import annotations

import sys
import time

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from gnnplace.train.learner import Learner

FIGURE = "val/ratio"


def write_line(text: str) -> None:
    """Write a line at once, so that it can be read while the run goes on."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class EpochLines(Callback):
    """A callback that writes a line after the validation of the start weights and each epoch.

    An epoch's line is written when the next one starts or the training ends: only then has every
    hook of the epoch logged its figures.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._epoch: int | None = None  # the epoch that has run and has no line yet

    def on_sanity_check_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the figure of the start weights, if all problems were placed."""
        if isinstance(pl_module, Learner) and pl_module.start_ratio is not None:
            self._write(trainer, f"start: {FIGURE} {pl_module.start_ratio:.3f}")

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Write the line of the epoch before, and start the clock."""
        self._write_epoch(trainer, pl_module)
        self._epoch = trainer.current_epoch
        self._began = time.monotonic()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line of the last epoch."""
        self._write_epoch(trainer, pl_module)

    def _write_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``val/ratio`` beside the best and the first one, if the module logs it.

        Of other modules all figures are written that they log for the progress bar.
        """
        if self._epoch is None:
            return
        figures = {
            name: float(value) for name, value in trainer.callback_metrics.items()
        }
        shown = [name for name in trainer.progress_bar_metrics if name in figures]
        text = (
            ", ".join(f"{name} {figures[name]:.4g}" for name in shown)
            or "no figure was logged"
        )
        if isinstance(pl_module, Learner) and FIGURE in figures:
            start = pl_module.start_ratio
            if start is None:
                since = ""
            else:
                since = f", start {start:.3f}"
            text = f"{FIGURE} {figures[FIGURE]:.3f} (best {float(pl_module.best):.3f}{since})"
        self._write(trainer, f"epoch {self._epoch}: {text}")
        self._epoch = None

    def _write(self, trainer: Trainer, text: str) -> None:
        if trainer.is_global_zero:
            write_line(f"{text}, {time.monotonic() - self._began:.3g} s")
