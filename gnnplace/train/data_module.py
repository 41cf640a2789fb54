"""``ProblemDataModule``: generated problems on the fly, the same for the same seed.

Each process of a run gets its own problems, and the same again after an interruption. The samplers
are distributed ones already, so Lightning leaves them as they are: with its own it would repeat the
problems of the first epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gnnplace.errors import GnnplaceError, InfeasibleError, InputError
from gnnplace.placers import Portfolio, SearchSpace
from gnnplace.policy import Exposure
from gnnplace.problem import Problem, make_preset
from gnnplace.train.data import random_families
from gnnplace.train.data.captured import (
    AMPLE,
    TEST,
    TIGHT_MEMORY,
    TRAIN,
    VALIDATION,
    CapturedDraws,
    CapturedStore,
    draw_captured_problem,
    open_shipped_store,
)
from gnnplace.train.data.datasets import dataset_problem, find_dataset
from gnnplace.train.exposure import describe_drawn_exposure
from gnnplace.train.limits import check_least

T = TypeVar("T")
TRAIN_SEEDS = 1_000_000
VALIDATION_SEEDS = 0
TEST_SEEDS = 500_000
# The stream of random numbers that chooses captured and large problems.
TELLING = 1
GROUPS = (60, 400)  # least and most groups of a captured graph
BATCH = (0.25, 4.0)  # Relative to the captured batch, in training


class EpochSampler(DistributedSampler[int]):
    """``count`` new problems each epoch, every process an equal share; the remainder is left out.

    Args:
        count: Problems of an epoch, of all processes together.
        rank: The number of this process.
        world: The number of processes.

    Raises:
        InputError: There are fewer problems than processes.
    """

    def __init__(self, count: int, rank: int = 0, world: int = 1) -> None:
        check_share(count, world)
        super().__init__(range(count), world, rank, shuffle=False, drop_last=True)  # type: ignore[arg-type]
        self.count = count
        self.skipped = 0

    def __iter__(self) -> Iterator[int]:
        skipped = self.skipped
        self.skipped = 0
        first = self.epoch * self.count
        return (first + i for i in list(super().__iter__())[skipped:])


class HeldOutSampler(DistributedSampler[int]):
    """The same ``count`` problems each time, each in one process alone.

    Args:
        count: Problems of all processes together.
        rank: The number of this process.
        world: The number of processes.

    Raises:
        InputError: There are fewer problems than processes.
    """

    def __init__(self, count: int, rank: int = 0, world: int = 1) -> None:
        check_share(count, world)
        super().__init__(range(count), world, rank, shuffle=False)  # type: ignore[arg-type]
        self.share = range(rank, count, world)

    def __iter__(self) -> Iterator[int]:
        return iter(self.share)

    def __len__(self) -> int:
        return len(self.share)


def check_share(count: int, world: int) -> None:
    """Refuse fewer problems than processes.

    A process without a problem would let the others wait for ever.

    Raises:
        InputError: There are fewer.
    """
    if count < world:
        raise InputError(
            f"data: {count} problems for {world} processes; give each at least one"
        )


class ResumableLoader(DataLoader[T]):
    """A loader that goes on in the middle of an epoch where its checkpoint was written.

    Lightning keeps ``state_dict`` in checkpoints and hands it back; the sampler must be an
    ``EpochSampler``.
    """

    taken = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.taken = self._epochs.skipped // self._size
        for batch in super().__iter__():
            self.taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of this epoch were taken, by each process."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Skip the batches that were taken; after a whole epoch none."""
        self._epochs.skipped = state["taken"] % len(self) * self._size

    @property
    def _epochs(self) -> EpochSampler:
        assert isinstance(self.sampler, EpochSampler)
        return self.sampler

    @property
    def _size(self) -> int:
        assert self.batch_size is not None
        return self.batch_size


@dataclass(frozen=True, eq=False)
class ProblemSample:
    """A problem to learn from, and what tells it apart.

    Attributes:
        space: The problem with its simulator.
        index: Number of the problem; seeds what a learner draws on it.
        reference: Seconds of the best heuristic construction; nan where it is not needed.
    """

    space: SearchSpace
    index: int
    reference: float = float("nan")


