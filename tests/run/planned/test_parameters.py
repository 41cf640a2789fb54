"""Parts of parameters."""

import pytest
import torch
from torch import nn

from gnnplace.run.planned import parameters
from gnnplace.run.planned.parameters import (
    Parameters,
    fill,
    make_local_parameter,
    split_into_rows,
)
from gnnplace.run.planned.seats import Seat, Seats
from gnnplace.sharding.captured.layout import REPLICATED

WHOLE = (REPLICATED,)


def seat(replica=0, replicas=1):
    seats = Seats(replicas, ((1,),), tuple(f"cpu:{i}" for i in range(replicas)))
    return Seat(
        seats, replica, 0, replica, 0, torch.device("cpu"), None, {(False,): None}
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 20])
def test_parts_are_equal_and_side_by_side_the_whole(count):
    tensor = torch.arange(14.0).view(2, 7)
    rows = split_into_rows(tensor, count)
    assert rows.shape == (count, -(-14 // count))
    assert torch.equal(rows.reshape(-1)[:14], tensor.reshape(-1))
    assert not rows.reshape(-1)[14:].any()


def test_without_replicas_the_optimizer_has_the_leaf_itself():
    parameter = nn.Parameter(torch.ones(3))
    held = make_local_parameter(seat(), "w", parameter, WHOLE, (False,), (0,), 3)
    assert held.part is held.leaf is parameter
    assert not held.split


def test_with_zero_every_replica_has_its_run_of_elements():
    parameter = nn.Parameter(torch.arange(5.0))
    parts = [
        make_local_parameter(seat(r, 2), "w", parameter, WHOLE, (False,), (0,), 1).part
        for r in range(2)
    ]
    assert torch.equal(
        torch.cat([p.detach() for p in parts]), torch.tensor([0, 1, 2, 3, 4, 0.0])
    )
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    assert not make_local_parameter(
        seat(0, 2), "w", frozen, WHOLE, (False,), (0,), 1
    ).split


def test_a_freed_leaf_gets_its_memory_back_and_graphs_that_saved_it_go_on():
    leaf = nn.Parameter(torch.arange(3.0))
    x = torch.ones(3, requires_grad=True)
    y = (leaf * x).sum()
    leaf.untyped_storage().resize_(0)
    fill(leaf, torch.arange(3.0))
    y.backward()
    assert torch.equal(x.grad, torch.arange(3.0))


def test_squares_count_what_several_processes_have_once():
    held = [
        make_local_parameter(
            seat(r, 2), "w", nn.Parameter(torch.zeros(4)), WHOLE, (False,), (0,), 0
        )
        for r in range(2)
    ]
    total = 0.0
    for replica, each in enumerate(held):
        each.leaf.grad = torch.full((4,), 2.0)
        total += float(Parameters(seat(replica, 2), 0, {"w": each}, {}).squares())
    assert total == 16.0


def test_many_gradients_go_in_few_collectives(monkeypatch):
    monkeypatch.setattr(parameters, "BUCKET", 100)

    sizes = [(10, torch.float32), (10, torch.float32), (10, torch.float32), (40, torch.float32),
             (5, torch.float64), (5, torch.float64)]  # fmt: skip
    tensors = [torch.zeros(n, dtype=dtype) for n, dtype in sizes]
    assert list(parameters.buckets(tensors)) == [[0, 1], [2], [3], [4, 5]]
    assert list(parameters.buckets([])) == []
    large = [torch.ones(n) for n in (10, 10, 10, 50, 5)]
    assert list(parameters.buckets(large)) == [[0, 1], [2], [3], [4]]
