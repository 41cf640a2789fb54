"""Bytes of the fullest device by part, and the changes with which a plan fits."""

import json

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import InputError
from gnnplace.planning import plan_devices
from gnnplace.planning.fitting import fit_plan, judge_fit, leanest_spec
from gnnplace.plans import SearchOptions, TrainingJob
from gnnplace.plans.decoders.decoder import catalogue_decoder
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import price

QWEN = "Qwen/Qwen3-8B"
PARAMETERS = 8_190_735_360
CLUSTER = plan_devices("8xH100", None, "auto")
SETTING = make_pricing_setting(
    catalogue_decoder(QWEN, 8), CLUSTER, precision="bf16-mixed"
)


def fit(words, **job):
    given = None if words is None else parse_spec(words)
    return fit_plan(TrainingJob(QWEN, **job), CLUSTER, given)


@pytest.fixture(scope="module")
def replicated():
    return fit("dp=8,microbatch_size=1")


def test_parts_by_hand(replicated):
    """bf16-mixed: parameters, gradients and two moments in float32, DDP's buckets beside."""
    parts = replicated.parts
    assert parts.parameters == parts.gradients == parts.buckets == 4 * PARAMETERS
    assert parts.optimizer == 8 * PARAMETERS
    assert parts.binds == "optimizer"
    assert not replicated.fits


@pytest.mark.parametrize(
    ("zero", "parameters", "gradients", "optimizer"),
    [(0, 4, 4, 8), (1, 4, 4, 1), (2, 0.5, 0.5, 1), (3, 0.5, 0.5, 1)],
)
def test_zero_shares_parts(zero, parameters, gradients, optimizer):
    """Of eight replicas; FSDP's shards have the eighth of all, gathered ones are at work."""
    parts = fit(f"dp=8,microbatch_size=1,zero={zero},recompute=full").parts
    shares = (parts.parameters, parts.gradients, parts.optimizer)
    expected = [PARAMETERS * size for size in (parameters, gradients, optimizer)]
    assert list(shares) == pytest.approx(expected)
    # The input of each of 36 layers, in half precision.
    assert parts.activations == pytest.approx(2 * 4096 * 4096 * 36)


def test_parts_add_up_to_the_peak(replicated):
    assert replicated.parts.total == pytest.approx(replicated.answer.peak)
    assert replicated.parts.lacking == pytest.approx(
        replicated.answer.peak - replicated.parts.usable
    )
    for size in replicated.parts.parts.values():
        text = f" {size / 1e9:.2f}"
        assert text in replicated.answer.reason or size == 0
    assert "of rank 0 lacks" in replicated.answer.reason


def test_changes_are_the_pricers_own(replicated):
    """Every change of the words is the price of these words."""
    changed = [change for change in replicated.changes if change.kind == "words"]
    assert {change.change for change in changed} >= {"zero=2", "zero=3"}
    for change in changed:
        name, _, value = change.change.partition("=")
        spec = replicated.spec.with_words(
            **{name: int(value) if value.isdigit() else value}
        )
        answer = price(SETTING, spec)
        assert answer.feasible
        assert answer.step_time == change.step_time
        assert answer.peak == pytest.approx(change.parts.total)
    seconds = [change.step_time for change in changed]
    assert seconds == sorted(seconds)


def test_a_leaner_optimizer_may_be_the_only_change():
    """Of one GPU: no ZeRO, no shards; one byte each of two moments instead of four.

    The host's memory is the other way.
    """
    sizes = catalogue_decoder("Qwen/Qwen3-4B")
    setting = make_pricing_setting(
        sizes, plan_devices("1xH100", 60e9, "auto"), memory_limit=60e9
    )
    answer = judge_fit(setting, parse_spec("dp=1,microbatch_size=1,recompute=full"))
    assert not answer.fits
    changes = {change.kind: change for change in answer.changes}
    assert set(changes) >= {"words", "optimizer"}
    # What changes no number of the training comes first.
    assert answer.changes[0].change == "offload=optimizer"
    first = next(change for change in answer.changes if change.kind == "optimizer")
    assert first.change == "--optimizer adamw-8bit"
    assert first.parts.optimizer == pytest.approx((2 + 8 / 256) * sizes.parameters)
    assert answer.nearest is None


def test_what_fits_needs_no_change():
    answer = fit("dp=8,microbatch_size=1,zero=3")
    assert answer.fits
    assert answer.changes == ()
    assert answer.answer.fits > 0.9


def test_where_nothing_fits_the_leanest_plan_says_what_lacks():
    one = plan_devices("1xH100", None, "auto")
    setting = make_pricing_setting(catalogue_decoder("llama-3.1-405b"), one)
    spec = leanest_spec(setting)
    answer = judge_fit(setting, spec)
    assert spec.recompute == "full"
    assert answer.changes == ()
    assert answer.nearest is not None
    assert answer.nearest.parts.lacking < answer.parts.lacking
    with pytest.raises(InputError, match=r"heads of keys and|no multiple of"):
        leanest_spec(
            make_pricing_setting(
                catalogue_decoder(QWEN), plan_devices("3xH100", None, "auto")
            )
        )
    # Of eight GPUs no word is enough, and adapters on weights in 4 bits are.
    eight = make_pricing_setting(catalogue_decoder("llama-3.1-405b", 8), CLUSTER)
    (change,) = judge_fit(eight, leanest_spec(eight)).changes
    assert (change.kind, change.change) == ("trained parameters", "--lora r=16,bits=4")


