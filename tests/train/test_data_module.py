from __future__ import annotations

import pytest
from torch.utils.data import Dataset

from gnnplace.errors import InputError
from gnnplace.problem import problem_to_data
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.train.data import captured
from gnnplace.train.data.captured import open_shipped_store
from gnnplace.train.data.captured_graph import read_captured
from gnnplace.train.data.random_families import TEST, RandomDraws, random_problem
from gnnplace.train.data_module import (
    EpochSampler,
    HeldOutSampler,
    ProblemDataModule,
    ResumableLoader,
)

SMALL = {"devices": (2, 3), "microbatches": (1, 2)}


def names(problems, count):
    """Graph or family of each problem."""
    drawn = (problems.draws.problem(i) for i in range(count))
    return [problem.name.rpartition("-")[0] for problem in drawn]


def test_without_captured_graphs_problems_are_of_the_families_in_turn():
    module = ProblemDataModule(ops=(12, 24), **SMALL)
    family = module.train.draws.families[3]
    expected = random_problem(
        family,
        1_000_003,
        RandomDraws(ops=(12, 24), clusters=("shared", "own", "mixed"), **SMALL),
    )
    assert problem_to_data(module.train.draws.problem(3)) == problem_to_data(expected)


def test_a_share_is_drawn_from_captured_graphs_of_the_own_part():
    share = 0.3
    module = ProblemDataModule(
        ops=(12, 24), held_out_ops=(12, 24), captured=share, **SMALL
    )
    store = open_shipped_store()
    parts = {"train": module.train, **module.held_out}
    for part, problems in parts.items():
        drawn = names(problems, 40)
        real = [name for name in drawn if name in store.names]
        assert abs(len(real) / 40 - share) < 0.25
        assert set(real) <= set(store.part(part))
    assert len(set(names(module.train, 40))) > 8


def test_graphs_of_a_dataset_are_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(
        captured, "read_captured", lambda path: read.append(path) or read_captured(path)
    )
    module = ProblemDataModule(captured=1.0, datasets=("networks",), **SMALL)
    names(module.train, 3)
    names(module.train, 3)
    assert read
    assert len(set(read)) == len(read)


def test_a_share_of_problems_on_presets_has_tight_memory():
    presets = {"captured": 1.0, "presets": ("nvlink-v100-4",), "on_presets": 1.0}

    def memories(tight):
        draws = ProblemDataModule(tight=tight, **presets, **SMALL).train.draws
        return [draws.problem(i).cluster.devices[0].memory for i in range(6)]

    ample, tight = memories(0.0), memories(1.0)
    assert set(ample) == {make_preset("nvlink-v100-4").devices[0].memory}
    assert all(less < more for less, more in zip(tight, ample, strict=True))


def test_large_problems_are_large_and_the_same_each_time():
    module = ProblemDataModule(
        ops=(12, 24), large=0.5, large_ops=(300, 600), families=TEST[1:], **SMALL
    )
    sizes = [module.train.draws.problem(i).num_ops for i in range(16)]
    assert 3 <= sum(size > 150 for size in sizes) <= 13
    assert max(sizes) <= 2_000
    again = [module.train.draws.problem(i).num_ops for i in range(16)]
    assert sizes == again


def test_held_out_problems_have_a_reference_and_are_made_once():
    module = ProblemDataModule(held_out_ops=(12, 24), captured=0.5, **SMALL)
    problems = module.held_out["validation"]
    sample = problems[1]
    assert sample.reference > 0
    assert problems[1] is sample


class Numbers(Dataset[int]):
    """Item ``i`` is ``i``."""

    def __init__(self):
        self.made = []

    def __getitem__(self, index):
        self.made.append(index)
        return index


def loader(count=7, size=2, *process):
    return ResumableLoader(
        Numbers(),
        batch_size=size,
        sampler=EpochSampler(count, *process),
        collate_fn=list,
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
    assert [len(list(sampler)) for sampler in samplers] == [
        len(sampler) for sampler in samplers
    ]


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
