"""``OneProblem``: the same problem at every step, to fine-tune a network for it."""

from __future__ import annotations

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from gnnplace.placers import SearchSpace
from gnnplace.problem import read_problem
from gnnplace.train.data import Sample, as_list, reference_seconds
from gnnplace.train.learner import check_least


class OneProblem(LightningDataModule):
    """One problem, to learn from and to validate on.

    Args:
        problem: path of a problem file.
        steps: steps of an epoch.

    Raises:
        InputError: no steps.
    """

    def __init__(self, problem: str, steps: int = 20) -> None:
        super().__init__()
        check_least(steps=(steps, 1))
        self.path, self.steps = problem, steps
        self.sample: Sample | None = None

    def setup(self, stage: str) -> None:
        """Reads the problem.

        Raises:
            FormatError: naming the file, the key path and the fault.
        """
        if self.sample is None:
            space = SearchSpace(read_problem(self.path))
            self.sample = Sample(space, 0, reference_seconds(space))

    def train_dataloader(self) -> DataLoader[Sample]:
        """The problem, once a step."""
        return self._repeated(self.steps)

    def val_dataloader(self) -> DataLoader[Sample]:
        """The problem."""
        return self._repeated(1)

    def test_dataloader(self) -> DataLoader[Sample]:
        """The problem."""
        return self._repeated(1)

    def predict_dataloader(self) -> DataLoader[Sample]:
        """The problem."""
        return self._repeated(1)

    def transfer_batch_to_device(
        self, batch: list[Sample], device: torch.device, dataloader_idx: int
    ) -> list[Sample]:
        """The problem stays where it is."""
        return batch

    def _repeated(self, count: int) -> DataLoader[Sample]:
        samples = [self.sample] * count
        return DataLoader(samples, batch_size=1, collate_fn=as_list)  # type: ignore[arg-type]
