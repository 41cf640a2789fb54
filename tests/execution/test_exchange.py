"""What hosts tell each other, over a store inside this process."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from gnnplace.errors import ExecutionError
from gnnplace.execution import exchange
from gnnplace.execution.exchange import Exchange
from gnnplace.execution.worker import Records
from gnnplace.runtime.board import DONE, OFFSET, Board
from gnnplace.runtime.hosts import Hosts
from gnnplace.runtime.memory import shared_words

HOST_OF, TICKS, STEPS = (0, 1), 3, 6


@pytest.fixture
def pair():
    """Two hosts with a worker each: their boards, records and exchanges."""
    store, sides = dist.HashStore(), []
    for rank in (0, 1):
        hosts = Hosts(rank, 2, ("here", 1), "run", store)
        records = [Records(shared_words(STEPS * (2 * TICKS + 1)), TICKS) for _ in HOST_OF]
        board = Board(2)
        sides.append((board, records, Exchange(hosts, HOST_OF, records, board)))
    return sides


def work(side, worker, steps):
    """Fills in steps of a worker."""
    board, records, _ = side
    row = records[worker].row
    for step in range(board.get(worker, DONE), steps):
        for k in range(row):
            records[worker].words[step * row + k] = 1000 * step + k
    board.put(worker, DONE, steps)


def test_steps_of_another_host_arrive_by_this_host_s_clock(pair):
    first, second = pair
    second[0].put(1, OFFSET, 50)
    for steps in (2, 5):
        work(second, 1, steps)
        second[2].update()
        first[2].update()
        assert first[0].get(1, DONE) == steps
    record = first[1][1]
    assert record.tick(4, 1, 0) == 4000 + 2 + 50  # wall clocks are moved
    assert record.tick(4, 1, 1) == 4000 + 3  # CPU times are not
    assert record.switches(4) == 4000 + 6


def test_nothing_new_is_nothing_told(pair):
    first, second = pair
    second[2].update()
    first[2].update()
    assert first[0].get(1, DONE) == 0


def test_a_failure_ends_the_other_host_and_brings_what_was_done(pair, monkeypatch):
    first, second = pair
    monkeypatch.setattr(exchange, "LOOK", -1.0)
    first[2].now_and_then()
    work(second, 1, 3)
    second[2].end(ExecutionError("worker 'cpu:1' was killed by SIGKILL"))
    with pytest.raises(ExecutionError, match="host 1 failed: worker 'cpu:1'"):
        first[2].now_and_then()
    first[2].end(None)
    assert first[0].get(1, DONE) == 3


def test_a_lost_connection_is_explained_by_the_host_that_was_lost(pair, monkeypatch):
    first, second = pair
    lost = ExecutionError("worker 'cpu:0' failed: the connection to host 1 is lost")
    monkeypatch.setattr(exchange, "PATIENCE", 0.1)
    assert first[2].cause(lost) is lost
    other = ExecutionError("no memory")
    assert first[2].cause(other) is other
    second[2].end(ExecutionError("worker 'cpu:1' was killed by SIGKILL"))
    assert str(first[2].cause(lost)) == "host 1 failed: worker 'cpu:1' was killed by SIGKILL"
    assert first[2].cause(other) is other


def test_the_first_host_does_not_wait_for_ever(pair, monkeypatch):
    monkeypatch.setattr(exchange, "GRACE", 0.1)
    pair[0][2].end(None)
    assert pair[0][0].get(1, DONE) == 0
