"""What a step's time buys: the frontier of memory, the least memory, more devices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.searching import LauncherSearch
from gnnplace.launch.trades import (
    FINE_STEP,
    STEP,
    device_frontier,
    find_leanest_plan,
    memory_frontier,
    with_memory_below,
)
from gnnplace.plans.job import SearchOptions
from gnnplace.plans.spec import parse_spec
from tests.plans import test_spec_search

SIZES = replace(test_spec_search.DENSE, layers=4, vocabulary=32000)


@pytest.fixture(scope="module")
def search() -> LauncherSearch:
    return LauncherSearch(SIZES, resolve_cluster("4xH100"))


def test_less_memory_takes_more_time(search: LauncherSearch) -> None:
    launcher = "megatron-lm"
    answers = list(memory_frontier(search, launcher))
    assert len(answers) > 2
    assert answers[0].best[0].seconds == search.find(launcher).best[0].seconds
    for answer, leaner in itertools.pairwise(answers):
        assert leaner.answer.peak is not None
        assert answer.answer.peak is not None
        assert leaner.answer.peak <= (1 - STEP) * answer.answer.peak * (1 + 1e-9)
        assert leaner.best[0].seconds >= answer.best[0].seconds


def test_nothing_has_less_than_the_least_memory(search: LauncherSearch) -> None:
    answer = find_leanest_plan(search, "megatron-lm")
    with pytest.raises(InfeasibleError):
        with_memory_below(search, answer, 1 - FINE_STEP).find("megatron-lm")
    # It is priced with the memory that devices have.
    assert (
        answer.setting.framework.memory
        == search.find("megatron-lm").setting.framework.memory
    )
    assert answer.answer.fits == pytest.approx(1.0)


def test_the_least_memory_at_a_rate_is_no_less_than_without(
    search: LauncherSearch,
) -> None:
    rate = 0.7 * (search.find("accelerate").answer.tokens_per_second or 0.0)
    fast = find_leanest_plan(replace(search, rate=rate), "accelerate")
    lean = find_leanest_plan(search, "accelerate")
    assert (fast.answer.tokens_per_second or 0.0) >= rate
    assert (fast.answer.peak or 0.0) >= (lean.answer.peak or 0.0)


def test_more_devices_make_more_tokens(search: LauncherSearch) -> None:
    answers = list(device_frontier(search, "accelerate"))
    counts = [answer.best[0].spec.num_devices for answer in answers]
    assert counts == [1, 2, 4]
    rates = [answer.answer.tokens_per_second or 0.0 for answer in answers]
    assert rates == sorted(rates)


def test_every_plan_has_the_modes_that_are_asked_for(search: LauncherSearch) -> None:
    modes = parse_spec("compile=on,gradients=same", "--modes")
    compiled = replace(search, modes=modes, _spaces={}, _free={}).find("accelerate")
    assert compiled.best[0].spec.compile
    assert compiled.plan.compile
    assert compiled.plan.gradients == "same"
    assert compiled.best[0].seconds < search.find("accelerate").best[0].seconds


def test_modes_that_a_framework_lacks_are_named(search: LauncherSearch) -> None:
    modes = replace(
        search, modes=parse_spec("compile=on", "--modes"), _spaces={}, _free={}
    )
    with pytest.raises(
        InfeasibleError, match="megatron-lm: compile=on: megatron-lm compiles no"
    ):
        modes.find("megatron-lm")


def test_modes_are_no_degrees() -> None:
    with pytest.raises(InputError, match="may have compile, tp_overlap"):
        SearchOptions(modes=parse_spec("dp=2", "--modes"))
