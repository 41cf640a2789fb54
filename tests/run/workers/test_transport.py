"""Tensors arrive as they left: numbers, types and strides; over several rounds."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from gnnplace.errors import UnsupportedError
from gnnplace.run.workers import transport
from gnnplace.run.workers.board import Board
from gnnplace.run.workers.tasks import Task, run_tasks
from gnnplace.run.workers.transport import (
    Message,
    join_group,
    make_transport,
    meeting_place,
    overlaps,
)

ROUNDS = 3


def examples() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "dense": base,
        "transposed": base.permute(2, 0, 1),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "slice with gaps": torch.arange(60.0).reshape(6, 10)[:, 2:5],
        "expanded": torch.arange(4.0).expand(3, 4),
        "expanded inside": torch.arange(6.0).reshape(2, 1, 3).expand(2, 5, 3),
        "unfolded": torch.arange(10.0).unfold(0, 4, 2),
        "bool": torch.tensor([True, False]),
        "int64": torch.arange(5),
        "bfloat16": torch.randn(7).bfloat16(),
    }


def expected_in_round(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    return tensor if tensor.dtype == torch.bool else tensor + turn


def in_round(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """Other numbers each round, the same layout."""
    if tensor.dtype == torch.bool:
        return tensor.clone()
    storage = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size())
    storage = storage.to(tensor.dtype)
    whole = tensor.as_strided((storage.numel(),), (1,), 0)
    storage.copy_(whole + turn)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def exchange(name: str, wrong_strides: bool = False) -> list[str]:
    tensors = examples()
    messages = tuple(
        Message(
            0,
            1,
            tuple(t.shape),
            torch.empty(t.shape).stride() if wrong_strides else t.stride(),
            t.dtype,
        )
        for t in tensors.values()
    )
    board = Board(2)
    carrier = make_transport(name, messages, board)

    def send() -> None:
        carrier.open(0, torch.device("cpu"))
        sends = [carrier.sender(i) for i in range(len(messages))]
        for turn in range(1, ROUNDS + 1):
            board.barrier(0, turn)
            for function, tensor in zip(sends, tensors.values(), strict=True):
                sent = in_round(tensor, turn)
                function(sent, turn)
                sent.zero_()  # what left is a copy
            carrier.finish_round()
        carrier.close()

    def receive() -> list[str]:
        carrier.open(1, torch.device("cpu"))
        receives = [carrier.receiver(i) for i in range(len(messages))]
        faults = []
        for turn in range(1, ROUNDS + 1):
            board.barrier(1, turn)
            for function, (what, tensor) in zip(receives, tensors.items(), strict=True):
                found = function(turn)
                if not torch.equal(found, expected_in_round(tensor, turn)):
                    faults.append(f"{what}: numbers in round {turn}")
                if (
                    tensor.numel()
                    and found.stride() != tensor.stride()
                    and not wrong_strides
                ):
                    faults.append(f"{what}: strides {found.stride()}")
        carrier.close()
        return faults

    try:
        return run_tasks([Task("0", send, 0), Task("1", receive, 0)], timeout=20)[1]
    finally:
        carrier.dispose()


@pytest.mark.parametrize("name", ["shm", "gloo"])
def test_tensors_arrive_as_they_left(name):
    assert exchange(name) == []


@pytest.mark.parametrize("name", ["shm", "gloo"])
def test_a_slice_arrives_at_the_same_place_in_a_cache_line(name):
    """Kernels may round differently elsewhere."""
    whole = torch.arange(30.0).reshape(5, 6)
    part = whole[3:]
    assert part.data_ptr() % 64 == 8
    message = Message(0, 1, (2, 6), (6, 1), torch.float32)
    board = Board(2)
    carrier = make_transport(name, (message,), board)

    def send() -> None:
        carrier.open(0, torch.device("cpu"))
        carrier.sender(0)(part, 1)
        carrier.finish_round()
        carrier.close()

    def receive() -> tuple[int, bool]:
        carrier.open(1, torch.device("cpu"))
        found = carrier.receiver(0)(1)
        answer = found.data_ptr() % 64, torch.equal(found, part)
        carrier.close()
        return answer

    try:
        found = run_tasks([Task("0", send, 0), Task("1", receive, 0)], timeout=20)[1]
    finally:
        carrier.dispose()
    assert found == (8, True)


def test_a_layout_other_than_expected_still_brings_the_numbers():
    assert exchange("shm", wrong_strides=True) == []


def test_shared_memory_is_refused_where_stores_are_seen_out_of_order(monkeypatch):
    monkeypatch.setattr(transport, "has_ordered_stores", lambda: False)
    with pytest.raises(UnsupportedError, match="transport='gloo'"):
        make_transport("shm", (), Board(1))


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3), (3, 1), False),
        ((2, 3), (0, 1), True),
        ((4, 4), (2, 1), True),
        ((1, 4), (0, 1), False),
        ((3, 4), (1, 3), False),
        ((2, 2), (1, 1), True),
    ],
)
def test_overlaps(shape, stride, expected):
    assert overlaps(shape, stride) is expected


def test_forked_workers_add_up_and_meet_again_elsewhere() -> None:
    """Two groups one after the other, each at a place of its own."""
    for count in (2, 3):
        with meeting_place() as place:
            tasks = [
                Task(f"process {k}", lambda k=k, n=count, p=place: _sum(p, k, n))
                for k in range(count)
            ]
            assert run_tasks(tasks, timeout=60.0) == [count * (count + 1) / 2] * count


def _sum(place: int, rank: int, count: int) -> float:
    join_group(place, rank, count, timedelta(seconds=60))
    value = torch.tensor(rank + 1.0)
    dist.all_reduce(value)
    dist.destroy_process_group()
    return float(value)
