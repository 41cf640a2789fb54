"""The order of ZB-V beside PyTorch's own schedule, and what it keeps in flight."""

from __future__ import annotations

import pytest
from torch.distributed.pipelining import schedules

from gnnplace.plans.order.orders import (
    Pipeline,
    chunk_ranks,
    limits,
    make_fixed_rows,
    make_rank_actions,
    time_rows,
)

KINDS = {schedules.F: 0, schedules.I: 1, schedules.W: 2}


def listed_by_torch(ranks: int, microbatches: int, rank: int) -> list[list[int]]:
    """The actions of a rank as `ScheduleZBVZeroBubble` lists them, without any process."""
    schedule = object.__new__(schedules.ScheduleZBVZeroBubble)
    schedule.pp_group_size = ranks
    schedule.num_stages = 2 * ranks
    schedule._n_microbatches = microbatches
    actions = schedule._calculate_single_rank_operations(rank)
    return [
        [action.stage_index, KINDS[action.computation_type], action.microbatch_index]
        for action in actions
        if action is not None
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 7, 8, 16, 33])
def test_it_is_pytorch_s_order(ranks, microbatches):
    order = make_fixed_rows("zbv", ranks, 2 * ranks, microbatches)
    assert order.apart
    for rank in range(ranks):
        assert order.rows[rank].tolist() == listed_by_torch(ranks, microbatches, rank)


def test_the_first_rank_keeps_twice_its_ranks_of_the_first_chunk():
    assert limits("zbv", 4, 16) == (8, 7, 6, 5, 4, 3, 2, 1)
    assert max(limits("zbv", 4, 2)) == 2


def test_equal_passes_leave_no_bubble_but_the_fill():
    ranks, microbatches = 4, 16
    line = Pipeline(
        rank=chunk_ranks("zbv", ranks),
        seconds=((1.0, 1.0, 1.0),) * (2 * ranks),
        sent=(0.0,) * (2 * ranks - 1),
        microbatches=microbatches,
        apart=True,
        limit=limits("zbv", ranks, microbatches),
    )
    seconds = time_rows(line, make_rank_actions("zbv", line), [0.0] * ranks)
    work = 6.0 * microbatches
    assert work <= seconds <= work + ranks


def test_one_rank_runs_its_passes_in_turns():
    line = Pipeline((0,), ((1.0, 1.0, 1.0),), (), 3, apart=True, limit=(1,))
    assert time_rows(line, make_rank_actions("zbv", line), [0.0]) == pytest.approx(9.0)
