"""How problems reach the processes of a run: each process its own, and again after an interruption.

The samplers are distributed ones already, so Lightning leaves them as they are: with its own it
would repeat the problems of the first epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, DistributedSampler

from gnnplace.errors import InputError

T = TypeVar("T")


class EpochSampler(DistributedSampler[int]):
    """``count`` new problems each epoch, every process an equal share; the remainder is left out.

    Args:
        count: problems of an epoch, of all processes together.
        rank: number of this process.
        world: number of processes.

    Raises:
        InputError: fewer problems than processes.
    """

    def __init__(self, count: int, rank: int = 0, world: int = 1) -> None:
        check_share(count, world)
        super().__init__(range(count), world, rank, shuffle=False, drop_last=True)  # type: ignore[arg-type]
        self.count, self.skipped = count, 0

    def __iter__(self) -> Iterator[int]:
        skipped, self.skipped = self.skipped, 0
        first = self.epoch * self.count
        return (first + i for i in list(super().__iter__())[skipped:])


class HeldOutSampler(DistributedSampler[int]):
    """The same ``count`` problems each time, each in one process alone.

    Args:
        count: problems of all processes together.
        rank: number of this process.
        world: number of processes.

    Raises:
        InputError: fewer problems than processes.
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
    """Each process needs a problem, lest the others wait for it for ever."""
    if count < world:
        raise InputError(f"data: {count} problems for {world} processes; give each at least one")


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
        """Batches of this epoch that were taken, by each process."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Skips the batches that were taken; after a whole epoch none."""
        self._epochs.skipped = state["taken"] % len(self) * self._size

    @property
    def _epochs(self) -> EpochSampler:
        assert isinstance(self.sampler, EpochSampler)
        return self.sampler

    @property
    def _size(self) -> int:
        assert self.batch_size is not None
        return self.batch_size
