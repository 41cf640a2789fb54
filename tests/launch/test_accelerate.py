"""accelerate: its own parser reads what is written, and real files have the words they mean."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from unittest import mock

import pytest
import yaml

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.accelerate import nearest_accelerate, write_accelerate
from gnnplace.launch.accelerate_reading import read_accelerate
from gnnplace.launch.launch_plan import LaunchPlan

# `examples/torch_native_parallelism/configs` of accelerate 16cb6eb8.
TP_HSDP = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: bf16
num_machines: 1
num_processes: 8
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
"""
CP = """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_processes: 8
parallelism_config:
  parallelism_config_cp_size: 8
  parallelism_config_cp_comm_strategy: alltoall
"""


@pytest.mark.parametrize(
    ("text", "words", "group"),
    [
        (TP_HSDP, "dp=4,tp=2,zero=3,zero_group=2", 2),
        (CP, "cp=8,zero=3,recompute=full", None),
    ],
)
def test_real_files_have_the_words_that_they_mean(text, words, group):
    plan = read_accelerate(text, "file")
    assert plan.words == words
    assert plan.group == group
    assert plan.notes[-1].endswith("batch, microbatch_size, optimizer")


def drawn(draw: random.Random) -> LaunchPlan:
    """A plan that accelerate can run."""
    dp, tp = draw.choice([1, 2, 4, 6]), draw.choice([1, 2, 4])
    zero = (
        draw.choice([2, 3])
        if dp > 1 and tp > 1
        else draw.choice([0, 2, 3])
        if dp > 1
        else 0
    )
    group = 2 if dp in (4, 6) and zero and draw.random() < 0.5 else None
    return LaunchPlan(
        dp=dp, tp=tp, zero=zero, group=group, microbatch_size=draw.choice([1, 4]),
        batch=dp * 4 * draw.choice([1, 3]), optimizer=draw.choice(["sgd", "adamw"]),
        recompute=draw.choice(["none", "full"]) if zero or tp > 1 else "none",
        precision=draw.choice(["32-true", "bf16-mixed", "16-mixed"]), gradients="same",
    )  # fmt: skip


def parsed(path):
    """What accelerate makes of a file, as `accelerate launch` does; processes, FSDP, mesh."""
    from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.commands.launch import (
        _validate_launch_command,
        launch_command_parser,
    )
    from accelerate.utils.launch import prepare_multi_gpu_env

    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, _, _ = _validate_launch_command(args)
    args.main_process_port = 29511
    with mock.patch.dict(os.environ, {}):
        os.environ.update(prepare_multi_gpu_env(args))
        sharded = FullyShardedDataParallelPlugin() if args.use_fsdp else None
        mesh = ParallelismConfig()
    return args, sharded, mesh


