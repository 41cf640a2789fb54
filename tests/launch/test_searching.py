"""What a launcher can run: the best of an enumeration, at the prices of its framework."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import gnnplace
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.explaining import explain_launch_plan
from gnnplace.launch.importing import complete_launch_plan, make_captured_spec
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.megatron import write_megatron
from gnnplace.launch.megatron_script import read_megatron
from gnnplace.launch.registry import LAUNCHERS
from gnnplace.launch.searching import (
    LauncherSearch,
    can_express,
    price_launch_plan,
    with_priced_schedule,
)
from gnnplace.launch.torchtitan import MODELS
from gnnplace.planning.rows import price_plans
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers

SIZES = MODELS["llama3_8b"][1]
CLUSTER = "dgx-h100-8x8"


def test_a_launch_file_takes_what_its_words_take_in_a_table():
    plan = LaunchPlan(dp=2, tp=4, pp=8, layers=(4,) * 8, microbatch_size=1, batch=64, zero=1,
                      precision="bf16-master", gradients="same", optimizer="adamw",
                      recompute="full", overlap=("gradients",), sizes=SIZES)  # fmt: skip
    words = "dp=2,tp=4,pp=8,microbatch_size=1,batch=64,zero=1,gradients=same,recompute=full," \
            "overlap=reduce"  # fmt: skip
    text = write_megatron(plan, [], 8)
    found = price_launch_plan(read_megatron(text, "file"), "megatron-lm", CLUSTER)
    told = price_plans(
        SIZES.model, CLUSTER, words, framework_name="megatron-lm"
    ).answers[0]
    assert found.framework == "megatron-lm"
    assert found.answer == told
    assert found.answer.step_time


def test_groups_compiled_layers_and_captured_launches_are_priced_as_in_a_table():
    plan = LaunchPlan(dp=64, microbatch_size=1, batch=64, zero=3, group=8, precision="bf16-mixed",
                      gradients="fp32", sizes=SIZES, compile=True,
                      cuda_graphs="off")  # fmt: skip
    assert plan.words.endswith(
        "zero=3,zero_group=8,gradients=fp32,compile=on,cuda_graphs=off"
    )
    found = price_launch_plan(plan, "torchtitan", CLUSTER)
    told = price_plans(
        SIZES.model, CLUSTER, f"{plan.words},batch=64", framework_name="torchtitan"
    )
    assert found.answer == told.answers[0]
    words, lines = make_captured_spec(plan)
    assert str(words) == "dp=64,microbatch_size=1,zero=3"
    assert "compile: priced as eager PyTorch" in lines


def test_a_run_is_explained_at_its_frameworks_prices():
    plan = LaunchPlan(dp=2, tp=4, pp=8, microbatch_size=1, batch=64, zero=1, sizes=SIZES,
                      precision="bf16-master", gradients="fp32", optimizer="adamw")  # fmt: skip
    found = explain_launch_plan(price_launch_plan(plan, "megatron-lm", CLUSTER), "2s")
    step = found.answer.answer.step_time
    assert sum(found.parts.values()) == pytest.approx(step)
    assert found.measured is not None
    assert found.measured.seconds == 2.0
    words = with_priced_schedule(found.answer.plan, found.answer.setting)
    for change in found.changes:
        if change.text in ("recompute=full", "microbatch_size=2"):
            name, value = change.text.split("=")
            own = int(value) if value.isdecimal() else value
            told = str(replace(words, **{name: own}))
            (row,) = price_plans(
                SIZES.model, CLUSTER, told, framework_name="megatron-lm"
            ).answers
            assert change.answer == row


def test_experts_that_are_whole_on_shards_are_priced_as_such():
    """As many bytes of experts a device, 1/8 of them or halves of 1/4; no shard gathers rows."""
    sizes = DecoderSizes(
        8, 4096, 32, 8, 14336, 4096, 32000, experts=ExpertLayers(8, 2, 14336)
    )
    plan = LaunchPlan(dp=4, tp=2, ep=4, microbatch_size=1, batch=8, sizes=sizes, zero=1,
                      precision="bf16-master", gradients="fp32", optimizer="adamw")  # fmt: skip
    cut, whole = (
        price_launch_plan(p, "megatron-lm", "nvlink-a100-8")
        for p in (plan, replace(plan, ep=8, etp=1))
    )
    assert whole.notes == ()
    assert "ep=4,etp=1" in str(with_priced_schedule(whole.plan, whole.setting))
    assert whole.answer.state == cut.answer.state
    assert whole.answer.step_time < cut.answer.step_time
    with pytest.raises(InputError, match="is a multiple of tp"):
        price_launch_plan(replace(plan, ep=1, etp=1), "megatron-lm", "nvlink-a100-8")


def test_replicas_that_a_file_leaves_open_fill_the_cluster():
    plan = LaunchPlan(tp=4, microbatch_size=1, batch=64, sizes=SIZES)
    assert complete_launch_plan(plan, 64).dp == 16
    assert "dp=16" in str(complete_launch_plan(plan, 64).spec)


@pytest.mark.parametrize("name", ["megatron-lm", "torchtitan", "nanotron", "deepspeed"])
def test_the_best_plan_of_a_launcher_is_no_slower_than_any_that_it_can_say(name):
    """Every division of 16 GPUs by hand; a plan is priced in about a millisecond."""
    cluster = "dgx-h100-2x8"
    found = LauncherSearch(replace(SIZES, batch=64), resolve_cluster(cluster)).find(
        name
    )
    assert can_express(LAUNCHERS[name], found.plan)
    assert found.answer.feasible
    framework = LAUNCHERS[name].framework
    for tp, pp in itertools.product((1, 2, 4, 8, 16), repeat=2):
        if tp * pp > 16:
            continue
        words = (
            f"dp={16 // (tp * pp)},tp={tp},pp={pp},microbatch_size=1,batch=64,zero=0"
        )
        (row,) = price_plans(
            SIZES.model, cluster, words, framework_name=framework
        ).answers
        if row.feasible:
            assert row.step_time >= found.answer.step_time * (1 - 1e-9), words


def test_a_batch_that_no_replicas_divide_is_refused_with_the_nearest_that_they_do():
    """Heads allow 24, 12, 6 or 3 replicas of 24 GPUs; 1,008 is the nearest multiple of 24."""
    cluster = resolve_cluster("24xH100")
    with pytest.raises(InfeasibleError) as caught:
        LauncherSearch(replace(SIZES, batch=1_000), cluster).find("accelerate")
    assert str(caught.value) == (
        "accelerate: a batch of 1,000 is not divisible by 24 replicas, nor by the 3, 6, 12 that "
        "its plans may have instead; --batch 1008 is"
    )
    assert (
        LauncherSearch(replace(SIZES, batch=1_008), cluster)
        .find("accelerate")
        .answer.feasible
    )


def test_mixtures_lie_on_fsdp_s_shards_where_torchtitan_is_searched():
    """30 billion parameters on 16 H100: ZeRO 3 by hand fits, and is no faster than what is found.
    Some thousand plans are priced, a few seconds."""
    model, cluster = MODELS["qwen3_30b_a3b"][1].model, "dgx-h100-2x8"
    words = "dp=16,ep=8,microbatch_size=1,batch=64,zero=3,recompute=full"
    (row,) = price_plans(model, cluster, words, framework_name="torchtitan").answers
    (found,) = gnnplace.plan(model, cluster, launcher="torchtitan", batch=64)
    assert row.feasible
    assert found.file.stages[0].zero == 3
    assert found.step_time <= row.step_time * (1 + 1e-9)


def test_stages_are_what_accelerate_lacks():
    """No plan of it has stages, whatever the framework would price."""
    (found,) = gnnplace.plan(
        SIZES.model, "dgx-h100-2x8", launcher="accelerate", batch=64
    )
    (stage,) = found.file.stages
    assert stage.zero != 1


def test_the_fewest_devices_are_those_below_which_nothing_fits():
    """8 billion parameters in half precision with fp32 copies and moments take two of 80 GB."""
    cluster = "dgx-h100-2x8"
    (found,) = gnnplace.plan(
        SIZES.model, cluster, launcher="megatron-lm", batch=64, goal="gpus"
    )
    world = len(found.file.memory)
    assert 1 < world < 16
    assert world & (world - 1) == 0
    words = [f"dp={d},tp={t},pp={world // 2 // (d * t)},microbatch_size=1,batch=64,zero={z},"
             "recompute=full" for d in (1, 2, 4) for t in (1, 2, 4) for z in (0, 1)
             if world // 2 % (d * t) == 0 and world // 2 >= d * t]  # fmt: skip
    for told in words:
        rows = price_plans(
            SIZES.model, "dgx-h100-2x8", told, framework_name="megatron-lm"
        )
        assert not rows.answers[0].feasible, told


def test_nothing_that_fits_is_exit_3_and_no_decoder_exit_2():
    with pytest.raises(InfeasibleError, match="nothing fits"):
        gnnplace.plan(
            MODELS["llama3_405b"][1].model, "dgx-h100-2x8", launcher="nanotron", batch=8
        )
    with pytest.raises(InputError, match="no decoder of text"):
        gnnplace.plan("resnet50", "dgx-h100-2x8", launcher="nanotron", batch=8)
    with pytest.raises(InputError, match="does not say microbatch_size and batch"):
        price_launch_plan(LaunchPlan(tp=8, sizes=SIZES), "deepspeed", "dgx-h100-2x8")


@pytest.mark.parametrize(
    ("name", "model", "reason"),
    [
        (
            "torchtitan",
            "hf:gpt2?n_layer=2",
            "torchtitan: has no code for layers with learned",
        ),
        ("torchtitan", "google/gemma-2b", "torchtitan: has no code for gemma"),
        ("nanotron", "hf:mixtral?num_hidden_layers=2", "Llama's"),
    ],
)
def test_layers_that_a_launcher_is_not_told_are_refused(name, model, reason):
    """A file of dense layers would start, and train another model."""
    with pytest.raises(InfeasibleError, match=reason):
        gnnplace.plan(model, "nvswitch-h100-8", launcher=name, batch=8)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("HuggingFaceTB/SmolLM2-360M", 1024),
        ("HuggingFaceTB/SmolLM2-360M?length=512", 512),
    ],
)
def test_examples_of_a_named_model_have_the_file_s_tokens(model, tokens):
    """A recipe or a fine-tuning file names a checkpoint and says how long its examples are."""
    plan = LaunchPlan(dp=8, microbatch_size=1, batch=8, length=1024, optimizer="adamw")
    priced = price_launch_plan(plan, "axolotl", "nvlink-a100-8", model=model)
    assert priced.setting.decoder.length == tokens


def test_shards_of_experts_count_where_the_model_is_named():
    """Megatron's ep counts groups over all shards; of a dense model they are nothing."""
    plan = LaunchPlan(dp=1, tp=4, ep=4, etp=1, pp=2, microbatch_size=1, batch=4,
                      precision="bf16-master", optimizer="adamw")  # fmt: skip
    experts = price_launch_plan(
        plan, "megatron-bridge", "dgx-h100-8x8", model="Qwen/Qwen3-30B-A3B"
    )
    assert "tp=4,etp=1" in str(with_priced_schedule(experts.plan, experts.setting))
    dense = replace(plan, ep=1, pp=1, dp=2)
    answer = price_launch_plan(
        dense, "megatron-bridge", "dgx-h100-8x8", model="Qwen/Qwen3-8B"
    )
    assert "etp" not in str(with_priced_schedule(answer.plan, answer.setting))
