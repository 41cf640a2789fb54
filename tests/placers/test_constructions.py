from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from gnnplace.errors import InfeasibleError
from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.base import QUICK
from gnnplace.placers.constructions import (
    CONSTRUCTIONS,
    best_construction,
    cheapest_first,
    run_member,
)
from gnnplace.placers.search.space import NO_BUDGET, count_looks, read_clock
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.microbatching import with_microbatches


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def large():
    """3,000 ops on four devices: the cut moves alone take longer than the budgets below."""
    return SearchSpace(
        with_microbatches(contract.training_chain(num_layers=180, num_devices=4), 8)
    )


def test_the_best_of_all_members_wins_without_a_budget():
    for problem in contract.problems():
        space = SearchSpace(problem)
        best = best_construction(space, rng())
        found = [run_member(row.make(), space, rng()) for row in CONSTRUCTIONS]
        scores = [space.score(f.device, f.order) for f in found if f is not None]
        assert space.score(best.device, best.order) == min(scores)
        assert "no time" not in best.note


def test_a_deadline_of_plenty_changes_nothing():
    space = SearchSpace(contract.training_chain())
    whole = best_construction(space, rng())
    timed = best_construction(space, rng(), time.perf_counter() + 60)
    assert space.score(whole.device, whole.order) == space.score(
        timed.device, timed.order
    )


@pytest.mark.timed
def test_one_member_always_runs_and_the_note_names_the_others(large):
    best_construction(large, rng())  # compiles
    begin = time.perf_counter()
    found = best_construction(large, rng(), begin + 1e-6)
    took = time.perf_counter() - begin
    single = placer("single").search(large, rng(), NO_BUDGET)
    assert (found.device == found.device[0]).all()
    assert large.score(found.device, found.order) >= large.score(
        single.device, single.order
    )
    for name in ("contiguous", "etf", "interleaved"):
        assert name in found.note
    assert took < 0.5


@pytest.mark.timed
@pytest.mark.parametrize("name", ["annealing", "portfolio", "coarse-annealing"])
def test_budgets_are_kept_where_constructions_take_longer(large, name):
    algorithm, problem = placer(name), large.problem
    algorithm.place(contract.training_chain(), budget=0.1)  # compiles
    begin = time.perf_counter()
    best_construction(large, rng())
    whole = time.perf_counter() - begin
    over = [
        algorithm.place(problem, budget=0.2, space=large).seconds - 0.2
        for _ in range(3)
    ]
    assert min(over) < 0.1 < whole


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["contiguous", "interleaved"])
def test_chunks_stop_moving_cuts_at_the_deadline(large, kind):
    algorithm = placer(kind)
    whole = algorithm.search(large, rng(), NO_BUDGET)
    begin = time.perf_counter()
    short = algorithm.search(large, rng(), begin + 1e-6)
    took = time.perf_counter() - begin
    assert large.score(whole.device, whole.order) <= large.score(
        short.device, short.order
    )
    assert took < 0.2
    plain = type(algorithm)(moves=False).search(large, rng(), NO_BUDGET)
    assert large.score(plain.device, plain.order) >= large.score(
        whole.device, whole.order
    )


def test_both_lists_have_the_same_members():
    names = {row.name for row in CONSTRUCTIONS}
    for num_ops in (10, 100_000):
        assert names == {make().name for make in cheapest_first(num_ops)}
        assert cheapest_first(num_ops)[0]().name == "single"
    assert len(cheapest_first(10)) > len(cheapest_first(100_000))


@pytest.mark.parametrize("name", ["portfolio", "annealing"])
def test_what_cannot_run_at_all_is_refused(name):
    """Pins spread the ops over devices that have no links."""
    problem = contract.training_chain()
    pin = np.arange(problem.num_ops, dtype=np.int32) % problem.num_devices
    apart = replace(
        problem,
        cluster=Cluster(problem.cluster.devices, ()),
        pin=pin,
        colocate=(None,) * problem.num_ops,
    )
    for budget in (0.0, 0.1):
        with pytest.raises(InfeasibleError, match=name):
            placer(name).place(apart, budget=budget)


@pytest.fixture
def as_if_large(monkeypatch):
    """Graphs of any size are large ones."""
    for module in ("base", "constructions", "baselines"):
        monkeypatch.setattr(f"gnnplace.placers.{module}.LARGE", 5)


def test_of_a_large_graph_two_members_run_and_those_that_would_be_late_are_named(
    as_if_large,
):
    space = SearchSpace(contract.training_chain())
    with count_looks():
        early = best_construction(space, rng(), read_clock() + 2)
    for name in ("contiguous", "min-cut", "etf"):
        assert name in early.note
    assert "single" not in early.note.split("(no time")[1]
    assert "heft-contention" not in early.note.split("(no time")[1]
    scores = []
    for looks in (1, 5, 20, 100, 1000):
        with count_looks():
            found = best_construction(space, rng(), read_clock() + looks)
        scores.append(space.score(found.device, found.order))
    assert scores == sorted(scores, reverse=True)
    assert "no time" not in found.note


def test_one_device_of_a_large_graph_takes_all_of_its_work(as_if_large, monkeypatch):
    for problem in contract.problems():
        space = SearchSpace(problem)
        quick = placer("single").search(space, rng(), NO_BUDGET)
        monkeypatch.setattr("gnnplace.placers.baselines.LARGE", 10**9)
        whole = placer("single").search(space, rng(), NO_BUDGET)
        monkeypatch.setattr("gnnplace.placers.baselines.LARGE", 5)
        assert space.score(quick.device, quick.order) == pytest.approx(
            space.score(whole.device, whole.order)
        )


def test_a_large_graph_has_quick_bounds_where_there_is_no_time_for_others(as_if_large):
    problem = contract.training_chain(num_layers=20)
    with count_looks():
        late = placer("heft").place(problem, budget=1)
    with count_looks():
        early = placer("heft").place(problem, budget=100)
    whole = placer("heft").place(problem)
    assert QUICK in late.bound_by
    assert QUICK in str(late)
    assert early.bound_by == whole.bound_by
    assert (
        0
        < late.lower_bound
        <= early.lower_bound
        == whole.lower_bound
        <= whole.step_time
    )
