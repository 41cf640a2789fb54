"""A callback for tests with real processes: what each of them saw and where it ended."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer


def digest(module: LightningModule) -> str:
    """Of all parameters, bit by bit."""
    result = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        result.update(name.encode() + value.cpu().numpy().tobytes())
    return result.hexdigest()


class Recorder(Callback):
    """Writes the numbers of the problems of each step and the final parameters, a file a process.

    Args:
        folder: where to.
        kill_after: steps after which this process gets a signal; 0 for never.
        kill_with: the signal, SIGKILL by default.
    """

    def __init__(self, folder: str, kill_after: int = 0, kill_with: int = 9) -> None:
        self.folder, self.kill_after, self.kill_with = (
            Path(folder),
            kill_after,
            kill_with,
        )
        self.seen: list[list[int]] = []
        self.validated: list[int] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.kill_after and trainer.global_step == self.kill_after:
            os.kill(os.getpid(), self.kill_with)
        self.seen.append([sample.index for sample in batch])

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.validated += [sample.index for sample in batch]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {
            "seen": self.seen,
            "validated": self.validated,
            "bar": {
                key: float(value) for key, value in trainer.progress_bar_metrics.items()
            },
            "digest": digest(pl_module),
        }
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(found))
