"""The cause of a slow run is found from its step alone where the step tells it."""

from __future__ import annotations

import pytest

from gnnplace.explaining.causes import KINDS, format_speed, rank_causes
from gnnplace.explaining.in_words import SpecStep
from gnnplace.explaining.steps import step_causes, step_parts
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster.presets import make_preset

PARTS = {"across": 0.05, "inside": 0.1, "clock": 0.6, "host": 0.2}


def step_at(cause, factor):
    """Price a step of one second whose parts are `PARTS`."""
    if cause == "outside":
        return 1.0 + factor
    return 1.0 + PARTS.get(cause, 0.0) * (factor - 1.0) + 0.33 * (cause == "recompute")


def test_the_factor_is_the_one_that_explains_the_step():
    for cause in rank_causes(step_at, 1.0, 2.0, servers=True):
        if cause.factor is not None:
            assert cause.step_time == pytest.approx(2.0, rel=5e-3)
            assert step_at(cause.name, cause.factor) == pytest.approx(cause.step_time)
            assert cause.seconds == pytest.approx(cause.step_time - 1.0)


def test_shares_add_up_and_the_likeliest_is_first():
    causes = rank_causes(step_at, 1.0, 1.33, servers=True)
    shares = [cause.share for cause in causes]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (
            9.0,
            "exchanges between servers at 1/161 of their speed: sockets instead of InfiniBand?",
        ),
        (1.2, "kernels at three quarters of their speed"),
    ],
)
def test_causes_have_the_words_of_the_field(measured, told):
    causes = rank_causes(step_at, 1.0, measured, servers=True)
    assert any(cause.text.startswith(told) for cause in causes), [
        x.text for x in causes
    ]


def test_a_step_ten_times_as_long_is_the_network():
    causes = rank_causes(step_at, 1.0, 9.0, servers=True)
    assert causes[0].name == "across"
    assert causes[0].share > 0.5
    one_server = rank_causes(step_at, 1.0, 9.0, servers=False)
    assert "across" not in [cause.name for cause in one_server]


def test_a_run_as_fast_as_predicted_has_no_cause():
    assert rank_causes(step_at, 1.0, 1.0, servers=True) == ()
    assert rank_causes(step_at, 1.0, 0.5, servers=True) == ()


def test_without_a_run_every_cause_has_its_usual_factor():
    causes = {
        cause.name: cause for cause in rank_causes(step_at, 1.0, None, servers=True)
    }
    for kind in KINDS:
        if kind.name in causes:
            assert causes[kind.name].factor == kind.factor


def test_parts_of_full_speed_are_words():
    assert [format_speed(x) for x in (0.75, 0.5, 0.667, 0.9)] == [
        "three quarters", "half", "two thirds", "90 %",
    ]  # fmt: skip


LLAMA = DecoderSizes(32, 4096, 32, 8, 14336, 4096, 128256)


def test_sockets_between_servers_are_told_from_a_plan():
    """ZeRO 3 over four servers whose network is a hundredth of its speed."""
    setting = make_pricing_setting(
        LLAMA, make_preset("dgx-h100-4x8"), framework_name="pytorch"
    )
    spec = parse_spec("dp=32,microbatch_size=1,batch=64,zero=3")
    explained = SpecStep(setting, spec)
    parts = step_parts(explained)
    step = price(setting, spec).step_time
    (first, *_) = step_causes(explained, parts, 20.0 * step)
    assert first.name == "across"
    assert "sockets instead of InfiniBand" in first.text
    none = step_causes(explained, parts)
    assert {"across", "inside", "clock", "host", "recompute"} <= {x.name for x in none}
