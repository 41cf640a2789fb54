"""DeepSpeed: its configurations have the words that they mean; what contradicts is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.deepspeed import iterate_deepspeed_mends, write_deepspeed
from gnnplace.launch.deepspeed_reading import read_deepspeed
from gnnplace.launch.importing import complete_launch_plan
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers

# `tests/model/Megatron_GPT2/ds_config_func_bs8_zero1.json`, `tests/torch_compile/ds_config_z3.json`
# of DeepSpeed edaa7221.
ZERO_1 = """{"train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_print": 1,
  "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
           "min_loss_scale": 1}}"""
ZERO_3 = """{"train_batch_size": 8, "steps_per_print": 2000,
  "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001}},
  "gradient_clipping": 1.0, "prescale_gradients": false, "bf16": {"enabled": true},
  "wall_clock_breakdown": false,
  "zero_optimization": {"stage": 3, "reduce_scatter": true, "overlap_comm": false}}"""


@pytest.mark.parametrize(
    ("text", "zero", "precision"),
    [(ZERO_1, 1, "16-master"), (ZERO_3, 3, "bf16-master")],
)
def test_real_files_have_the_words_that_they_mean(text, zero, precision):
    plan = read_deepspeed(text, "file")
    assert (plan.batch, plan.zero, plan.precision) == (8, zero, precision)
    assert (plan.gradients, plan.microbatch_size, plan.dp) == ("same", None, None)


def test_stages_are_held_where_deepspeed_reads_nothing():
    plan = LaunchPlan(dp=2, pp=2, layers=(3, 5), microbatch_size=1, batch=8, recompute="full",
                      precision="bf16-master", gradients="fp32", optimizer="adamw")  # fmt: skip
    data = json.loads(write_deepspeed(plan, ["a plan"]))
    assert data["x-gnnplace"]["layers"] == [3, 5]
    assert data["data_types"] == {"grad_accum_dtype": "fp32"}
    assert data["gradient_accumulation_steps"] == 4
    assert read_deepspeed(json.dumps(data), "file") == plan


def test_auto_is_the_trainers_and_unknown_keys_are_listed():
    plan = read_deepspeed(
        '{"train_batch_size": "auto", "zero_optimisation": {"stage": 2}}', "file"
    )
    assert plan.batch is None
    assert plan.notes == (
        "keys that are not known, and not priced: zero_optimisation",
        "auto, which the Trainer fills in: train_batch_size",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "must be keys and values"),
        ('{"zero_optimization": {"stage": 4}}', "must be 0 to 3"),
        ('{"zero_optimization": {"stage": "two"}}', "whole number"),
        ('{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, '
         '"gradient_accumulation_steps": 1}', "no multiple of micro-batch 2 x accumulation 1"),
        ('{"x-gnnplace": {"pp": "2"}, "train_batch_size": 2}', "no word of a plan"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(text, told):
    with pytest.raises(FormatError, match=told) as caught:
        read_deepspeed(text, "file")
    assert "\n" not in str(caught.value)


def test_batches_are_what_deepspeed_holds_them_to_with_splits_and_without():
    """`_batch_assertion` (`runtime/config.py`): micro-batch x accumulation x processes."""
    whole = LaunchPlan(dp=2, microbatch_size=2, batch=32)
    data = json.loads(write_deepspeed(whole, []))
    steps = data["gradient_accumulation_steps"]
    assert (
        data["train_batch_size"] == data["train_micro_batch_size_per_gpu"] * steps * 2
    )
    split = LaunchPlan(dp=2, tp=4, sp=False, microbatch_size=2, batch=32)
    text = write_deepspeed(split, [])
    assert "train_batch_size" not in json.loads(
        text
    )  # which would be held against 8 processes
    assert (read_deepspeed(text, "file").batch, read_deepspeed(text, "file").dp) == (
        32,
        2,
    )


def test_keys_of_zero_that_it_refuses_are_named():
    """`DeepSpeedZeroConfig` forbids fields that it does not have; at the top they pass unread."""
    text = json.dumps({"zero_optimization": {"stage": 3, "tsage": 1, "stage3_max_reuse": 1,
                                             "mics_shard_size": 4}, "train_batch_size": 8,
                       "trian": 1})  # fmt: skip
    plan = read_deepspeed(text, "file")
    assert plan.notes == ("keys that are not known, and not priced: trian",
                          "keys of zero_optimization that DeepSpeed refuses: tsage")  # fmt: skip
    assert plan.group == 4
    (summed,) = plan.not_priced
    assert summed.key == "zero_optimization.mics_shard_size"
    assert "--environment groups-once" in summed.effect


def test_a_micro_batch_that_is_left_out_is_what_replicas_leave():
    plan = read_deepspeed(
        '{"train_batch_size": 32, "gradient_accumulation_steps": 2}', "file"
    )
    found = complete_launch_plan(plan, 8)
    assert (found.dp, found.microbatch_size, found.microbatches) == (8, 2, 2)


def test_experts_lie_whole_on_autoep():
    """`module_inject/auto_ep_folding.py` refuses experts that are cut."""
    sizes = DecoderSizes(4, 256, 8, 8, 512, 64, 512, experts=ExpertLayers(8, 2, 512))
    plan = LaunchPlan(dp=4, tp=2, ep=2, sp=False, microbatch_size=1, batch=8, zero=1, sizes=sizes,
                      precision="bf16-master", gradients="same", optimizer="adamw")  # fmt: skip
    ((told, whole),) = iterate_deepspeed_mends(plan)
    assert (told.split()[0], whole.ep, whole.etp) == ("ep=2", 4, 1)
    data = json.loads(write_deepspeed(whole, []))
    assert data["expert_parallel"] == {"enabled": True, "autoep_size": 4}
    back = read_deepspeed(json.dumps(data), "file")
    assert (back.ep, back.etp, back.tp) == (4, 1, 2)
    with pytest.raises(InfeasibleError, match="in one stage"):
        write_deepspeed(replace(whole, pp=2), [])


@pytest.mark.parametrize("keys", [{"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}},
                                  {"fp16": {"enabled": "auto", "loss_scale": 0}}])  # fmt: skip
def test_a_precision_that_is_auto_is_none_until_the_trainer_says_it(keys):
    text = json.dumps(
        {"train_batch_size": "auto", "zero_optimization": {"stage": 1}, **keys}
    )
    plan = read_deepspeed(text, "file")
    assert (plan.precision, plan.batch, plan.zero) == (None, None, 1)
    assert "fp16.enabled" in plan.notes[0]
    with pytest.raises(
        FormatError, match=r"fp16.enabled: 'false': must be true or false"
    ):
        read_deepspeed(
            text.replace('"auto"', '"false"', 2).replace('"false"', "64", 1), "file"
        )


def test_what_no_price_counts_is_named_and_what_is_off_is_not():
    text = """{"bf16": {"enabled": true},
 "optimizer": {"type": "Lamb"},
 "zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 8,
  "offload_param": {"device": "none"},
  "offload_optimizer": {"device": "nvme", "ratio": 0.3}}}"""
    plan = read_deepspeed(text, "file")
    assert {(entry.key.rpartition(".")[2], entry.line) for entry in plan.not_priced} == {
        ("type", 2), ("zero_quantized_weights", 3), ("zero_hpz_partition_size", 3),
        ("offload_optimizer", 5),
    }  # fmt: skip
    assert plan.optimizer == "lamb"


def test_autocast_is_mixed_and_states_in_bf16_are_true():
    mixed = read_deepspeed(
        '{"torch_autocast": {"enabled": true, "dtype": "bfloat16"}}', "file"
    )
    true = read_deepspeed('{"bf16": {"enabled": true, "bf16_master_weights_and_grads": true, '
                          '"bf16_optimizer_states": true}}', "file")  # fmt: skip
    assert (mixed.precision, true.precision) == ("bf16-mixed", "bf16-true")


def test_a_template_asks_for_its_placeholders():
    text = (
        '{"train_batch_size": CONFIG_BATCH, "zero_optimization": {"stage": ZERO_STAGE}}'
    )
    with pytest.raises(
        FormatError, match="needs CONFIG_BATCH, ZERO_STAGE: give --set CONFIG_BATCH"
    ):
        read_deepspeed(text, "file")
    plan = read_deepspeed(text, "file", {"CONFIG_BATCH": "8", "ZERO_STAGE": "2"})
    assert (plan.batch, plan.zero) == (8, 2)
    with pytest.raises(FormatError, match="--set stages: the file has no such key"):
        read_deepspeed('{"train_batch_size": 8}', "file", {"stages": "2"})
