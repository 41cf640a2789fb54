"""What a worker's memory has grown by at most, and nothing where the kernel does not say."""

from __future__ import annotations

import mmap

import pytest
import torch

from gnnplace.runtime.peak import PeakMemory, StepPeak, storage_bytes
from gnnplace.runtime.workers import Task, run_tasks

MEGA = 2**20
here = pytest.mark.skipif(PeakMemory().bytes() is None, reason="this kernel does not tell")


def grown(size, times):
    def run():
        peak = PeakMemory()
        for _ in range(times):
            with mmap.mmap(-1, size) as pages:  # Not the heap, whose holes differ by machine.
                pages[:: mmap.PAGESIZE] = b"1" * len(pages[:: mmap.PAGESIZE])
        return peak.bytes()

    return run_tasks([Task("worker", run)], timeout=60)[0]


@here
@pytest.mark.parametrize("times", [1, 10])
def test_the_peak_is_what_lives_at_a_time(times):
    small = grown(100 * MEGA, times)
    assert 99 * MEGA < small < 130 * MEGA
    assert 195 * MEGA < grown(300 * MEGA, times) - small < 205 * MEGA


@here
def test_what_was_there_before_does_not_count():
    block = torch.ones(100 * MEGA)
    assert grown(MEGA, 1) < 30 * MEGA  # of 400 that were there; forking itself takes some
    assert block[0] == 1


def test_a_kernel_that_does_not_tell_is_no_error(tmp_path):
    assert PeakMemory(tmp_path / "no", tmp_path / "no" / "clear").bytes() is None
    status, clear = tmp_path / "status", tmp_path / "clear"
    status.write_text("Name:\tx\nVmHWM:\t  30 kB\nVmRSS:\t  10 kB\n")
    assert PeakMemory(status, clear).bytes() == 20 * 1024
    assert clear.read_text() == "5"
    status.write_text("Name:\tx\n")
    assert PeakMemory(status, clear).bytes() is None


def test_a_steps_peak_is_what_is_alive_at_a_time():
    held, peak = torch.ones(MEGA), StepPeak(torch.device("cpu"))
    with peak.measured():
        first = torch.ones(4 * MEGA // 4)
        second = torch.ones(2 * MEGA // 4)
        del first
        third = torch.ones(3 * MEGA // 4)
        held.add_(1.0)
        del second, third
    assert peak.bytes == 6 * MEGA


def test_nothing_allocated_is_nothing(capfd):
    peak = StepPeak(torch.device("cpu"))
    with peak.measured():
        pass
    assert peak.bytes == 0.0
    assert capfd.readouterr() == ("", "")


def test_storages_count_once():
    whole = torch.ones(8, 4)
    assert storage_bytes([whole, whole[2:], whole.t(), torch.ones(3)]) == 8 * 4 * 4 + 12
