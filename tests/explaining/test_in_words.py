"""What bounds a step priced from sizes: parts add up, and are right where they are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnplace.explaining import explain_step
from gnnplace.explaining.in_words import SpecStep
from gnnplace.explaining.steps import PARTS, step_causes, step_parts
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster.presets import make_preset

LLAMA = DecoderSizes(32, 4096, 32, 8, 14336, 4096, 128256)
CLUSTER = make_preset("dgx-h100-4x8")
WORDS = [
    "dp=4,tp=8,microbatch_size=1,batch=64",
    "dp=2,tp=2,pp=8,microbatch_size=1,batch=64,zero=1,recompute=full",
    "dp=4,tp=4,pp=2,microbatch_size=2,batch=64,schedule=interleaved:2,recompute=selective",
    "dp=32,microbatch_size=1,batch=64,zero=3",
    "dp=2,tp=16,microbatch_size=4,batch=64",
    "pp=32,microbatch_size=1,batch=4",
    "dp=32,microbatch_size=1,batch=64,zero=3,offload=optimizer",
    "dp=32,microbatch_size=1,batch=64,zero=3,offload=optimizer+parameters",
]


def setting(framework="megatron-lm", **more):
    return make_pricing_setting(LLAMA, CLUSTER, framework_name=framework, **more)


@pytest.mark.parametrize("framework", ["pytorch", "megatron-lm", "nanotron"])
@pytest.mark.parametrize("words", WORDS)
def test_parts_add_up_to_the_step(framework, words):
    own, told = setting(framework), parse_spec(words)
    answer = price(own, told)
    if answer.step_time is None:
        return  # a schedule or ZeRO that the framework has not
    parts = step_parts(SpecStep(own, told))
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == pytest.approx(answer.step_time)
    assert min(parts.values()) > -1e-3 * answer.step_time


def test_what_hosts_take_is_what_a_step_without_them_does_not():
    own = setting("pytorch")
    words = "dp=32,microbatch_size=1,batch=64,zero=3"
    offloaded = step_parts(
        SpecStep(own, parse_spec(f"{words},offload=optimizer+parameters"))
    )
    resident = step_parts(SpecStep(own, parse_spec(words)))
    assert resident["offload"] == 0.0
    assert offloaded["offload"] > 0.0
    names = [name for name in PARTS if name != "offload"]
    assert [offloaded[name] for name in names] == pytest.approx(
        [resident[name] for name in names]
    )


# Where one thing is known to dominate by arithmetic or by how the run was made: bubbles of
# (p - 1) / (m + p - 1) over a half (Narayanan et al., 2021, section 2.2.1), shards across servers
# of eight (ultrascale-playbook: 54 s where the same inside of a server takes 6), collectives that
# are checked at 0.21 ms a rank, large micro-batches within a server.
KNOWN = [
    ("megatron-lm", None, "pp=32,microbatch_size=1,batch=4", "bubble"),
    ("megatron-lm", None, "pp=32,microbatch_size=1,batch=8", "bubble"),
    ("nanotron", None, "pp=16,tp=2,microbatch_size=1,batch=4", "bubble"),
    ("nanotron", None, "tp=16,dp=2,microbatch_size=1,batch=32", "shards"),
    ("nanotron", None, "tp=32,microbatch_size=1,batch=16", "shards"),
    ("megatron-lm", None, "tp=16,dp=2,microbatch_size=2,batch=64", "shards"),
    (
        "nanotron",
        "checked-collectives",
        "tp=8,dp=4,microbatch_size=1,batch=64",
        "checks",
    ),
    (
        "nanotron",
        "checked-collectives",
        "tp=4,dp=8,microbatch_size=1,batch=64",
        "checks",
    ),
    ("megatron-lm", None, "dp=4,tp=8,microbatch_size=8,batch=512", "compute"),
    ("torchtitan", None, "dp=32,microbatch_size=2,batch=256,zero=3", "compute"),
]


@pytest.mark.parametrize(("framework", "environment", "words", "bound"), KNOWN)
def test_the_largest_part_is_the_one_that_is_known_to_dominate(
    framework, environment, words, bound
):
    own = setting(framework, environment_name=environment)
    parts = step_parts(SpecStep(own, parse_spec(words)))
    assert max(parts, key=parts.__getitem__) == bound, parts


def test_bubbles_are_those_of_the_formula():
    """Equal stages, no head and no exchanges: (p - 1) / m of the work."""
    own = setting()
    own = replace(own, decoder=replace(own.decoder, vocabulary=1))
    words = parse_spec("pp=8,dp=4,microbatch_size=1,batch=64,recompute=none")
    parts = step_parts(SpecStep(own, words))
    assert parts["bubble"] == pytest.approx(7 / 16 * parts["compute"], rel=0.02)


def test_changes_are_what_their_words_take():
    own, words = (
        setting(),
        parse_spec("pp=8,dp=4,microbatch_size=1,batch=64,recompute=full"),
    )
    changes = explain_step(SpecStep(own, words)).changes
    times = [x.answer.step_time for x in changes]
    assert times == sorted(times)
    told = {x.text: x.answer for x in changes}
    assert told["zero=1"] == price(own, replace(words, zero=1))
    assert told["recompute=selective"].step_time < price(own, words).step_time


def test_waits_hold_launches_too():
    """Three quarters of a step of one micro-batch on four equal ranks, kernels or launches."""
    small = DecoderSizes(128, 64, 4, 4, 256, 64, 128)
    own = make_pricing_setting(
        small, make_preset("nvswitch-h100-8"), framework_name="megatron-lm"
    )
    words = parse_spec("pp=4,microbatch_size=1,batch=1")
    parts = step_parts(SpecStep(own, words))
    step = price(own, words).step_time or 0.0
    work = step - parts["update"] - parts["messages"]
    assert parts["bubble"] == pytest.approx(0.75 * work, rel=0.1)


def test_causes_are_what_the_changed_run_takes_more():
    own, words = (
        setting(),
        parse_spec("dp=4,tp=4,pp=2,microbatch_size=1,batch=64,zero=1"),
    )
    step = price(own, words).step_time or 0.0
    parts = step_parts(SpecStep(own, words))
    causes = {x.name: x.seconds for x in step_causes(SpecStep(own, words), parts)}
    again = price(own, replace(words, recompute="full")).step_time or 0.0
    checked = (
        price(setting(environment_name="checked-collectives"), words).step_time or 0.0
    )
    assert causes["recompute"] == pytest.approx(again - step)
    assert causes["checks"] == pytest.approx(checked - step)
    # Each usual factor is above two, so that at least the part itself is added.
    assert causes["host"] >= parts["host"] * 0.99
    assert causes["inside"] >= parts["shards"] * 0.99


def test_a_step_of_captured_launches_is_explained():
    """Collectives that are checked cannot be captured: the run does not have that cause."""
    words = "dp=4,tp=8,microbatch_size=1,batch=64,cuda_graphs=layers"
    step = SpecStep(setting(), parse_spec(words))
    names = {cause.name for cause in step_causes(step, step_parts(step))}
    assert "across" in names
    assert "checks" not in names
