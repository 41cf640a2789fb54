"""Prices of constraints, on problems where they are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.placers.contract import branches
from gnnplace.policy.placing import place
from gnnplace.problem.constraints import Constraints, constrained, from_words
from gnnplace.report.explanation.explaining import explain


def named():
    """Four branches of 12 seconds each on four devices, modules by branch."""
    problem = branches()
    return replace(problem, module=tuple(name.partition(".")[0] for name in problem.graph.names))


def prices(problem, asked: Constraints) -> dict[str, float]:
    """What each constraint costs, by an exact search."""
    made = constrained(problem, asked)
    few = Constraints(max_devices=asked.max_devices)
    placement = place(made, placer="heft", constraints=few).placement
    found = explain(problem, placement, constraints=asked, loosen=True, placer="heft", budget=0.0)
    assert found.prices is not None
    return {price.what: price.gain for price in found.prices}


def test_two_branches_together_cost_a_branch():
    """Where two branches must share a device, each alone is worth what the other takes."""
    found = prices(named(), from_words(together=["x0,x1"]))
    assert np.isclose(found["together x0,x1"], 12.0, rtol=0.1)
    assert found["memory of the devices"] == 0.0


def test_each_of_several_constraints_has_its_own_price():
    """The limit on devices costs; the pin of one branch to one of alike devices does not."""
    found = prices(named(), from_words(pin=["x0=d0"], max_devices=2))
    assert found["max-devices 2"] > 8.0
    assert found["pin x0=d0"] == 0.0
    assert "headroom" not in found


def test_the_problems_own_pins_have_a_price():
    """Pins that stand in the problem file are loosened all at once."""
    problem = named()
    own = constrained(problem, from_words(pin=["x0=d0", "x1=d0", "x2=d0", "x3=d0"]))
    found = prices(own, Constraints())
    assert found["the problem's own pins"] > 30.0


def test_a_problem_that_obeys_already_has_the_same_prices():
    """Pins of a captured model stand in its problem; they are loosened one by one all the same."""
    asked = from_words(pin=["x0=d0", "x1=d0"])
    placement = place(named(), placer="heft", constraints=asked).placement
    how = {"constraints": asked, "loosen": True, "placer": "heft", "budget": 0.0}
    before = explain(named(), placement, **how)
    after = explain(constrained(named(), asked), placement, **how)
    assert before.prices == after.prices
    assert before.prices[0].gain > 0
