"""Plans are tried on workers, and the one that is measured fastest is taken."""

from types import SimpleNamespace

import numpy as np
import pytest

import gnnplace
from gnnplace.errors import InputError, MismatchError
from gnnplace.planning import plans as verbs
from gnnplace.plans.answers import find_plans
from gnnplace.plans.job import SearchOptions
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.report.plans import plan_lines
from tests.plans.toys import chain, cluster


@pytest.mark.parametrize(
    "asked", [{"budget": float("nan")}, {"budget": -1}, {"memory_limit": 0}]
)
def test_numbers_that_no_plan_has_are_refused_before_the_model_is_made(asked):
    with pytest.raises(InputError, match=r"budget|memory limit"):
        verbs.plan_model("no such model", make_preset("nvlink-a100-4"), **asked)


def plans():
    model = chain(np.random.default_rng(0), count=6, batch=8)
    return find_plans(model, cluster(3), SearchOptions(top=60, runnable=True))


def test_the_measured_fastest_comes_first_and_rows_say_both_times(monkeypatch):
    found, ran = plans(), []

    def run_plan(plan, model, **options):
        ran.append(plan)
        if len(ran) == 1:
            raise MismatchError("stages of 1 and 2 replicas")
        return SimpleNamespace(passed=len(ran) != 2, measured=10.0 / len(ran))

    monkeypatch.setattr("gnnplace.run.planned.run_plan", run_plan)
    made = verbs.run_trials(found, "toy", 4)
    assert made[0].file is ran[3].file
    assert len(made) == len(found)
    told = [
        t for line in plan_lines(made[0]) for t in [line] if t.startswith("  tried ")
    ]
    assert len(told) == len(made[0].trials) == 4
    assert "cannot be run: stages of 1 and 2" in told[0]
    assert "not one device's" in told[1]
    assert "measured 2.500 s" in told[3]
    assert made[0].answer()["trials"][3]["measured"] == 2.5
    stages = [[s.members for s in p.file.stages] + [p.file.schedule[:2], p.file.microbatch_size]
              + [s.devices for s in p.file.stages] for p in ran]  # fmt: skip
    assert all(stages.count(row) == 1 for row in stages)


def test_only_what_is_here_is_tried():
    with pytest.raises(
        InputError, match="'gpu:0' is no worker of this machine; plan for cpu:4"
    ):
        gnnplace.plan("mlp", make_preset("pcie-a100-4"), tries=3, budget=0.0)


@pytest.mark.campaign
def test_plans_are_tried_for_real():
    spec = "gpt2?layers=1&width=32&length=16&vocabulary=50"
    best = gnnplace.plan(spec, "cpu:2", batch=4, tries=2, budget=0.5)[0]
    known = [t.measured for t in best.trials if t.measured is not None]
    assert len(best.trials) == 2
    assert known
    assert min(known) > 0
