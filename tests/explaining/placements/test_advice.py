"""What a placement comes to, and what is advised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.explaining.placements.advice import WORTH, advise
from gnnplace.placers.contract import branches, training_chain
from gnnplace.placing.roster import place
from gnnplace.problem.constraints import Constraints, ConstraintWords, apply_constraints
from gnnplace.report.explanations import advice_lines
from gnnplace.simulation import lower_bound


def told(problem, *, constraints=None, **how):
    """The advice about a placement, and its lines."""
    result = place(problem, placer="heft", constraints=constraints)
    advice = advise(problem, result, placer="heft", **how)
    return advice, list(advice_lines(advice, result))


def test_a_chain_gains_from_micro_batches():
    """What is advised is what a placement of the cut problem takes."""
    advice, lines = told(training_chain(num_layers=8))
    assert advice.tries
    best = advice.tries[0]
    assert best.step_time * best.speedup == pytest.approx(advice.step_time)
    assert lines[-1].startswith(f"next: {best.option}: about ")


def test_launches_do_not_get_shorter():
    """Where ops take no longer than to launch them, micro-batches gain nothing."""
    problem = training_chain(num_layers=8)
    times = {kind: 1e-6 * seconds for kind, seconds in problem.time.items()}
    members = tuple((f"{name}.a", f"{name}.b") for name in problem.graph.names)
    links = [link.model_copy(update={"latency": 0.0}) for link in problem.cluster.links]
    fast = [link.model_copy(update={"bandwidth": 1e9}) for link in links]
    cluster = replace(problem.cluster, links=tuple(fast))
    advice, _ = told(replace(problem, time=times, members=members, cluster=cluster))
    assert not advice.tries
    advice, _ = told(replace(problem, time=times, cluster=cluster))
    assert advice.tries


def test_idle_devices_have_reasons():
    """Each reason is told once for devices that are alike, and no idle device is left out."""
    problem = branches()
    _, lines = told(problem, constraints=Constraints(max_devices=2), max_devices=2)
    assert "idle: d2, d3: max-devices is 2" in lines or any(
        "max-devices is 2" in x for x in lines
    )
    kept = ConstraintWords(
        forbid=[f"{name}=d3" for name in problem.graph.names]
    ).constraints()
    result = place(problem, placer="heft", constraints=kept)
    advice = advise(apply_constraints(problem, kept), result, placer="heft")
    assert ("d3",) in [idle.devices for idle in advice.idle]
    assert advice.idle[-1].reason == "pins and forbids leave it no op"


def test_a_chain_without_parallelism_is_best_on_one_device():
    """Nothing can be split: the idle devices say how much longer a part on them makes it."""
    problem = training_chain()
    slow = [link.model_copy(update={"latency": 50.0}) for link in problem.cluster.links]
    problem = replace(problem, cluster=replace(problem.cluster, links=tuple(slow)))
    advice, lines = told(problem, seconds=0.0)
    assert advice.alone_is_best
    assert len(advice.used) == 1
    advice, lines = told(problem)
    assert sum(len(idle.devices) for idle in advice.idle) == 2
    assert any("does not pay" in line and "% longer" in line for line in lines)


def test_ops_without_time_leave_devices_idle():
    problem = branches()
    times = {kind: 0.0 * seconds for kind, seconds in problem.time.items()}
    advice, _ = told(replace(problem, time=times))
    assert {idle.reason for idle in advice.idle} == {"no op takes any time"}


def test_one_device_is_what_it_takes_alone():
    """The speed-up is over the fastest device with all of it."""
    problem = branches()
    advice, _ = told(problem)
    assert advice.single == np.sum(problem.time["fast"])
    assert advice.step_time >= lower_bound(problem)


def test_only_micro_batches_that_the_model_can_be_cut_into_are_advised():
    problem, asked = training_chain(num_layers=8), []

    def refuse_the_best(count):
        asked.append(count)
        return len(asked) > 1

    free, _ = told(problem)
    advice, lines = told(problem, can_cut=refuse_the_best)
    assert asked[0] == free.tries[0].count != asked[1]
    assert [one.count for one in advice.tries] == asked[1:]
    assert all(one.speedup >= WORTH for one in advice.tries)
    advice, lines = told(problem, can_cut=lambda count: False)
    assert not advice.tries
    assert "--microbatches" not in lines[-1]


def test_nothing_is_claimed_that_was_not_tried():
    problem = training_chain()
    slow = [link.model_copy(update={"latency": 50.0}) for link in problem.cluster.links]
    problem = replace(problem, cluster=replace(problem.cluster, links=tuple(slow)))
    advice, lines = told(problem, seconds=0.0)
    assert advice.counts == ()
    assert "moving parts there was not tried" in "\n".join(lines)
    assert "micro-batches" not in lines[-1]
    assert "search" not in "\n".join(lines)


def test_a_part_moved_to_an_idle_device_is_advised_with_its_figure():
    """Everything on one device of four, where branches could be apart."""
    problem = branches()
    result = place(problem, placer="single")
    advice = advise(problem, result, placer="single")
    best = min(idle.step_time for idle in advice.idle)
    assert result.step_time / best >= WORTH
    *_, following = advice_lines(replace(advice, tries=()), result)
    assert following.startswith("next: --budget 10: at least ")
    assert f"{result.step_time / best:.2f}x" in following
    assert "a part moved to " in following
