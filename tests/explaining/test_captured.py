"""What bounds a plan: parts add up and are what goes away; changes are priced as plans are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.explaining import explain_step
from gnnplace.explaining.captured import CapturedStep
from gnnplace.explaining.steps import PARTS, step_causes, step_parts
from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.given import draft_spec
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.search.draft import realize_draft
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


def explained(words, machine, model=None):
    """The step of a plan in words of a toy model."""
    model = model or chain(np.random.default_rng(0), count=8, batch=8)
    draft = draft_spec(model, machine, parse_spec(words))
    priced = realize_draft(Pricer(model, MeshFabric(machine), draft.size), draft)
    return CapturedStep(price_given_plan(model, machine, words), priced)


@pytest.mark.parametrize("words", WORDS)
def test_parts_add_up_to_the_step(words):
    step = explained(words, cluster(4))
    parts = step_parts(step)
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == pytest.approx(step.planned.step_time)
    assert min(parts.values()) >= 0


def test_messages_are_what_links_take_that_are_not_hidden():
    step = explained("pp=4,microbatch_size=1", cluster(4, bandwidth=0.5))
    free = explained("pp=4,microbatch_size=1", cluster(4, bandwidth=1e30))
    hops = 6 * 1e-3  # latencies of three hops there and back that stay there
    messages = step_parts(step)["messages"]
    difference = step.planned.step_time - free.planned.step_time
    assert messages == pytest.approx(difference, abs=hops * 8)
    assert messages > 1.0


def test_recomputation_and_replicas_are_what_goes_away_without_them():
    machine = cluster(2, bandwidth=5.0)
    words = "dp=2,microbatch_size=1,zero={},recompute={}"
    step = explained(words.format(3, "full"), machine)
    parts = step_parts(step)
    without = explained(words.format(3, "none"), machine)
    difference = step.planned.step_time - without.planned.step_time
    assert parts["recompute"] == pytest.approx(difference)
    # ZeRO 3 exchanges with every micro-batch, ZeRO 1 at the end of the step.
    (cost,) = step.planned.costs
    assert parts["replicas"] == pytest.approx(4 * cost.gathered)
    lean = explained(words.format(1, "full"), machine)
    (cost,) = lean.planned.costs
    assert step_parts(lean)["replicas"] == pytest.approx(cost.reduction)
    assert cost.reduction > 0.0


def test_slow_links_add_what_they_take_more():
    """One network joins the devices: at a tenth of its speed exchanges take ten times."""
    machine = cluster(2, bandwidth=5.0)
    step = explained("dp=2,microbatch_size=4,zero=1", machine)
    parts = step_parts(step)
    causes = {cause.name: cause.seconds for cause in step_causes(step, parts)}
    assert causes["inside"] == pytest.approx(9 * parts["replicas"])
    assert "across" not in causes


def test_bubbles_are_those_of_1f1b():
    """Equal stages and no messages: p - 1 of the m + p - 1 slots are empty."""
    model = chain(np.random.default_rng(0), count=4, batch=8)
    source = model.source
    source.seconds[:] = source.seconds.mean()
    machine = cluster(4, bandwidth=1e30)
    parts = step_parts(explained("pp=4,microbatch_size=2", machine, model))
    assert parts["bubble"] == pytest.approx(3 / 4 * parts["compute"], rel=1e-6)


@pytest.mark.parametrize("words", WORDS)
def test_changes_are_priced_as_plans_with_one_other_word(words):
    machine = cluster(4)
    model = chain(np.random.default_rng(0), count=8, batch=8)
    changes = dict(explained(words, machine, model).price_changes())
    assert changes
    pairs = dict(pair.split("=") for pair in words.split(","))
    for told, answer in changes.items():
        name, _, value = told.partition("=")
        if " " in told or name not in ("zero", "recompute"):
            continue
        changed = ",".join(f"{k}={v}" for k, v in {**pairs, name: value}.items())
        changed_step = explained(changed, machine, model).planned
        assert answer.step_time == pytest.approx(changed_step.step_time), told


def test_fewer_stages_are_worth_most_where_bubbles_bound():
    model = replace(
        chain(np.random.default_rng(0), count=8, batch=8), border=np.zeros(9)
    )
    machine = cluster(4, bandwidth=1e9)
    step = explained("pp=4,microbatch_size=4", machine, model)
    parts = step_parts(step)
    assert max(parts, key=parts.__getitem__) in ("compute", "bubble")
    best = explain_step(step).changes[0]
    assert best.step_time < step.planned.step_time
    assert best.text in (
        "microbatch_size=2",
        "dp=2 and pp=2",
        "shards=2 and pp=2",
        "tp=2 and pp=2",
    )