@dataclass(frozen=True)
class ProblemDraws:
    """A distribution of problems. Problem ``i`` is the same each time.

    What is not listed here is as the arguments of ``ProblemDataModule`` of that name.

    Attributes:
        families: Names of random families; problem ``i`` is of family ``i mod their number``
            unless it is of a captured graph.
        part: Part of the split that captured graphs are from: train, validation or test.
        seed: The seed of all problems.
        large_ops: Least and most ops of large problems; the most holds with micro-batches.
        batch: Least and most of the captured batch.
        presets: Names of clusters; empty for drawn clusters alone.
    """

    families: tuple[str, ...]
    part: str
    seed: int
    ops: tuple[int, int]
    devices: tuple[int, int]
    clusters: tuple[str, ...]
    microbatches: tuple[int, ...]
    captured: float = 0.0
    large: float = 0.0
    large_ops: tuple[int, int] = (1_000, 5_000)
    batch: tuple[float, float] = (1.0, 1.0)
    datasets: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    on_presets: float = 0.0
    tight: float = 0.0
    groups: tuple[int, int] = GROUPS

    def problem(self, index: int) -> Problem:
        """Return problem number ``index``."""
        rng = np.random.default_rng([self.seed + index, TELLING])
        captured = rng.random() < self.captured
        large = rng.random() < self.large
        if captured:
            return self._captured(index, large, rng)
        return random_families.random_problem(
            self.families[index % len(self.families)],
            self.seed + index,
            random_families.RandomDraws(
                ops=self.large_ops if large else self.ops,
                devices=self.devices,
                clusters=self.clusters,
                microbatches=self.microbatches,
                most_ops=max(
                    random_families.MOST_OPS, self.large_ops[1] if large else 0
                ),
            ),
        )

    def exposure(self) -> Exposure:
        """Return the exposure of these problems: the families and graphs that a network sees."""
        if self.captured > 0:
            graphs = self._graphs
        else:
            graphs = []
        if graphs and self.on_presets > 0:
            presets = self.presets
        else:
            presets = ()
        return describe_drawn_exposure(
            self.families, graphs, (*self.clusters, *presets)
        )

    @cached_property
    def _graphs(self) -> list[tuple[CapturedStore, str]]:
        """Return the captured graphs of the part, by store and name; graphs are read once."""
        stores = (open_shipped_store(), *map(find_dataset, self.datasets))
        return [(store, name) for store in stores for name in store.part(self.part)]

    def _captured(self, index: int, large: bool, rng: np.random.Generator) -> Problem:
        store, name = self._graphs[int(rng.choice(len(self._graphs)))]
        if self.presets and rng.random() < self.on_presets:
            cluster = make_preset(self.presets[int(rng.integers(len(self.presets)))])
            count = self.microbatches[int(rng.integers(len(self.microbatches)))]
            if large:
                groups = None
            else:
                groups = int(np.exp(rng.uniform(*np.log(self.groups))))
            if rng.random() < self.tight:
                memory = TIGHT_MEMORY
            else:
                memory = AMPLE
            options: dict[str, Any] = {
                "microbatches": count,
                "groups": groups,
                "memory": memory,
            }
            return dataset_problem(store.graph(name), cluster, **options)
        return draw_captured_problem(
            store,
            name,
            self.seed + index,
            CapturedDraws(
                groups=None if large else self.groups,
                devices=self.devices,
                clusters=self.clusters,
                microbatches=self.microbatches,
                batch=self.batch,
                most_ops=self.large_ops[1] if large else random_families.MOST_OPS,
            ),
        )


class Problems(Dataset[ProblemSample]):
    """A data set of problems, drawn when they are asked for.

    Args:
        draws: What the problems are drawn from.
        reference: Whether to run the heuristics; such problems are kept once they are made.
        pool: Number of problems that are met over and over, and kept; None: each is met once.
    """

    def __init__(
        self, draws: ProblemDraws, *, reference: bool, pool: int | None = None
    ) -> None:
        self.draws = draws
        self.reference = reference
        self.pool = pool
        self.made: dict[int, ProblemSample] = {}

    def __getitem__(self, index: int) -> ProblemSample:
        if self.pool:
            index = index % self.pool
        if index in self.made:
            return self.made[index]
        space = SearchSpace(self.draws.problem(index))
        if not self.reference and not self.pool:
            return ProblemSample(space, index)
        if self.reference:
            seconds = reference_seconds(space)
        else:
            seconds = float("nan")
        self.made[index] = ProblemSample(space, index, seconds)
        return self.made[index]


def reference_seconds(space: SearchSpace) -> float:
    """Return the seconds of the best heuristic construction, nan where none fits."""
    try:
        return Portfolio().place(space.problem, space=space).step_time
    except (GnnplaceError, InfeasibleError):
        return float("nan")


def as_list(samples: list[ProblemSample]) -> list[ProblemSample]:
    """Return the samples as a list, which is what a batch is."""
    return samples


