"""What bounds a plan: parts add up and are what goes away; changes are priced as plans are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.explaining.captured import PARTS, changes_of, parts_of
from gnnplace.plans.answers import given_plan
from gnnplace.plans.given import draft_of_spec
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.search.draft import realized
from gnnplace.plans.search.stage import Pricer
from gnnplace.plans.spec import parse_spec
from tests.plans.toys import chain, cluster

WORDS = [
    "microbatch_size=2",
    "pp=2,microbatch_size=1",
    "dp=2,pp=2,microbatch_size=1,zero=3,recompute=full",
    "dp=4,microbatch_size=2,zero=2",
    "pp=4,microbatch_size=1,schedule=zero-bubble",
    "pp=2,microbatch_size=2,schedule=v",
    "shards=2,pp=2,microbatch_size=1",
]


def priced(words, machine, model=None):
    model = model or chain(np.random.default_rng(0), count=8, batch=8)
    draft = draft_of_spec(model, machine, parse_spec(words))
    pricer = Pricer(model, MeshFabric(machine), draft.size)
    return realized(pricer, draft), pricer


@pytest.mark.parametrize("words", WORDS)
def test_parts_add_up_to_the_step(words):
    made, pricer = priced(words, cluster(4))
    parts = parts_of(made, pricer)
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == pytest.approx(made.step_time)
    assert min(parts.values()) >= 0


def test_messages_are_what_links_take_that_are_not_hidden():
    made, pricer = priced("pp=4,microbatch_size=1", cluster(4, bandwidth=0.5))
    free, _ = priced("pp=4,microbatch_size=1", cluster(4, bandwidth=1e30))
    hops = 6 * 1e-3  # latencies of three hops there and back that stay there
    told = parts_of(made, pricer)["messages"]
    assert told == pytest.approx(made.step_time - free.step_time, abs=hops * 8)
    assert told > 1.0


def test_recomputation_zero_and_reduction_are_what_goes_away_without_them():
    machine = cluster(2, bandwidth=5.0)
    words = "dp=2,microbatch_size=1,zero={},recompute={}"
    made, pricer = priced(words.format(3, "full"), machine)
    found = parts_of(made, pricer)
    without, _ = priced(words.format(3, "none"), machine)
    assert found["recompute"] == pytest.approx(made.step_time - without.step_time)
    lean, _ = priced(words.format(1, "full"), machine)
    saved = made.step_time - lean.step_time  # ZeRO 1 has a sum at the end instead
    assert found["zero"] == pytest.approx(saved + lean.costs[0].reduction)
    assert found["reduction"] == 0.0
    assert parts_of(lean, pricer)["reduction"] == pytest.approx(lean.costs[0].reduction)


def test_bubbles_are_those_of_1f1b():
    """Equal stages and no messages: p - 1 of the m + p - 1 slots are empty."""
    model = chain(np.random.default_rng(0), count=4, batch=8)
    source = model.source
    source.seconds[:] = source.seconds.mean()
    made, pricer = priced("pp=4,microbatch_size=2", cluster(4, bandwidth=1e30), model)
    found = parts_of(made, pricer)
    wanted = 3 / 4 * found["compute"]
    assert found["bubble"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("words", WORDS)
def test_changes_are_priced_as_plans_with_one_other_word(words):
    machine = cluster(4)
    model = chain(np.random.default_rng(0), count=8, batch=8)
    plan = given_plan(model, machine, words)
    made, pricer = priced(words, machine, model)
    found = {x.told: x for x in changes_of(plan, made, pricer)}
    assert found
    pairs = dict(pair.split("=") for pair in words.split(","))
    for told, change in found.items():
        name, _, value = told.partition("=")
        if " " in told or name not in ("zero", "recompute"):
            continue
        other = ",".join(f"{k}={v}" for k, v in {**pairs, name: value}.items())
        again, _ = priced(other, machine, model)
        assert change.step_time == pytest.approx(again.step_time), told


def test_fewer_stages_are_worth_most_where_bubbles_bound():
    model = replace(
        chain(np.random.default_rng(0), count=8, batch=8), border=np.zeros(9)
    )
    machine = cluster(4, bandwidth=1e9)
    made, pricer = priced("pp=4,microbatch_size=4", machine, model)
    parts = parts_of(made, pricer)
    assert max(parts, key=parts.__getitem__) in ("compute", "bubble")
    plan = given_plan(model, machine, "pp=4,microbatch_size=4")
    best = min(changes_of(plan, made, pricer), key=lambda x: x.step_time)
    assert best.step_time < made.step_time
    assert best.told in (
        "microbatch_size=2",
        "dp=2 and pp=2",
        "shards=2 and pp=2",
        "tp=2 and pp=2",
    )
