"""torchtitan's TOML: three generations of keys mean the same plan."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.launch.searching import price_launch_plan
from gnnplace.launch.torchtitan import (
    MODELS,
    nearest_torchtitan,
    read_torchtitan,
    write_torchtitan,
)

FIRST = """[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 4096
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
compile = true
enable_float8_linear = true
[experimental]
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
THIRD = """[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 1
[compile]
enable = true
[activation_checkpoint]
mode = "full"
"""


@pytest.mark.parametrize("text", [FIRST, THIRD])
def test_generations_mean_the_same_plan(text):
    plan = read_torchtitan(text, "a.toml")
    assert (plan.dp, plan.tp, plan.pp, plan.zero, plan.recompute) == (
        4,
        2,
        2,
        3,
        "full",
    )
    assert (plan.microbatch_size, plan.batch, plan.compile) == (1, 8, True)
    assert (plan.layers, plan.precision, plan.gradients) == (
        (16, 16),
        "bf16-mixed",
        "fp32",
    )
    assert plan.sizes is not None
    assert plan.sizes.hidden == MODELS["llama3_8b"][1].hidden
    assert len(plan.not_priced) == 1
    assert "float8" in plan.not_priced[0].effect


def test_a_section_of_float8_turns_nothing_on_and_the_loss_alone_is_no_layer():
    text = THIRD.replace('converters = ["float8"]\n', "").replace(
        "enable = true", 'enable = true\ncomponents = ["loss"]'
    )
    plan = read_torchtitan(
        f"{text}[quantize.linear.float8]\nfilter_fqns = []\n", "a.toml"
    )
    assert (plan.not_priced, plan.compile) == ((), False)
    assert plan.notes == ("compile of loss alone: priced without",)
    assert plan.lines["tp"] == 9


def test_a_part_of_the_replicas_is_a_group_and_keys_can_be_given():
    text = THIRD.replace(
        "[parallelism]", "[parallelism]\ndata_parallel_replicate_degree = 3"
    )
    plan = read_torchtitan(text, "a.toml", {"training.seq_len": "128"})
    assert (plan.dp, plan.group, plan.batch) == (12, 4, 24)
    assert plan.sizes is not None
    assert plan.sizes.length == 128
    rest = read_torchtitan(
        THIRD.replace("shard_degree = 4", "shard_degree = -1"), "a.toml"
    )
    assert (rest.dp, rest.accumulation) == (None, 2)


def test_parameters_that_stay_gathered_are_zero_2_without_stages():
    """With stages they stay for the whole step, whatever the file says."""
    text = THIRD.replace(
        "[parallelism]", '[parallelism]\nfsdp_reshard_after_forward = "never"'
    )
    assert read_torchtitan(text, "a.toml").zero == 3
    alone = text.replace("pipeline_parallel_degree = 2", "pipeline_parallel_degree = 1")
    plan = read_torchtitan(alone, "a.toml")
    assert plan.zero == 2
    assert list(nearest_torchtitan(plan)) == []
    written = write_torchtitan(plan, [])
    assert "config.parallelism.fsdp_reshard_after_forward = 'never'" in written
    assert read_torchtitan(written, "a.py").zero == 2
    always = read_torchtitan(text.replace('"never"', '"always"'), "a.toml")
    assert "priced as gathered once a step" in always.notes[-1]


def test_a_model_that_is_not_known_has_the_files_examples():
    """It is given by its name. What the file calls it is said where it is not given."""
    text = THIRD.replace('flavor = "8B"', 'flavor = "30B"').replace("4096", "16384")
    plan = read_torchtitan(text, "a.toml")
    assert (plan.sizes, plan.length) == (None, 16384)
    with pytest.raises(InputError, match="has flavor 30B of llama3"):
        price_launch_plan(plan, "torchtitan", "16xH100")
    priced = price_launch_plan(
        plan, "torchtitan", "16xH100", model="meta-llama/Llama-3.1-8B"
    )
    assert priced.setting.decoder.length == 16384
    short = price_launch_plan(
        plan, "torchtitan", "16xH100", model="meta-llama/Llama-3.1-8B?length=2048"
    )
    assert short.setting.decoder.length == 2048


def test_another_model_than_the_files_has_the_files_examples():
    plan = read_torchtitan(THIRD.replace("4096", "8192"), "a.toml")
    priced = price_launch_plan(plan, "torchtitan", "16xH100", model="Qwen/Qwen3-8B")
    assert priced.setting.decoder.length == 8192
    assert priced.setting.decoder.head_norms


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[model\n", "not TOML"),
        (
            THIRD.replace("microbatch_size = 1", "microbatch_size = 3"),
            "does not divide 2 examples",
        ),
        (
            THIRD.replace(
                "tensor_parallel_degree = 2", 'tensor_parallel_degree = "two"'
            ),
            "whole",
        ),
    ],
)
def test_what_is_wrong_is_one_line(text, told):
    with pytest.raises(FormatError, match=told) as caught:
        read_torchtitan(text, "a.toml")
    assert "\n" not in str(caught.value)
