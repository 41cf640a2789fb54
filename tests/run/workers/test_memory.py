"""Shared memory is shared, aligned and nameless."""

from __future__ import annotations

import mmap

import pytest
import torch

from gnnplace.run.workers import memory
from gnnplace.run.workers.memory import (
    Arena,
    PeakMemory,
    StepPeak,
    contiguous_stride,
    make_shared_words,
    span,
    storage_bytes,
)
from gnnplace.run.workers.tasks import Task, run_tasks
from tests.leftovers import nothing_shared

MEGA = 2**20
here = pytest.mark.skipif(
    PeakMemory().bytes() is None, reason="this kernel does not tell"
)


def test_what_a_worker_writes_the_parent_reads():
    with nothing_shared():
        words = make_shared_words(3)

        def write() -> None:
            words[1] = -7

        run_tasks([Task("w", write)])
        assert list(words) == [0, -7, 0]


def test_arena_views_are_aligned_and_apart():
    arena = Arena()
    offsets = [arena.reserve(n) for n in (3, 8, 100, 0, 4)]
    views = [
        arena.view(offset, (1,), None, dtype)
        for offset, dtype in zip(
            offsets,
            [torch.uint8, torch.float64, torch.float32, torch.bool, torch.bfloat16],
            strict=True,
        )
    ]
    for i, view in enumerate(views):
        if i != 3:
            view.fill_(i % 2)
        assert view.data_ptr() % 64 == 0
    assert [float(v) for i, v in enumerate(views) if i != 3] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((), (), 1),
        ((2, 3), (3, 1), 6),
        ((2, 3), (1, 2), 6),
        ((4, 3), (0, 1), 3),
        ((2, 2), (10, 1), 12),
        ((0, 3), (3, 1), 0),
    ],
)
def test_span_is_what_a_tensor_reaches(shape, stride, expected):
    assert span(shape, stride) == expected


def test_contiguous_stride_is_torchs():
    for shape in [(), (3,), (2, 3, 4), (1, 5), (2, 0, 3)]:
        assert contiguous_stride(shape) == torch.empty(shape).stride()


def grown(size, times):
    def run():
        peak = PeakMemory()
        for _ in range(times):
            with mmap.mmap(
                -1, size
            ) as pages:  # Not the heap, whose holes differ by machine.
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
    # Of 400 that were there; forking itself takes some.
    assert grown(MEGA, 1) < 30 * MEGA
    assert block[0] == 1


def test_a_kernel_that_does_not_tell_is_no_error(tmp_path, monkeypatch):
    status, clear = tmp_path / "status", tmp_path / "clear"
    monkeypatch.setattr(memory, "STATUS", tmp_path / "no")
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "no" / "clear")
    assert PeakMemory().bytes() is None
    monkeypatch.setattr(memory, "STATUS", status)
    monkeypatch.setattr(memory, "CLEAR", clear)
    status.write_text("Name:\tx\nVmHWM:\t  30 kB\nVmRSS:\t  10 kB\n")
    assert PeakMemory().bytes() == 20 * 1024
    assert clear.read_text() == "5"
    status.write_text("Name:\tx\n")
    assert PeakMemory().bytes() is None


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
