"""What ``gnnplace train predict`` writes: a CSV row for each problem that the policy placed."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from gnnplace.files import write_text


class PredictionTable(BasePredictionWriter):
    """Writes ``predictions.csv``; of several processes each a file, with its number.

    Args:
        folder: where to.
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
        """Writes the rows that ``predict_step`` returned."""
        rows = [row for batch in predictions for row in batch]
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        number = f"-{trainer.global_rank}" if trainer.world_size > 1 else ""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / f"predictions{number}.csv", file.getvalue())
