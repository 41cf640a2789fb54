from __future__ import annotations

import pytest
from torch.utils.data import Dataset

from gnnplace.errors import InputError
from gnnplace.train.loading import EpochSampler, HeldOutSampler, ResumableLoader


class Numbers(Dataset[int]):
    """Item ``i`` is ``i``."""

    def __init__(self):
        self.made = []

    def __getitem__(self, index):
        self.made.append(index)
        return index


def loader(count=7, size=2, *process):
    return ResumableLoader(
        Numbers(), batch_size=size, sampler=EpochSampler(count, *process), collate_fn=list
    )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_each_epoch_equally_and_epochs_bring_new_problems(world):
    epochs = []
    for epoch in range(3):
        shares = []
        for rank in range(world):
            sampler = EpochSampler(8, rank, world)
            sampler.set_epoch(epoch)
            shares.append(list(sampler))
            assert len(shares[-1]) == len(sampler) == 8 // world
        union = sorted(i for share in shares for i in share)
        assert len(set(union)) == 8 // world * world
        assert set(union) <= set(range(8 * epoch, 8 * epoch + 8))
        epochs += union
    assert len(set(epochs)) == len(epochs)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_held_out_problems_are_each_in_one_process(world):
    samplers = [HeldOutSampler(7, rank, world) for rank in range(world)]
    assert sorted(i for sampler in samplers for i in sampler) == list(range(7))
    assert [len(list(sampler)) for sampler in samplers] == [len(sampler) for sampler in samplers]


@pytest.mark.parametrize("kind", [EpochSampler, HeldOutSampler])
def test_a_process_without_problems_is_an_error(kind):
    with pytest.raises(InputError, match="1 problems for 2 processes"):
        kind(1, 0, 2)


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_a_loader_goes_on_where_its_state_was_kept(taken):
    whole = loader()
    batches = iter(whole)
    for _ in range(taken):
        next(batches)
    rest = loader()
    rest.load_state_dict(whole.state_dict())
    assert list(rest) == [[0, 1], [2, 3], [4, 5], [6]][taken % 4 :]
    assert rest.dataset.made[0] == 2 * (taken % 4)
    assert rest.state_dict() == {"taken": 4}
    assert list(rest) == [[0, 1], [2, 3], [4, 5], [6]]


def test_an_epoch_that_is_left_early_does_not_shorten_the_next():
    several = loader()
    next(iter(several))
    assert len(list(several)) == 4
