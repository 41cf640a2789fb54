"""DeepSpeed: its configurations have the words that they mean; what contradicts is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.launch.deepspeed import nearest_deepspeed, write_deepspeed
from gnnplace.plans.launch.deepspeed_reading import read_deepspeed
from gnnplace.plans.launch.importing import completed
from gnnplace.plans.launch.launch_plan import LaunchPlan

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
    ("text", "zero", "precision"), [(ZERO_1, 1, "16-master"), (ZERO_3, 3, "bf16-master")]
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
    plan = read_deepspeed('{"train_batch_size": "auto", "zero_optimisation": {"stage": 2}}', "file")
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
    assert data["train_batch_size"] == data["train_micro_batch_size_per_gpu"] * steps * 2
    split = LaunchPlan(dp=2, tp=4, sp=False, microbatch_size=2, batch=32)
    text = write_deepspeed(split, [])
    assert "train_batch_size" not in json.loads(text)  # which would be held against 8 processes
    assert (read_deepspeed(text, "file").batch, read_deepspeed(text, "file").dp) == (32, 2)


def test_keys_of_zero_that_it_refuses_are_named():
    """`DeepSpeedZeroConfig` forbids fields that it does not have; at the top they pass unread."""
    text = json.dumps({"zero_optimization": {"stage": 3, "tsage": 1, "stage3_max_reuse": 1,
                                             "mics_shard_size": 4}, "train_batch_size": 8,
                       "trian": 1})  # fmt: skip
    plan = read_deepspeed(text, "file")
    assert plan.notes == ("keys that are not known, and not priced: trian",
                          "keys of zero_optimization that DeepSpeed refuses: tsage")  # fmt: skip
    assert plan.group == 4


def test_a_micro_batch_that_is_left_out_is_what_replicas_leave():
    plan = read_deepspeed('{"train_batch_size": 32, "gradient_accumulation_steps": 2}', "file")
    found = completed(plan, 8)
    assert (found.dp, found.microbatch_size, found.microbatches) == (8, 2, 2)


def test_experts_lie_whole_on_autoep():
    """`module_inject/auto_ep_folding.py` refuses experts that are cut."""
    sizes = DecoderSizes(4, 256, 8, 8, 512, 64, 512, experts=ExpertLayers(8, 2, 512))
    plan = LaunchPlan(dp=4, tp=2, ep=2, sp=False, microbatch_size=1, batch=8, zero=1, sizes=sizes,
                      precision="bf16-master", gradients="same", optimizer="adamw")  # fmt: skip
    ((told, whole),) = nearest_deepspeed(plan)
    assert (told.split()[0], whole.ep, whole.etp) == ("ep=2", 4, 1)
    data = json.loads(write_deepspeed(whole, []))
    assert data["expert_parallel"] == {"enabled": True, "autoep_size": 4}
    back = read_deepspeed(json.dumps(data), "file")
    assert (back.ep, back.etp, back.tp) == (4, 1, 2)
    with pytest.raises(InfeasibleError, match="in one stage"):
        write_deepspeed(replace(whole, pp=2), [])
