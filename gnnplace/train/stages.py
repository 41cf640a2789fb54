"""``StageImitation``: a network learns the stages that search found.

Formulation: along each label's devices, in its own style, the network scores the candidates of
every segment; the loss is the cross-entropy of the device that was taken, or of any that is like it
so far. Labels are made by ``stage_labels``; every tenth is held out, and ``val/loss`` is the mean
over those. The network is exported whenever that improves.
Cost: two seconds an epoch of some hundred labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning import LightningDataModule, LightningModule
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from gnnplace.errors import InputError
from gnnplace.policy.stages.line import Line
from gnnplace.policy.stages.network import Lines, StageNet
from gnnplace.policy.stages.walk import Style, Walk, style_features, style_of
from gnnplace.train.stage_labels import Label, make_labels, read_labels

ALIKE = 1e-6  # difference of features below which two candidates are alike
HELD_OUT = 10  # every so many labels one is for validation
NEVER = -1e9
WEIGHT_DECAY = 1e-2


class Walked(NamedTuple):
    """A label as the network learns it.

    Attributes:
        line: the line.
        style: of the devices. [STYLE_FEATURES]
        candidates: what each device was for each segment. [S, D, F]
        right: whether it is the one that was taken, or like it. [S, D]
        allowed: whether it may have the segment. [S, D]
    """

    line: Line
    style: np.ndarray
    candidates: np.ndarray
    right: np.ndarray
    allowed: np.ndarray


def walked(line: Line, device: np.ndarray, style: Style | None = None) -> Walked:
    """A walk along known devices, in their own style where none is given. [S]"""
    style, allowed = style or style_of(device), np.isfinite(line.work)
    walk, candidates, right = Walk(line, [style]), [], []
    for segment, taken in enumerate(device):
        seen = walk.candidates()[0]
        candidates.append(seen)
        right.append((np.abs(seen - seen[taken]) < ALIKE).all(axis=1) & allowed[segment])
        walk.take(np.array([taken], dtype=np.int32))
    told = style_features(style, len(line.speed))
    return Walked(line, told, np.stack(candidates), np.stack(right), allowed)


def collated(rows: Sequence[Walked]) -> tuple[Lines, Tensor, Tensor, Tensor]:
    """A batch: lines, and candidates, right and allowed ones of as many devices each."""
    most = max(row.right.shape[1] for row in rows)
    sizes = [len(row.right) for row in rows]
    begin = np.concatenate(([0], np.cumsum(sizes)[:-1]))

    def all_of(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays))

    def padded(array: np.ndarray) -> np.ndarray:
        missing = most - array.shape[1]
        return np.pad(array, ((0, 0), (0, missing)) + ((0, 0),) * (array.ndim - 2))

    lines = Lines(
        segments=all_of([row.line.segments for row in rows]),
        whole=torch.from_numpy(np.stack([row.line.whole for row in rows])),
        pairs=all_of([(row.line.pairs + b).T for row, b in zip(rows, begin, strict=True)]).T,
        traffic=all_of([row.line.traffic for row in rows]),
        line=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(sizes)),
        style=all_of([np.tile(row.style, (len(row.right), 1)) for row in rows]),
    )
    shared = (all_of([padded(getattr(row, name)) for row in rows]) for name in Walked._fields[2:])
    candidates, right, allowed = shared
    return lines, candidates, right, allowed


class StageData(LightningDataModule):
    """Labels of a folder, made where they are missing.

    Args:
        folder: of the labels.
        labels: how many there shall be of seeds from ``seed`` on; 0: those that are there.
        seconds: of search for each that is made.
        seed: of the first.
        teacher: a network whose proposals the search starts from.
        batch_size: labels a step.
    """

    def __init__(
        self,
        folder: str = "runs/stages/labels",
        labels: int = 0,
        seconds: float = 4.0,
        seed: int = 1000,
        teacher: str | None = None,
        batch_size: int = 8,
    ) -> None:
        super().__init__()
        self.folder, self.labels, self.seconds = folder, labels, seconds
        self.first, self.teacher, self.batch_size = seed, teacher, batch_size
        self.train: list[Walked] = []
        self.validation: list[Walked] = []

    def prepare_data(self) -> None:
        """Makes what is missing."""
        given: dict[str, Any] = {"seconds": self.seconds, "seed": self.first}
        make_labels(self.folder, self.labels, teacher=self.teacher, say=print, **given)

    def setup(self, stage: str) -> None:
        """Walks along all labels once.

        Raises:
            InputError: too few labels to hold one out.
        """
        known = read_labels(self.folder)
        held = [label for number, label in known.items() if number % HELD_OUT == 0]
        learned = [label for number, label in known.items() if number % HELD_OUT]
        if not held or not learned:
            raise InputError(f"{self.folder}: {len(known)} labels; at least {HELD_OUT} are needed")
        self.train = _all_walked(learned)
        self.validation = [walked(label.line, label.devices[0]) for label in held]

    def train_dataloader(self) -> DataLoader[Any]:
        """Labels in a new order each epoch."""
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=collated)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Any]:
        """The held-out labels."""
        return DataLoader(self.validation, self.batch_size, collate_fn=collated)  # type: ignore[arg-type]


def _all_walked(labels: Sequence[Label]) -> list[Walked]:
    return [walked(label.line, device) for label in labels for device in label.devices]


class StageImitation(LightningModule):
    """Learns ``StageNet``.

    Args:
        hidden: size of its layers.
        rounds: of messages; 0 leaves the graph out.
        learning_rate: the highest of the one cycle that training is.
        export: a safetensors file that the network is saved to whenever validation improves.
    """

    best: Tensor

    def __init__(
        self,
        hidden: int = 64,
        rounds: int = 3,
        learning_rate: float = 2e-3,
        export: str | None = None,
    ) -> None:
        super().__init__()
        self.policy = StageNet(hidden, rounds)
        self.learning_rate, self.export = learning_rate, export
        self.register_buffer("best", torch.tensor(float("inf")))

    def configure_optimizers(self) -> Any:
        """AdamW, one cycle."""
        parameters, rate = self.policy.parameters(), self.learning_rate
        optimizer = torch.optim.AdamW(parameters, rate, weight_decay=WEIGHT_DECAY)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def loss(self, batch: tuple[Lines, Tensor, Tensor, Tensor]) -> Tensor:
        """Cross-entropy of every decision. [S]"""
        lines, candidates, right, allowed = batch
        score = F.log_softmax(self.policy(lines, candidates).masked_fill(~allowed, NEVER), dim=1)
        return -torch.logsumexp(score.masked_fill(~right, NEVER), dim=1)

    def training_step(self, batch: tuple[Lines, Tensor, Tensor, Tensor], index: int) -> Tensor:
        """Mean over the decisions."""
        loss = self.loss(batch).mean()
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch[0].whole))
        return loss

    def validation_step(self, batch: tuple[Lines, Tensor, Tensor, Tensor], index: int) -> None:
        """Mean over the decisions."""
        loss = self.loss(batch)
        self.log("val/loss", loss.mean(), prog_bar=True, batch_size=len(loss))

    def on_validation_epoch_end(self) -> None:
        """Saves the network where it is the best so far."""
        found = self.trainer.callback_metrics["val/loss"]
        if self.trainer.sanity_checking or found >= self.best:
            return
        self.best.copy_(found)
        if self.export is not None:
            Path(self.export).parent.mkdir(parents=True, exist_ok=True)
            arrays = {name: value.contiguous() for name, value in self.policy.state_dict().items()}
            save_file(arrays, self.export)
