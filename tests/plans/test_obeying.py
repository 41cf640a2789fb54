"""Plans under pins, forbids and a limit on devices, against all plans that obey them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.job import SearchOptions
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.obeying import find_allowed_devices, find_fewest, find_obeying
from gnnplace.plans.search.draft import realize_draft
from gnnplace.plans.search.search import obeys, search
from gnnplace.plans.search.stage import Pricer
from gnnplace.problem.cluster import list_device_counts
from gnnplace.problem.constraints import Constraints, ConstraintWords
from tests.plans.search.test_search import all_drafts
from tests.plans.toys import chain, cluster


@pytest.mark.parametrize("seed", range(3))
def test_never_worse_than_all_plans_that_obey(seed):
    """Every plan of the space that has no segment where it may not be; the bound is below all."""
    rng = np.random.default_rng(seed)
    machine = cluster(3)
    allowed = rng.random((4, 3)) < 0.8
    allowed[np.arange(4), np.minimum(np.arange(4), 2)] = (
        True  # a device for each, in order
    )
    model = replace(chain(rng, count=4, batch=4), allowed=allowed)
    found, fabric = (
        search(model, machine, SearchOptions(budget=1.0)),
        MeshFabric(machine),
    )
    least = np.inf
    for draft in all_drafts(model, machine):
        if obeys(draft, model):
            priced = realize_draft(Pricer(model, fabric, draft.size), draft)
            least = min(least, priced.step_time if priced is not None else np.inf)
    assert all(obeys(priced.draft, model) for priced in found.best)
    assert found.best[0].step_time <= least * (1 + 1e-9)
    assert found.bound <= least * (1 + 1e-9)


def devices_of(plan, module):
    """Devices of the stage that has a module."""
    (stage,) = [s for s in plan.file.stages if module in s.modules]
    return {name for row in stage.rows for name in row}


def test_layers_are_where_they_are_pinned_whatever_the_order():
    """The last device has the first layer, and no layer is on a device that is forbidden to all."""
    model, machine = chain(np.random.default_rng(0), count=4), cluster(3)
    asked = ConstraintWords(
        pin=["s0=gpu:2", "s3=gpu:0"], forbid=["*=gpu:1"]
    ).constraints()
    plan = find_obeying(model, machine, SearchOptions(constraints=asked, budget=0.0))[0]
    assert devices_of(plan, "s0") == {"gpu:2"}
    assert devices_of(plan, "s3") == {"gpu:0"}


def test_few_devices_are_used():
    """Two of four devices, and no plan on two is better than the search on a cluster of two."""
    model, machine = chain(np.random.default_rng(1), count=4), cluster(4)
    plan = find_obeying(
        model,
        machine,
        SearchOptions(constraints=Constraints(max_devices=2), budget=0.0),
    )[0]
    used = {name for stage in plan.file.stages for row in stage.rows for name in row}
    assert len(used) <= 2
    alone = search(model, cluster(2), SearchOptions(budget=0.0)).best[0]
    assert plan.file.step_time == alone.step_time


def test_what_cannot_be_is_refused():
    """Layers against the order of stages, no device left, modules together, an unknown layer."""
    model, machine = chain(np.random.default_rng(0), count=3), cluster(2)
    with pytest.raises(
        InfeasibleError, match="no plan that was tried obeys 'pin s0=gpu:0'"
    ):
        find_obeying(
            model,
            machine,
            SearchOptions(
                constraints=ConstraintWords(
                    pin=["s0=gpu:0", "s1=gpu:1", "s2=gpu:0"]
                ).constraints()
            ),
        )
    asked = ConstraintWords(pin=["s1=gpu:0"], forbid=["s1=gpu:0"]).constraints()
    with pytest.raises(InfeasibleError, match="leave 's1' no device"):
        find_allowed_devices(model, machine, asked)
    with pytest.raises(InputError, match="together: "):
        find_obeying(
            model,
            machine,
            obeying(together=["s0,s1"]),
        )
    with pytest.raises(InputError, match="no module matches 'x9'"):
        find_obeying(
            model,
            machine,
            obeying(pin=["x9=gpu:0"]),
        )


def obeying(**words):
    """Options of a search that obeys constraints in words."""
    return SearchOptions(constraints=ConstraintWords(**words).constraints())


def limited_to(count):
    """Options of a short search on so many devices at most."""
    return SearchOptions(constraints=Constraints(max_devices=count), budget=0.0)


def test_the_fewest_devices_are_the_first_that_hold_the_model():
    """Every count of devices is tried by hand."""
    model = chain(np.random.default_rng(0), count=6, batch=8)
    machine = cluster(4, memory=60.0)
    (plan,) = find_fewest(model, machine, SearchOptions(budget=0.0, goal="gpus"))
    used = len(plan.file.memory)
    assert plan.feasible
    for count in list_device_counts(4):
        few = find_obeying(
            model,
            machine,
            SearchOptions(constraints=Constraints(max_devices=count), budget=0.0),
        )
        assert few[0].feasible is (count >= used)
    assert list_device_counts(6) == [1, 2, 4, 6]


@pytest.mark.parametrize("share", [0.5, 1.0, 1.01])
def test_a_rate_is_reached_by_the_first_number_of_devices_that_makes_it(share):
    """Of the examples a second that 2 devices make, half needs one, a little more needs 4."""
    model = chain(np.random.default_rng(0), count=6, batch=8)
    machine = cluster(4)
    rates = {
        count: 8 / find_obeying(model, machine, limited_to(count))[0].step_time
        for count in list_device_counts(4)
    }
    (plan,) = find_fewest(
        model, machine, SearchOptions(budget=0.0, goal="gpus", rate=share * rates[2])
    )
    expected = next(count for count, rate in rates.items() if rate >= share * rates[2])
    assert plan.feasible
    assert len(plan.file.memory) <= expected
    assert plan.file.rate == pytest.approx(rates[expected])


def test_a_rate_that_none_reaches_is_told_with_the_largest():
    model, machine = chain(np.random.default_rng(0), count=6, batch=8), cluster(4)
    (plan,) = find_fewest(
        model, machine, SearchOptions(budget=0.0, goal="gpus", rate=1e9)
    )
    assert not plan.feasible
    assert (
        "on up to 4 devices makes 1,000,000,000 examples/s; the fastest makes"
        in plan.reason
    )
