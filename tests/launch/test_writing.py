"""What is written for a launcher is read back as the same plan, and goes from file to file."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.importing import with_missing
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.registry import LAUNCHERS, READERS
from gnnplace.launch.torchtitan import MODELS
from gnnplace.launch.words import size_values, word_values
from gnnplace.launch.writing import (
    canonical,
    convert_launch_file,
    nearest_plan,
    write_launch_plan,
)
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.launchers import NAMES

LLAMA = MODELS["llama3_8b"][1]
GPT = DecoderSizes(32, 256, 8, 8, 1024, 64, 512, gated=False)
MODELS_OF_TESTS = (LLAMA, GPT, MODELS["qwen3_30b_a3b"][1], MODELS["deepseek_v3_16b"][1])
SCHEDULES = ("1f1b", "interleaved", "gpipe", "zero-bubble", "v")
PRECISIONS = (
    "32-true",
    "bf16-mixed",
    "16-mixed",
    "bf16-true",
    "bf16-master",
    "16-master",
)


@st.composite
def plans(draw: st.DrawFn) -> LaunchPlan:
    """Draw any plan of a few models: every word of a `LaunchPlan` that the search can set."""
    sizes = replace(draw(st.sampled_from(MODELS_OF_TESTS)), length=128)
    pp = draw(st.sampled_from([1, 2, 4]))
    schedule = draw(st.sampled_from(SCHEDULES)) if pp > 1 else "1f1b"
    chunks = 2 if schedule in ("interleaved", "v") else 1
    cuts = sorted(draw(st.integers(0, sizes.layers)) for _ in range(pp * chunks - 1))
    bounds = [0, *cuts, sizes.layers]
    layers = tuple(after - before for before, after in itertools.pairwise(bounds))
    dp, tp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    size, zero = draw(st.sampled_from([1, 2])), draw(st.integers(0, 3))
    has_experts = sizes.experts is not None
    overlaps = [
        (),
        ("gradients",),
        ("gradients", "parameters"),
        ("gradients", "tp"),
        ("tp",),
    ]
    return LaunchPlan(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=draw(st.sampled_from([1, 2])),
        ep=draw(st.sampled_from([1, dp])) if has_experts else 1,
        etp=1 if tp > 1 and has_experts and draw(st.booleans()) else None,
        sp=draw(st.booleans()),
        chunks=chunks,
        layers=layers if pp > 1 else None,
        microbatch_size=size,
        batch=dp * size * 8,
        zero=zero,
        group=draw(st.sampled_from([None, 1, 2])) if zero and dp == 4 else None,
        recompute=draw(
            st.sampled_from(["none", "full", "selective", "block:2", "uniform:2"])
        ),
        schedule=schedule,
        precision=draw(st.sampled_from(PRECISIONS)),
        gradients=draw(st.sampled_from([None, "same", "fp32"])),
        optimizer=draw(st.sampled_from(["sgd", "adam", "adamw"])),
        overlap=draw(st.sampled_from(overlaps)),
        compile=draw(st.booleans()),
        cuda_graphs=draw(st.sampled_from([None, "off", "layers", "iteration"])),
        sizes=sizes,
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_what_is_written_is_read_as_the_same_plan(name, plan):
    target = LAUNCHERS[name]
    base, steps = nearest_plan(plan, target)
    last = steps[-1][1] if steps else base
    try:
        text, losses = write_launch_plan(last, name, ["a plan"])
    except InfeasibleError:
        return  # no file says another plan
    back = target.read(text, "file")
    back = back if back.dp else back.with_dp(last.world, "file")
    expected, back = (canonical(x, target.framework) for x in (last, back))
    differing = {
        x.name for x in fields(LaunchPlan)
        if x.compare and getattr(expected, x.name) != getattr(back, x.name)
    }  # fmt: skip
    # The model of DeepSpeed and accelerate is the script's: their files have no sizes.
    assert differing <= ({"sizes"} if name in ("deepspeed", "accelerate") else set())
    assert all("the script's to say" in loss.summary for loss in losses)


def test_one_plan_has_one_spelling():
    plan = LaunchPlan(dp=2, pp=2, layers=(16, 16), zero=1, group=2, precision="32-true",
                      gradients="fp32", recompute="uniform:1", cuda_graphs="off")  # fmt: skip
    spelled = canonical(plan, "megatron-lm")
    assert (spelled.layers, spelled.group, spelled.gradients) == (None, None, "same")
    assert (spelled.recompute, spelled.cuda_graphs, spelled.zero) == ("full", None, 1)
    # Frameworks sum gradients in their own type where nothing is said.
    half = LaunchPlan(precision="bf16-master")
    assert canonical(half, "megatron-lm").gradients == "fp32"
    assert canonical(half, "megatron-deepspeed").gradients == "same"
    assert (
        canonical(replace(half, precision="16-master"), "megatron-lm").gradients
        == "same"
    )


SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
TP=2
ARGS="--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048
 --max-position-embeddings 2048 --vocab-size 32000 --swiglu --normalization RMSNorm
 --position-embedding-type rope --disable-bias-linear --ffn-hidden-size 2816
 --untie-embeddings-and-output-weights"
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py $ARGS --tensor-model-parallel-size $TP \\
  --pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 64 --bf16 \\
  --use-distributed-optimizer --sequence-parallel --overlap-grad-reduce --fp8-format hybrid
"""
NANOTRON = """
checkpoints: {checkpoint_interval: 10, checkpoints_path: checkpoints}
general: {project: x, run: y, seed: 1}
model:
  dtype: bfloat16
  model_config: {hidden_size: 512, intermediate_size: 1536, num_hidden_layers: 8,
    num_attention_heads: 8, num_key_value_heads: 4, max_position_embeddings: 1024,
    vocab_size: 32000, tie_word_embeddings: true}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 1, optimizer_factory: {name: adamW}}
parallelism: {dp: 2, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 4, sequence_length: 1024}
"""
TITAN = """
[model]
flavor = "8B"
name = "llama3"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
ACCELERATE = """# gnnplace: {"batch": 64, "microbatch_size": 2}
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
"""
DEEPSPEED = (
    '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, '
    '"bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "overlap_comm": true}}'
)
BRIDGE = """model.tensor_model_parallel_size=2
model.pipeline_model_parallel_size=2
train.micro_batch_size=1
train.global_batch_size=32
mixed_precision=bf16_mixed
ddp.use_distributed_optimizer=true
"""
FILES = {
    "megatron-lm": SCRIPT, "nanotron": NANOTRON, "torchtitan": TITAN, "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED, "megatron-bridge": BRIDGE,
}  # fmt: skip
SUFFIXES = {"torchtitan": ".toml"}


def read(name: str) -> LaunchPlan:
    """Return the plan of one of the files, with eight devices where it says none."""
    plan = READERS[name].read(FILES[name], f"file{SUFFIXES.get(name, '')}", {})
    return plan if plan.dp else with_missing(plan, gpus=16)


def words(plan: LaunchPlan, framework: str) -> dict[str, object]:
    """Return the words that both of two files must say."""
    said = word_values(canonical(replace(plan, accumulation=None), framework))
    return said | (size_values(plan.sizes) if plan.sizes else {})


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_read_and_written_again_has_the_same_words(name):
    plan = read(name)
    written = convert_launch_file(plan, name, source_launcher=name, gpus=16)
    back = LAUNCHERS[name].read(written.text, "file")
    back = back if back.dp else back.with_dp(plan.world, "file")
    framework = LAUNCHERS[name].framework
    filled = replace(
        plan, batch=written.plan.batch, microbatch_size=written.plan.microbatch_size
    )
    # nanotron's, torchtitan's and accelerate's files name no optimizer or schedule of their own.
    assert words(back, framework) == words(filled, framework)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_every_file_goes_to_every_launcher_or_one_line_says_why_not(name, target):
    plan = read(name)
    try:
        written = convert_launch_file(plan, target, source_launcher=name, gpus=16)
    except InfeasibleError:
        return  # such as stages for accelerate
    back = LAUNCHERS[target].read(written.text, "file")
    assert (back.tp, back.cp, back.microbatch_size) == (
        written.plan.tp, written.plan.cp, written.plan.microbatch_size,
    )  # fmt: skip
    assert back.dp in (None, written.plan.dp)


def test_what_another_file_cannot_carry_is_listed():
    written = convert_launch_file(
        read("megatron-lm"), "deepspeed", source_launcher="megatron-lm"
    )
    lines = "\n".join(loss.line for loss in written.losses)
    assert "--fp8-format" in lines
    assert "sp=off is written" in lines
    assert "pp: is the script's to say" in lines
    assert "Not carried" in LAUNCHERS["megatron-lm"].write(
        read("megatron-lm"), ["Not carried"], 8
    )


def test_gradients_keep_their_type_from_file_to_file():
    plan = read("megatron-lm")
    assert plan.gradients == "fp32"
    written = convert_launch_file(plan, "deepspeed", source_launcher="megatron-lm")
    assert LAUNCHERS["deepspeed"].read(written.text, "file").gradients == "fp32"
    open_plan = replace(plan, gradients=None)
    text = write_launch_plan(
        nearest_plan(open_plan, LAUNCHERS["megatron-lm"])[0], "megatron-lm", []
    )
    assert "--grad-reduce-in-bf16" not in text[0]


def test_devices_that_a_file_does_not_say_are_asked_for():
    plan = READERS["deepspeed"].read(DEEPSPEED, "ds.json", {})
    with pytest.raises(InputError, match="give --gpus N"):
        convert_launch_file(plan, "accelerate", source_launcher="deepspeed")
    assert with_missing(plan, gpus=16).dp == 16
    with pytest.raises(InputError, match="--gpus 4: the launch file says 8"):
        with_missing(read("accelerate"), gpus=4)
