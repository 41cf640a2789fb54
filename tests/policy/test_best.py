from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import FormatError, InfeasibleError, InputError
from gnnplace.placers import contract
from gnnplace.placers.registry import PLACERS
from gnnplace.placing.roster import make_placer, placer_names
from gnnplace.placing.warming import warm
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.train.learner import save_whole
from tests.policy.problems import trained_like
from tests.random_problems import random_problem, seeds


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["learned", "learned-untrained", "best"])
def test_contract(name, check):
    check(make_placer(name))


@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_best_is_never_worse_than_one_device_or_the_policy(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3, microbatches=int(rng.integers(1, 3)))
    best = make_placer("best").place(problem).step_time
    assert best <= make_placer("single").place(problem).step_time
    assert best <= make_placer("learned").place(problem).step_time


def test_best_says_who_found_it():
    result = make_placer("best").place(contract.branches())
    assert any(name in result.note for name in placer_names())


def test_best_says_so_when_nothing_fits():
    with pytest.raises(InfeasibleError, match="best"):
        make_placer("best").place(contract.training_chain(memory=24.0))


def test_every_order_decodes():
    from gnnplace.graph.orders import FIXED_ORDERS

    for order in FIXED_ORDERS:
        result = make_placer("learned", order=order).place(contract.branches())
        assert result.simulation.feasible
        assert result.note.startswith(order)


def test_names():
    assert set(PLACERS) < set(placer_names())
    with pytest.raises(InputError, match="order is an option of learned, "):
        make_placer("heft", order="random")
    with pytest.raises(InputError, match="unknown; placers"):
        make_placer("magic")


def test_the_untrained_control_is_the_policy_that_training_begins_with():
    from gnnplace.policy.network import PlacementPolicy

    control, fresh = make_placer("learned-untrained").policy, PlacementPolicy()
    for part in ("decoder", "refiner"):
        assert (getattr(control, part) == getattr(fresh, part).detach().numpy()).all()


@pytest.mark.timed
def test_a_budget_is_kept_with_many_ops():
    problem = with_microbatches(
        contract.training_chain(num_layers=150, num_devices=4), 8
    )
    warm(["best"])
    result = make_placer("best").place(problem, budget=0.3)
    assert (
        result.seconds < 0.3 * 1.1 + make_placer("learned").place(problem).seconds + 0.2
    )


def test_a_policy_of_ones_own_takes_the_place_of_the_packages(tmp_path):
    policy = trained_like()
    save_whole(policy, tmp_path / "policy")
    problem = random_problem(np.random.default_rng(5), 30, 3)
    own = make_placer("learned", checkpoint=str(tmp_path / "policy"))
    assert own.policy is not None
    for part in ("decoder", "refiner"):
        assert (
            getattr(own.policy, part) == getattr(policy, part).detach().numpy()
        ).all()
    assert own.place(problem).step_time > 0
    with pytest.raises(
        InputError, match="'heft': checkpoint is an option of learned, gnn, best alone"
    ):
        make_placer("heft", checkpoint=str(tmp_path / "policy"))
    with pytest.raises(FormatError, match="nowhere"):
        make_placer("best", checkpoint="nowhere")


def test_whole_constructions_run_once_when_the_search_has_gone_on(monkeypatch):
    from gnnplace.policy import best

    batches = []
    run_members = best.run_members

    def record(space, rng, deadline, makers):
        batches.append([make().name for make in makers])
        return run_members(space, rng, deadline, makers)

    monkeypatch.setattr(best, "run_members", record)
    problem = contract.training_chain(num_layers=10)
    warm(["best"])
    make_placer("best").place(problem, budget=0.2)
    assert len(batches) == 1
    batches.clear()
    monkeypatch.setattr(best, "WHOLE_BEGIN", 1)
    make_placer("best").place(problem, budget=0.4)
    assert len(batches) == 2
    assert set(batches[1]) == {"contiguous", "interleaved", "expert"} < set(batches[0])