class ProblemDataModule(LightningDataModule):
    """Problems for learning; families and clusters kept for validation and test.

    Args:
        families: Families to train on.
        validation_families: Families to validate on.
        test_families: Families to test on.
        clusters: Types of clusters to train and validate on; the test adds ``two-tier``.
        ops: Least and most ops before micro-batches, of training problems.
        held_out_ops: Least and most ops of validation and test problems.
        devices: Least and most devices.
        microbatches: Numbers of micro-batches to draw from.
        problems: Training problems an epoch.
        validation_problems: Number of validation problems.
        test_problems: Number of test problems.
        captured: Share of problems that are drawn from captured graphs, each of its own part of
            the split by model family.
        large: Share of problems that are large: of ``large_ops`` ops, or a captured graph whole.
        large_ops: Least and most ops of large problems.
        datasets: Datasets, beside the store, that captured graphs are drawn from.
        presets: Names of clusters for captured graphs, beside drawn clusters.
        on_presets: Share of captured problems that are on one of ``presets``.
        tight: Share of those on presets whose devices have tight memory.
        groups: Least and most groups of a captured graph.
        pool: Number of training problems that are met over and over; None: each is met once.
        batch_size: The number of problems of a step.
        seed: The seed of the training problems; validation and test problems are always the same.
    """

    def __init__(
        self,
        families: tuple[str, ...] = random_families.TRAIN,
        validation_families: tuple[str, ...] = random_families.VALIDATION,
        test_families: tuple[str, ...] = random_families.TEST,
        clusters: tuple[str, ...] = random_families.TRAIN_CLUSTERS,
        ops: tuple[int, int] = (30, 150),
        held_out_ops: tuple[int, int] = (40, 260),
        devices: tuple[int, int] = (2, 8),
        microbatches: tuple[int, ...] = random_families.MICROBATCHES,
        problems: int = 1000,
        validation_problems: int = 64,
        test_problems: int = 100,
        captured: float = 0.0,
        large: float = 0.0,
        large_ops: tuple[int, int] = (1_000, 5_000),
        datasets: tuple[str, ...] = (),
        presets: tuple[str, ...] = (),
        on_presets: float = 0.0,
        tight: float = 0.0,
        groups: tuple[int, int] = GROUPS,
        pool: int | None = None,
        batch_size: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_least("data", batch_size=(batch_size, 1))
        self.batch_size = batch_size
        self.problems = problems
        self.counts = {"validation": validation_problems, "test": test_problems}
        begin = TRAIN_SEEDS * (seed + 1)
        draws = ProblemDraws(
            families,
            TRAIN,
            begin,
            ops,
            devices,
            clusters,
            microbatches,
            captured,
            large,
            large_ops,
            datasets=datasets,
            presets=presets,
            on_presets=on_presets,
            tight=tight,
            groups=groups,
        )
        # Held-out problems have other families, sizes and seeds; tests add a type of cluster.
        validation = replace(
            draws,
            families=validation_families,
            part=VALIDATION,
            seed=VALIDATION_SEEDS,
            ops=held_out_ops,
        )
        test = replace(
            validation,
            families=test_families,
            part=TEST,
            seed=TEST_SEEDS,
            clusters=(*clusters, "two-tier"),
        )
        # Only training varies the batch; only held-out problems need the heuristics' seconds.
        self.train = Problems(replace(draws, batch=BATCH), reference=False, pool=pool)
        self.held_out = {
            "validation": Problems(validation, reference=True),
            "test": Problems(test, reference=True),
        }

    def exposures(self) -> tuple[Exposure, Exposure]:
        """Return the exposures of training and of validation."""
        return self.train.draws.exposure(), self.held_out["validation"].draws.exposure()

    def train_dataloader(self) -> DataLoader[ProblemSample]:
        """Return a loader of training problems, which are new in each epoch unless pooled."""
        return ResumableLoader(
            self.train,
            batch_size=self.batch_size,
            sampler=EpochSampler(self.problems, *self.process),
            collate_fn=as_list,
        )

    @property
    def process(self) -> tuple[int, int]:
        """Return the number of this process and of all processes of the run."""
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def val_dataloader(self) -> DataLoader[ProblemSample]:
        """Return a loader of the validation problems, the same each time."""
        return self._held_out("validation")

    def test_dataloader(self) -> DataLoader[ProblemSample]:
        """Return a loader of the test problems, the same each time."""
        return self._held_out("test")

    predict_dataloader = test_dataloader

    def transfer_batch_to_device(
        self, batch: list[ProblemSample], device: torch.device, dataloader_idx: int
    ) -> list[ProblemSample]:
        """Return the batch as it is.

        Problems stay on the CPU, where everything that is learned from them is made.
        """
        return batch

    def _held_out(self, part: str) -> DataLoader[ProblemSample]:
        return DataLoader(
            self.held_out[part],
            batch_size=self.batch_size,
            sampler=HeldOutSampler(self.counts[part], *self.process),
            collate_fn=as_list,
        )
