"""ms-swift's runs on Megatron-Core: its defaults, adapters, and what trains nothing."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError
from gnnplace.launch.registry import find_launcher_of_file, read_launch_file

SCRIPT = """
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NPROC_PER_NODE=8 \\
megatron {command} \\
    --model Qwen/Qwen3-235B-A22B-Instruct-2507 \\
    --dataset 'swift/Chinese-Qwen3-235B-2507-Distill-data-110k-SFT#2000' \\
              'swift/self-cognition#1000' \\
    --tensor_model_parallel_size 4 \\
    --expert_model_parallel_size 8 \\
    --sequence_parallel true \\
    --recompute_granularity full \\
    --recompute_method uniform \\
    --recompute_num_layers 1 \\
    {flags}
"""


def write(tmp_path, command, flags):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(command=command, flags=flags))
    return path


def test_defaults_are_ms_swift_s(tmp_path):
    """As in `examples/megatron/lora/qwen3_235b.sh`."""
    path = write(tmp_path, "sft", "--global_batch_size 32")
    assert find_launcher_of_file(path) == "megatron-lm"
    plan = read_launch_file(path)
    assert plan.words == (
        "dp=2,tp=4,ep=8,microbatch_size=1,zero=1,gradients=fp32,recompute=full"
    )
    assert (plan.batch, plan.precision, plan.etp, plan.lora) == (
        32,
        "bf16-master",
        1,
        None,
    )
    assert plan.notes == (
        "--model: Qwen/Qwen3-235B-A22B-Instruct-2507: give the model as MODEL",
    )


@pytest.mark.parametrize(
    ("flags", "lora"),
    [
        ("--tuner_type lora", "r=8"),
        (
            "--train_type lora --lora_rank 16 --target_modules linear_qkv linear_proj",
            "r=16,targets=q+k+v+o",
        ),
        ("--tuner_type full --lora_rank 16", None),
    ],
)
def test_adapters_are_read(tmp_path, flags, lora):
    plan = read_launch_file(write(tmp_path, "sft", flags))
    assert plan.lora == lora
    assert "--lora-rank" not in [
        entry.key for entry in plan.not_priced if lora is not None
    ]


def test_preferences_are_a_line_and_what_trains_nothing_is_refused(tmp_path):
    plan = read_launch_file(write(tmp_path, "rlhf", "--rlhf_type dpo"))
    assert "--rlhf-type" in [entry.key for entry in plan.not_priced]
    with pytest.raises(FormatError, match="line 2: megatron export runs no training"):
        read_launch_file(write(tmp_path, "export", "--to_hf true"))
    path = tmp_path / "plain.sh"
    path.write_text("swift sft --model a/b --deepspeed zero3\n")
    with pytest.raises(FormatError, match="a file of ms-swift, which is not read"):
        find_launcher_of_file(path)
