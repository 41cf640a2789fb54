"""``OneProblem``: the same problem at every step, to fine-tune a network for it; or a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from gnnplace.placers import SearchSpace
from gnnplace.problem import Problem, read_problem
from gnnplace.train.data import Sample, as_list, reference_seconds
from gnnplace.train.learner import check_least


class FewProblems(LightningDataModule):
    """Some problems in turn, to learn from and to validate on.

    Args:
        problems: the problems.
        steps: steps of an epoch.
        batch_size: problems a step.

    Raises:
        InputError: no steps, or none a step.
    """

    def __init__(self, problems: Sequence[Problem], steps: int = 20, batch_size: int = 1) -> None:
        super().__init__()
        check_least(steps=(steps, 1), batch_size=(batch_size, 1))
        self.problems, self.steps, self.batch_size = list(problems), steps, batch_size
        self.samples: list[Sample] = []

    def setup(self, stage: str) -> None:
        """Makes the samples."""
        if not self.samples:
            spaces = map(SearchSpace, self.problems)
            self.samples = [Sample(space, index) for index, space in enumerate(spaces)]

    def train_dataloader(self) -> DataLoader[Sample]:
        """The problems in turn."""
        count = self.steps * self.batch_size
        return self._loader([self.samples[i % len(self.samples)] for i in range(count)])

    def val_dataloader(self) -> DataLoader[Sample]:
        """The problems, once."""
        return self._loader(
            [replace(s, reference=reference_seconds(s.space)) for s in self.samples]
        )

    def test_dataloader(self) -> DataLoader[Sample]:
        """The problems, once."""
        return self._loader(
            [replace(s, reference=reference_seconds(s.space)) for s in self.samples]
        )

    def predict_dataloader(self) -> DataLoader[Sample]:
        """The problems, once."""
        return self._loader(
            [replace(s, reference=reference_seconds(s.space)) for s in self.samples]
        )

    def transfer_batch_to_device(
        self, batch: list[Sample], device: torch.device, dataloader_idx: int
    ) -> list[Sample]:
        """Problems stay where they are."""
        return batch

    def _referenced(self) -> list[Sample]:
        """The samples with what the heuristics take."""
        return [replace(one, reference=reference_seconds(one.space)) for one in self.samples]

    def _loader(self, samples: list[Sample]) -> DataLoader[Sample]:
        return DataLoader(samples, self.batch_size, collate_fn=as_list)  # type: ignore[arg-type]


class OneProblem(FewProblems):
    """One problem of a file.

    Args:
        problem: path of a problem file.
        steps: steps of an epoch.

    Raises:
        InputError: no steps.
    """

    def __init__(self, problem: str, steps: int = 20) -> None:
        super().__init__([], steps)
        self.path = problem

    def setup(self, stage: str) -> None:
        """Reads the problem.

        Raises:
            FormatError: naming the file, the key path and the fault.
        """
        if not self.problems:
            self.problems = [read_problem(self.path)]
        super().setup(stage)
