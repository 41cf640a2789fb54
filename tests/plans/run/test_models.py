"""Models of all kinds under plans of all kinds beside one device: the table of plans-run.md."""

import pytest

from benchmarks.plans_run import MODELS, PLANS, SHARDS, run


@pytest.mark.campaign
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_by_a_plan_as_on_one_device(model, plan):
    row, passed = run(model, plan, train=5)
    assert passed, row


@pytest.mark.campaign
@pytest.mark.parametrize(("model", "plan"), [(m, p) for m in SHARDS for p in SHARDS[m]])
def test_tokens_are_cut_and_sent_to_experts(model, plan):
    row, passed = run(model, plan, train=5)
    assert passed, row


def test_experts_get_their_tokens_from_all_shards():
    """Two processes, real all-to-alls; five seconds, most of them starts of processes."""
    row, passed = run("mixtral", "cp=2,ep=2", train=2)
    assert passed, row
