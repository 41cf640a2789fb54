"""Shared memory is shared, aligned and nameless."""

from __future__ import annotations

import pytest
import torch

from gnnplace.runtime.memory import Arena, contiguous_stride, shared_bytes, shared_words, span
from gnnplace.runtime.workers import Task, run_tasks
from tests.leftovers import nothing_shared


def test_what_a_worker_writes_the_parent_reads():
    with nothing_shared():
        words, data = shared_words(3), shared_bytes(5)

        def write() -> None:
            words[1] = -7
            data[4] = 9

        run_tasks([Task("w", write)])
        assert (list(words), data.tolist()) == ([0, -7, 0], [0, 0, 0, 0, 9])


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