@pytest.mark.parametrize("seed", range(20))
def test_accelerate_reads_what_is_written_and_it_comes_back(seed, tmp_path):
    """Its imports take 2 s, once."""
    plan = drawn(random.Random(seed))
    text = write_accelerate(plan, ["a plan"], 8)
    assert read_accelerate(text, "file") == plan
    if plan.dp == plan.tp == 1:
        return
    path = tmp_path / "config.yaml"
    path.write_text(text)
    args, sharded, mesh = parsed(path)
    assert args.num_processes == plan.world
    assert {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[
        args.mixed_precision
    ] == (plan.precision)
    if sharded is not None:
        assert sharded.fsdp_version == 2
        assert sharded.reshard_after_forward is (plan.zero == 3)
        assert sharded.activation_checkpointing is (plan.recompute == "full")
    if plan.tp > 1 or plan.group:
        assert mesh.total_size == plan.world
        assert (mesh.tp_size, mesh.data_parallel_size) == (plan.tp, plan.dp)
        assert mesh.dp_shard_size == (plan.group or plan.dp if plan.zero else 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("distributed_type: FSDP\nnum_proceses: 8\n", "num_proceses: unknown key; did you mean"),
        ("a: !!python/object/apply:os.system ['touch /tmp/never']\n", "not YAML"),
        (TP_HSDP.replace("processes: 8", "processes: 4"), "make 8 processes, and num_proc"),
        (TP_HSDP.replace("shard_size: 2", "shard_size: 1").replace("processes: 8", "processes: 4"),
         "need dp_shard_size > 1"),
        ("distributed_type: XLA\n", "is not priced"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 5}\n", "must be 0 to 3"),
        ("- 1\n", "must be keys and values"),
        ("num_processes: eight\n", "whole number"),
        (CP.replace("cp_size: 8", "cp_size: 0"), "must be a whole number from 1 on"),
        ("# gnnplace: {\"batch\": \"many\"}\nnum_processes: 1\n", "no word of a plan"),
        ("# gnnplace: {\"batch\": 7, \"microbatch_size\": 2}\nnum_processes: 1\n", "no multiple"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(text, told):
    with pytest.raises(FormatError, match=told) as caught:
        read_accelerate(text, "file")
    assert "\n" not in str(caught.value)


def test_keys_that_accelerate_does_not_read_are_named():
    plan = read_accelerate(TP_HSDP + "  parallelism_config_pp_size: 4\n", "file")
    assert "keys that accelerate does not read: pp_size" in plan.notes[0]


def test_stages_cannot_be_said():
    with pytest.raises(
        InfeasibleError, match="has no pipeline stages, and the plan has 2"
    ):
        write_accelerate(LaunchPlan(dp=1, pp=2, microbatch_size=1, batch=2), [])


def test_what_it_cannot_say_is_named_with_the_nearest():
    plan = LaunchPlan(dp=2, zero=1, recompute="block:2", precision="bf16-master")
    steps = list(nearest_accelerate(plan))
    assert [told.partition(";")[0].partition(":")[0] for told, _ in steps] == [
        "zero=1", "recompute=block", "precision bf16-master",
    ]  # fmt: skip
    wanted = replace(plan, zero=2, recompute="full", precision="bf16-mixed")
    assert steps[-1][1] == wanted


@pytest.mark.parametrize("seed", range(5))
def test_the_trainer_and_lightning_take_the_same_degrees(seed, tmp_path):
    """Both are imported for it, 6 s once; the Trainer wants the file's keys without a prefix."""
    from accelerate import ParallelismConfig
    from lightning.pytorch.strategies import ModelParallelStrategy
    from transformers import TrainingArguments

    plan = drawn(random.Random(100 + seed))
    data = yaml.safe_load(write_accelerate(plan, [], 8))
    sizes = data.get("parallelism_config", {})
    mesh = ParallelismConfig(
        **{
            key.removeprefix("parallelism_config_"): value
            for key, value in sizes.items()
        }
    )
    fsdp = data.get("fsdp_config")
    own = {k.removeprefix("fsdp_"): v for k, v in (fsdp or {}).items()}
    told = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, fsdp=fsdp is not None,
        fsdp_config=own if fsdp else None, parallelism_config=mesh,
        per_device_train_batch_size=plan.microbatch_size,
        gradient_accumulation_steps=plan.microbatches,
    )  # fmt: skip
    assert (
        told.gradient_accumulation_steps * told.per_device_train_batch_size * plan.dp
        == (plan.batch)
    )
    if fsdp is not None:
        assert told.fsdp_config["reshard_after_forward"] is (plan.zero == 3)
        assert told.fsdp_config["activation_checkpointing"] is (
            plan.recompute == "full"
        )
    if sizes:
        assert mesh.total_size == plan.world
    strategy = ModelParallelStrategy(
        data_parallel_size=plan.dp, tensor_parallel_size=plan.tp
    )
    assert (strategy._data_parallel_size, strategy._tensor_parallel_size) == (
        plan.dp,
        plan.tp,
    )


@pytest.mark.parametrize(
    ("dynamo", "compiled", "told"),
    [
        ("dynamo_backend: INDUCTOR", True, ""),
        ("dynamo_backend: INDUCTOR, dynamo_mode: reduce-overhead", True, "CUDA graphs"),
        ("dynamo_backend: AOT_TS_NVFUSER", False, "aot_ts_nvfuser: priced without"),
        ("dynamo_backend: 'NO'", False, ""),
    ],
)
def test_what_dynamo_compiles_is_read(dynamo, compiled, told):
    text = (
        f"distributed_type: MULTI_GPU\nnum_processes: 8\ndynamo_config: {{{dynamo}}}\n"
    )
    plan = read_accelerate(text, "file")
    assert plan.compile is compiled
    assert any(told in note for note in plan.notes) or not told


HYBRID = """distributed_type: FSDP
fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: HYBRID_SHARD, fsdp_offload_params: true}
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


def test_hybrid_shard_has_two_meanings():
    """FSDP 1 shards within a machine; `fully_shard` is given a mesh of all processes."""
    first = read_accelerate(HYBRID, "file")
    assert (first.zero, first.group, first.lines["group"]) == (3, 8, 2)
    assert (first.offload, first.not_priced) == ("optimizer+parameters", ())
    second = read_accelerate(HYBRID.replace("version: 1", "version: 2"), "file")
    assert second.group is None
    assert "HYBRID_SHARD: FSDP 2 does not obey it" in second.notes[0]


def test_deepspeed_and_megatron_inside_are_read(tmp_path):
    inside = (
        "gradient_accumulation_steps: 4, zero_stage: 2, offload_optimizer_device: cpu"
    )
    text = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
    plan = read_accelerate(f"{text}deepspeed_config: {{{inside}}}\n", "file")
    assert (plan.zero, plan.accumulation, plan.precision) == (2, 4, "bf16-master")
    assert (plan.offload, plan.not_priced) == ("optimizer", ())
    named = f"{text}deepspeed_config: {{deepspeed_config_file: a/z.json}}\n"
    path = str(tmp_path / "acc.yaml")
    with pytest.raises(FormatError, match=r"a/z.json: .* is not beside this file"):
        read_accelerate(named, path)
    (tmp_path / "z.json").write_text(
        '{"zero_optimization": {"stage": 3}, "fp16": {"enabled": true}}'
    )
    beside = read_accelerate(named, path)
    assert (beside.zero, beside.precision, beside.dp) == (3, "16-master", 8)
    keys = (
        "tp_degree: 2, pp_degree: 2, num_micro_batches: 4, recompute_activations: true"
    )
    prefixed = ", ".join(f"megatron_lm_{key}" for key in keys.split(", "))
    megatron = text.replace("DEEPSPEED", "MEGATRON_LM")
    plan = read_accelerate(f"{megatron}megatron_lm_config: {{{prefixed}}}\n", "file")
    assert (plan.dp, plan.tp, plan.pp, plan.accumulation) == (2, 2, 2, 4)
    assert (plan.recompute, plan.zero, plan.sp) == ("selective", 0, False)


def test_fp8_is_named_and_processes_may_be_given():
    text = "distributed_type: MULTI_GPU\nmixed_precision: fp8\n"
    plan = read_accelerate(text, "file")
    assert (plan.dp, plan.needs, plan.not_priced[0].key) == (
        None, ("num_processes",), "mixed_precision",
    )  # fmt: skip
    assert read_accelerate(text, "file", {"num_processes": "4"}).dp == 4
