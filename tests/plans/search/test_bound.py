"""The bound is below every plan, one or several chunks a rank, and rises as memory falls."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gnnplace.costs.collectives import COLLECTIVES
from gnnplace.plans.job import SearchOptions
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.search.draft import fit_draft, realize_draft
from gnnplace.plans.search.search import Shortlist, improve_orders, search, under
from gnnplace.plans.search.stage import Pricer
from gnnplace.plans.segments.chain import Tied
from gnnplace.problem.cluster.presets import make_preset
from tests.plans.toys import all_drafts, chain, cluster

JUST = 1 + 1e-9
SCHEDULES = ("1f1b", "zero-bubble", "v", "interleaved:2")


def machines(seed):
    """A model on devices whose memory is tight, on unlike ones, and on both."""
    rng = np.random.default_rng(seed)
    tied = (Tied("w", (0, 3), 1.0),) if seed % 2 else ()
    model = chain(rng, count=4, batch=4, tied=tied)
    slow = ("a100", "t4") if seed % 3 == 1 else ("t4", "a100")
    return model, [
        cluster(3, 75.0),
        cluster(3, 1e9, kinds=slow),
        cluster(3, 75.0, kinds=slow),
    ]


def plans(model, machine):
    """Of every draft, schedule and ZeRO what fits with the least recomputation, in usual orders."""
    fabric = MeshFabric(machine)
    for draft in all_drafts(model, machine):
        pricer = Pricer(model, fabric, draft.size)
        for schedule, zero in itertools.product(SCHEDULES, range(4)):
            other = draft if schedule == "1f1b" else under(model, draft, schedule)
            if other is None or (
                zero and all(s.mesh.replicas == 1 for s in draft.stages)
            ):
                continue
            stages = tuple(replace(s, zero=zero) for s in other.stages)
            made = fit_draft(pricer, replace(other, stages=stages), zero=False)
            priced = None if made is None else realize_draft(pricer, made)
            if priced is not None:
                assert priced.lacking[1] <= 0
                yield priced


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_below_the_bound(seed):
    model, several = machines(seed)
    for machine in several:
        found = search(model, machine, SearchOptions(budget=0.0))
        assert 0 < found.bound <= found.bound_of_one * JUST
        for priced in plans(model, machine):
            one = len(priced.chunks) == len(priced.costs)
            assert priced.step_time * JUST >= (
                found.bound_of_one if one else found.bound
            )


@pytest.mark.parametrize("memory", [60.0, 90.0])
def test_no_order_is_below_the_bound(memory):
    """Fewer micro-batches in flight take less memory and more time."""
    model, machine = (
        chain(np.random.default_rng(5), count=6, batch=8),
        cluster(4, memory),
    )
    found = search(model, machine, SearchOptions(budget=0.0))
    made = Shortlist(model, MeshFabric(machine))
    piped = [x for x in found.best if len(x.chunks) > 1][:6]
    starts = [p for x in piped if (p := made.keep(x.draft)) is not None]
    for _ in improve_orders(starts, made.pricer, made.keep):
        pass
    assert any(p.draft.schedule.endswith("searched") for p in made.best)
    for priced in made.best:
        one = len(priced.chunks) == len(priced.costs)
        assert priced.step_time * JUST >= (found.bound_of_one if one else found.bound)


def test_less_memory_raises_the_bound():
    model = chain(np.random.default_rng(0), count=8, batch=16)
    found = [
        search(model, cluster(4, m), SearchOptions(budget=0.0))
        for m in (1e9, 80.0, 60.0)
    ]
    for bounds in ([x.bound for x in found], [x.bound_of_one for x in found]):
        assert bounds == sorted(bounds)
        assert bounds[-1] > 1.05 * bounds[0]


def test_slow_devices_raise_the_bound():
    model = chain(np.random.default_rng(0), count=8, batch=16)
    alike, unlike = (
        search(model, cluster(4, kinds=k), SearchOptions(budget=0.0))
        for k in ((), ("t4",) * 2)
    )
    assert unlike.bound > 1.3 * alike.bound
    assert unlike.bound_of_one <= unlike.best[0].step_time


def test_the_rate_of_a_collective_is_its_least():
    rng = np.random.default_rng(0)
    for name in (
        "nvlink-a100-8",
        "superpod-a100-80-2x8",
        "pcie-a100-4",
        "nvlink-v100-8",
    ):
        fabric = MeshFabric(make_preset(name))
        for op, members in itertools.product(COLLECTIVES[:3], (range(2), range(4))):
            most = 1e9
            rate = fabric.rate(op, most, members)
            for size in most * 10 ** rng.uniform(-6, 0, 40):
                assert fabric.collective(op, size, members) >= size * rate * (1 - 1e-3)


def test_even_meshes_above_the_number_that_may_differ():
    model, machine = (
        chain(np.random.default_rng(1), count=12, batch=32),
        cluster(20, 90.0),
    )
    found = search(model, machine, SearchOptions(budget=0.0))
    assert found.bound_of_one >= found.bound > 0
    for priced in found.best:
        one = len(priced.chunks) == len(priced.costs)
        assert priced.step_time * JUST >= (found.bound_of_one if one else found.bound)
