"""Models of all kinds under plans of all kinds beside one device: the table of plans-run.md."""

import pytest

from benchmarks.plans_run import MODELS, PLANS, run


@pytest.mark.campaign
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_by_a_plan_as_on_one_device(model, plan):
    row, passed = run(model, plan, train=5)
    assert passed, row
