"""Hosts: who they are, which devices are whose, and that they agree."""

from __future__ import annotations

import os
import threading

import pytest
import torch.distributed as dist

from gnnplace.errors import ExecutionError, InputError, MismatchError
from gnnplace.run.workers import hosts as room
from gnnplace.run.workers.hosts import Hosts, from_environment
from gnnplace.run.workers.tasks import available_cores


def some(count, store=None):
    store = store or dist.HashStore()
    return [Hosts(rank, count, ("here", 1), "run", store) for rank in range(count)]


def together(hosts, call):
    """The same call on all hosts at once; results or errors."""
    found = [None] * len(hosts)

    def one(k):
        try:
            found[k] = call(hosts[k])
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=one, args=(k,)) for k in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_process_alone_has_no_hosts(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert from_environment() is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert from_environment() is None


def test_half_an_environment_is_told(monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="RANK"):
        from_environment()


def test_devices_are_dealt_out_in_their_order():
    first, _ = some(2)
    assert first.host_of([0, 1, 2, 3], 4) == (0, 0, 1, 1)
    assert first.host_of([1, 2], 4) == (0, 1)
    with pytest.raises(InputError, match="evenly"):
        first.host_of([0, 1, 2], 3)
    with pytest.raises(InputError, match="host 0"):
        first.host_of([2, 3], 4)


def test_hosts_on_one_machine_take_different_cores():
    cores = available_cores()
    found = together(some(2), lambda host: host.free_cores(1))
    assert sorted(map(sorted, found)) == [cores, cores]
    if len(cores) > 1:
        assert found[0][0] != found[1][0]


def test_hosts_that_do_different_things_are_told():
    assert together(some(2), lambda host: host.agree("run", "same")) == [None, None]
    errors = together(some(2), lambda host: host.agree("run", f"mine {host.rank}"))
    assert all(isinstance(error, MismatchError) for error in errors)


def test_a_host_that_does_not_come_is_told(monkeypatch):
    monkeypatch.setattr(room, "MEET", 0.2)
    with pytest.raises(ExecutionError, match="host 1 did not come"):
        some(2)[0].agree("run", "x")


def test_runs_of_one_job_do_not_meet_each_other(monkeypatch):
    monkeypatch.setitem(os.environ, "TORCHELASTIC_RUN_ID", "job")
    assert room._prefix() != room._prefix()