def test_the_framework_of_a_plan_counts():
    job = TrainingJob(QWEN)
    options = SearchOptions(framework="megatron-lm")
    parts = fit_plan(
        job, CLUSTER, parse_spec("dp=8,zero=1,microbatch_size=1"), options
    ).parts
    # Half parameters, float32 sums; a copy and two moments in float32, shared out.
    assert parts.parameters == 2 * PARAMETERS
    assert parts.gradients == 4 * PARAMETERS
    assert parts.optimizer == pytest.approx(12 / 8 * PARAMETERS)


ENCODER = (
    "hf:bert?hidden_size=512&num_hidden_layers=2&num_attention_heads=8"
    "&intermediate_size=2048&vocab_size=30522&length=128"
)


def captured_fit(words, **job):
    """Return the answer for a captured encoder on eight GPUs."""
    job = {"batch": 64, "precision": "bf16-mixed", **job}
    spec = None if words is None else parse_spec(words)
    return fit_plan(TrainingJob(ENCODER, **job), CLUSTER, spec)


def test_a_captured_model_has_the_parts_of_its_plan():
    """They are those that its plan states; without words it is the plan that accelerate has."""
    answer = captured_fit("dp=8,zero=1,microbatch_size=4")
    given = gnnplace.plan(
        ENCODER, "8xH100", given="dp=8,zero=1,microbatch_size=4", batch=64,
        precision="bf16-mixed",
    )[0]  # fmt: skip
    assert answer.fits
    assert answer.parts == given.fullest
    assert answer.terms.length == 128
    searched = captured_fit(None)
    launched = gnnplace.plan(
        ENCODER, "8xH100", launcher="deepspeed", batch=64, precision="bf16-mixed"
    )[0]
    assert searched.answer.step_time == pytest.approx(launched.step_time, rel=2e-3)


def test_changes_of_a_captured_model_are_its_plans():
    """With little memory, the changes that fit are priced as plans of their own."""
    tight = plan_devices("8xH100", 4.2e9, "auto")
    job = TrainingJob(ENCODER, batch=2048, precision="bf16-mixed")
    answer = fit_plan(job, tight, parse_spec("dp=8,microbatch_size=128"))
    assert not answer.fits
    assert "lacks" in answer.answer.reason
    assert answer.changes
    for change in answer.changes:
        assert change.kind == "words"
        if " and " in change.change:  # two degrees
            continue
        name, _, value = change.change.partition("=")
        spec = answer.spec.with_words(
            **{name: int(value) if value.isdigit() else value}
        )
        given = gnnplace.plan(
            ENCODER,
            tight,
            given=spec,
            batch=2048,
            precision="bf16-mixed",
            headroom=None,
        )[0]
        assert given.step_time == change.step_time


def test_what_a_captured_model_has_not_is_refused():
    """Frameworks and modes are of decoders by their sizes; a file is not given in words."""
    for options in (
        SearchOptions(framework="pytorch"),
        SearchOptions(launcher="nanotron"),
    ):
        with pytest.raises(InputError, match="decoders of the catalogue"):
            fit_plan(TrainingJob(ENCODER, batch=64), CLUSTER, None, options)


def test_the_command_answers_in_text_and_json(capsys):
    command = [
        "plan",
        QWEN,
        "--cluster",
        "8xH100",
        "--fits",
        "--given",
        "dp=8,microbatch_size=1",
    ]
    assert run([*command, "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    fullest = data["fullest"]
    parts = (
        "parameters",
        "gradients",
        "optimizer",
        "buckets",
        "activations",
        "working",
        "slack",
    )
    assert sum(fullest[name] for name in parts) == pytest.approx(fullest["total"])
    assert (data["fits"], fullest["binds"], data["words"]) == (
        False,
        "optimizer",
        "dp=8,microbatch_size=1",
    )
    assert data["changes"][0]["change"] == "zero=2"
    assert run(command) == 3
    text = capsys.readouterr().out
    assert "does not fit (0% likely to fit)" in text
    assert "what binds: the optimizer's state" in text
    assert "smallest change that fits: zero=2: " in text


@pytest.mark.parametrize(
    ("model", "cluster", "is_held"),
    [(QWEN, "8xH100", True), ("meta-llama/Llama-3.1-405B", "1xH100", False)],
)
def test_plans_that_are_searched_have_the_modes(model, cluster, is_held, capsys):
    """With adapters, too; where nothing fits the leanest plan has them."""
    command = [
        "plan",
        model,
        "--cluster",
        cluster,
        "--fits",
        "--lora",
        "r=16",
        "--json",
    ]
    options = ["--modes", "compile=on", "--launcher", "accelerate"]
    assert run([*command, *options]) == (0 if is_held else 3)
    data = json.loads(capsys.readouterr().out)
    assert "compile=on" in data["words"]
    assert (data["fits"], data["lora"]) == (is_held, "r=16")


def test_the_answer_of_a_plan_has_the_parts(capsys):
    command = [
        "plan",
        QWEN,
        "--cluster",
        "8xH100",
        "--given",
        "dp=8,microbatch_size=1,zero=3",
    ]
    assert run([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    device = data["fullest"]["device"]
    assert data["fullest"]["total"] == pytest.approx(data["memory"][device])
    assert run(command) == 0
    assert (
        "(parameters 4.10, gradients 4.10, optimizer 8.19, " in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--given", "plans.csv"], "--fits: is of one plan"),
        (["--try"], "--try: is of a plan's times; leave it out with --fits"),
        (["-o", "plan.json"], "--output: is of a plan's times"),
        (
            ["--given", "dp=8", "--modes", "compile=on"],
            "--modes compile=on: are words of plans",
        ),
    ],
)
def test_what_is_not_of_bytes_is_refused(options, message, capsys):
    assert run(["plan", QWEN, "--cluster", "8xH100", "--fits", *options]) == 2
    assert message in capsys.readouterr().err
