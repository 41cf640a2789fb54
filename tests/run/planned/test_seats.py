"""Which process has which rank, replica and shard."""

import pytest

from gnnplace.errors import MismatchError
from gnnplace.planning.plans import plan_model
from gnnplace.plans.reading import check_plan
from gnnplace.run.planned.seats import Seat, Seats, make_seats
from tests.run.planned.toys import cpus, toy, toy_plan

SEATS = Seats(2, ((1,), (2,)), tuple(f"cpu:{i}" for i in range(6)))


def test_processes_are_numbered_rank_by_rank_then_replica_then_shard():
    assert [SEATS.of(p) for p in range(6)] == [
        (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip
    assert all(SEATS.process(*SEATS.of(p)) == p for p in range(6))
    assert SEATS.members(1) == [[2, 3], [4, 5]]


def test_every_process_has_one_source_and_is_among_its_targets():
    seats = [Seat(SEATS, p, *SEATS.of(p), None, None, None) for p in range(6)]
    for seat in seats:
        other = 1 - seat.rank
        source = seats[seat.sources(other)]
        assert seat.process in source.targets(seat.rank)
        assert source.replica == seat.replica
    assert [seats[0].targets(1), seats[2].targets(0), seats[3].targets(0)] == [
        [2, 3],
        [0],
        [],
    ]


def plan_with(devices):
    file = toy_plan("pp=2,dp=2,microbatch_size=4").file
    stages = [
        stage.model_copy(update={"devices": [[row] for row in rows]})
        for stage, rows in zip(file.stages, devices, strict=True)
    ]
    return file.model_copy(update={"stages": stages})


def test_meshes_that_cannot_be_run_are_refused():
    assert make_seats(plan_with([[["a"], ["b"]], [["c"], ["d"]]])).devices == tuple(
        "abcd"
    )
    with pytest.raises(MismatchError, match=r"1 and 2 replicas; .* only predicted"):
        make_seats(plan_with([[["a"], ["b"]], [["c", "d"]]]))


def test_a_search_finds_a_plan_for_workers_of_this_machine():
    workload = toy(batch=4)
    (plan,) = plan_model(
        workload.model,
        cpus(2),
        workload.inputs,
        loss=workload.loss,
        batch=4,
        budget=0.2,
    )
    assert plan.feasible
    assert any("estimated" in notice for notice in plan.notices)
    assert make_seats(plan.file).count <= 2
    assert check_plan(plan.file).rows
