"""The barrier holds everybody back, with a core each or one for all."""

from __future__ import annotations

import time

import pytest

from gnnplace.run.workers.board import ARRIVED, STEP, Board
from gnnplace.run.workers.memory import make_shared_words
from gnnplace.run.workers.tasks import Task, run_tasks


@pytest.mark.parametrize("crowded", [False, True])
def test_nobody_passes_the_barrier_before_all_are_there(crowded):
    board, steps = Board(3, crowded), 20
    seen = make_shared_words(3)

    def walk(worker: int) -> int:
        ahead = 0
        for step in range(1, steps + 1):
            if worker == step % 3:
                time.sleep(0.002)
            seen[worker] = step
            board.barrier(worker, step)
            ahead += any(seen[other] < step for other in range(3))
        return ahead

    tasks = [Task(str(w), lambda w=w: walk(w), 0) for w in range(3)]
    assert run_tasks(tasks, timeout=20) == [0, 0, 0]


def test_words_of_workers_are_apart():
    board = Board(2)
    before = board.snapshot()
    board.put(1, STEP, 5)
    assert (board.get(1, STEP), board.get(0, STEP), board.get(1, ARRIVED)) == (5, 0, 0)
    assert board.snapshot() != before
