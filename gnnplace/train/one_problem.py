"""``OneProblem`` and ``ProblemFiles``: to fine-tune a network for one problem, or for a family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy import Exposure
from gnnplace.problem import Problem, read_problem
from gnnplace.train.data_module import ProblemSample, as_list, reference_seconds
from gnnplace.train.exposure import describe_exposure
from gnnplace.train.limits import check_least


class FewProblems(LightningDataModule):
    """Some problems in turn, to learn from and to validate on.

    Args:
        problems: The problems to learn from, in turn.
        steps: The number of steps of an epoch.
        batch_size: The number of problems of a step.

    Raises:
        InputError: There are no steps, or no problems in a step.
    """

    def __init__(
        self, problems: Sequence[Problem], steps: int = 20, batch_size: int = 1
    ) -> None:
        super().__init__()
        check_least("data", steps=(steps, 1), batch_size=(batch_size, 1))
        self.problems = list(problems)
        self.steps = steps
        self.batch_size = batch_size
        self.samples: list[ProblemSample] = []
        self.held_out: list[ProblemSample] = []  # validated on in place of the others

    def setup(self, stage: str) -> None:
        """Make the samples."""
        self.samples = self.samples or _samples(self.problems)

    def exposures(self) -> tuple[Exposure, Exposure]:
        """Return the exposures of training and of validation. Call ``setup`` before."""
        trained = describe_exposure(self.problems)
        held_out = [sample.space.problem for sample in self.held_out]
        return trained, describe_exposure(held_out) if held_out else trained

    def train_dataloader(self) -> DataLoader[ProblemSample]:
        """Return a loader of the problems in turn."""
        count = self.steps * self.batch_size
        return self._loader([self.samples[i % len(self.samples)] for i in range(count)])

    def val_dataloader(self) -> DataLoader[ProblemSample]:
        """Return a loader of the problems that are validated on, each once."""
        samples = self.held_out or self.samples
        return self._loader(
            [replace(s, reference=reference_seconds(s.space)) for s in samples]
        )

    test_dataloader = predict_dataloader = val_dataloader

    def transfer_batch_to_device(
        self, batch: list[ProblemSample], device: torch.device, dataloader_idx: int
    ) -> list[ProblemSample]:
        """Return the batch as it is, because problems stay on the CPU."""
        return batch

    def _loader(self, samples: list[ProblemSample]) -> DataLoader[ProblemSample]:
        return DataLoader(samples, self.batch_size, collate_fn=as_list)  # type: ignore[arg-type]


def _samples(problems: Sequence[Problem], first: int = 0) -> list[ProblemSample]:
    return [
        ProblemSample(SearchSpace(one), index)
        for index, one in enumerate(problems, first)
    ]


class OneProblem(FewProblems):
    """One problem of a file.

    Args:
        problem: Path of a problem file.
        steps: The number of steps of an epoch.

    Raises:
        InputError: There are no steps.
    """

    def __init__(self, problem: str, steps: int = 20) -> None:
        super().__init__([], steps)
        self.path = problem

    def setup(self, stage: str) -> None:
        """Read the problem.

        Raises:
            FormatError: The file is malformed; the message names it, the key path and the fault.
        """
        if not self.problems:
            self.problems = [read_problem(self.path)]
        super().setup(stage)


class ProblemFiles(FewProblems):
    """Problems of files to learn from, as those of one family, and others to validate on.

    Args:
        problems: Paths of problem files, or patterns such as ``family/*.json``.
        held_out: The same of problems to validate on; those that are learned from where there are
            none.
        steps: The number of steps of an epoch.
        batch_size: The number of problems of a step.

    Raises:
        InputError: There are no steps, or no problems in a step.
    """

    def __init__(
        self,
        problems: Sequence[str],
        held_out: Sequence[str] = (),
        steps: int = 40,
        batch_size: int = 4,
    ) -> None:
        super().__init__([], steps, batch_size)
        self.patterns = tuple(problems)
        self.held_out_patterns = tuple(held_out)

    def setup(self, stage: str) -> None:
        """Read the problems; those to learn from are mixed, so that sizes come in no order.

        Raises:
            InputError: There are no problems, or no file matches a pattern.
            FormatError: The file is malformed; the message names it, the key path and the fault.
        """
        if not self.patterns:
            raise InputError(
                "problems: none; name them: --data.problems='[family/*.json]'"
            )
        if not self.problems:
            self.problems = _read(self.patterns)
            np.random.default_rng(0).shuffle(self.problems)  # type: ignore[arg-type]
            held_out = _read(self.held_out_patterns)
            self.held_out = _samples(held_out, len(self.problems))
        super().setup(stage)


def _read(patterns: Sequence[str]) -> list[Problem]:
    """Return the problems of paths as they are, and of each pattern by name."""
    problems: list[Problem] = []
    for pattern in patterns:
        if has_magic(pattern):
            paths = sorted(glob(pattern, recursive=True))
        else:
            paths = [pattern]
        if not paths:
            raise InputError(
                f"problems {pattern!r}: no such file below {str(Path.cwd())!r}"
            )
        problems += [read_problem(path) for path in paths]
    return problems
