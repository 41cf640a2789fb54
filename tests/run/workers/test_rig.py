"""Processes of one group answer in order, and their steps are timed by turns."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from gnnplace.errors import ExecutionError
from gnnplace.run.workers.rig import run_group, time_steps


def work(rank: int) -> tuple[float, list[str], dict[str, list[float]]]:
    """The sum over the group, what ran here in which order, and seconds."""
    total, ran = torch.tensor(float(rank + 1)), list[str]()
    dist.all_reduce(total)
    runs = {
        "all": lambda: ran.append("all"),
        "one": None if rank else lambda: ran.append("one"),
    }
    wall, cpu = time_steps(runs, 2, warm_up=1)
    assert wall.keys() == cpu.keys()
    return float(total), ran, wall


def test_a_group_answers_in_order_and_takes_turns() -> None:
    first, second = run_group(work, ["a", "b"], timeout=60.0)
    assert (first[0], second[0]) == (3.0, 3.0)
    assert first[1] == ["all", "one"] * 3
    assert second[1] == ["all"] * 3
    assert [len(seconds) for seconds in first[2].values()] == [2, 2]


def fails(rank: int) -> None:
    if rank:
        raise ValueError("no such file")
    dist.barrier()


def test_one_that_fails_is_named() -> None:
    with pytest.raises(
        ExecutionError, match="worker 'b' failed: ValueError: no such file"
    ):
        run_group(fails, ["a", "b"], timeout=30.0)
