"""torchtitan: its configurations have the words that they mean, read as text."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.torchtitan import (
    MODELS,
    name_stage_modules,
    read_torchtitan,
    write_torchtitan,
)
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers

# From `models/llama3/config_registry.py` and `torchtitan_recipes/tests/features.py` of b5bcd76c.
REGISTRY = """
from torchtitan.trainer import Trainer


def llama3_debugmodel() -> Trainer.Config:
    model_spec = model_registry("debugmodel")
    return Trainer.Config(
        model_spec=model_spec,
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=8 * 2048,
            max_context_length=2048,
            steps=10,
        ),
        parallelism=ParallelismConfig(pipeline_parallel_schedule="Interleaved1F1B"),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_debugmodel_pp2_custom_csv() -> Trainer.Config:
    config = llama3_debugmodel()
    config.parallelism.pipeline_parallel_degree = 2
    config.parallelism.num_pp_microbatches = 8
    config.parallelism.pipeline_parallel_schedule = "PipelineScheduleMulti"
    config.parallelism.pipeline_parallel_schedule_csv = (
        "./tests/assets/custom_schedule.csv"
    )
    config.activation_checkpoint = FullAC.Config()
    config.training.num_tokens_per_microbatch_per_dp_rank = 2048
    config.training.disable_cuda_graphs = True
    return config


def llama3_70b() -> Trainer.Config:
    model_spec = model_registry("70B")
    return Trainer.Config(
        model_spec=model_spec,
        optimizer=default_adamw(lr=1.5e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=8 * 8192,
            max_context_length=8192,
            steps=1000,
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=8,
        ),
        activation_checkpoint=FullAC.Config(),
    )
"""


def test_its_70b_has_the_words_that_it_means():
    plan = read_torchtitan(REGISTRY, "file:llama3_70b")
    assert plan.words.replace("gradients=fp32,", "") == (
        "tp=8,microbatch_size=8,zero=3,recompute=full"
    )
    assert plan.sp
    assert plan.sizes == MODELS["llama3_70b"][1]


def test_a_list_of_actions_has_two_stages_a_rank():
    plan = read_torchtitan(REGISTRY, "file:llama3_debugmodel_pp2_custom_csv")
    assert (plan.pp, plan.chunks, plan.recompute, plan.microbatch_size) == (
        2,
        2,
        "full",
        1,
    )
    assert plan.layers == (1, 2, 2, 1)  # 6 layers and two ends over four stages
    assert plan.notes == ("schedule PipelineScheduleMulti: priced as interleaved",)


def test_it_begins_with_what_torchtitan_has():
    text = "from torchtitan.models.llama3.config_registry import llama3_70b\ndef mine():\n" \
           "    config = llama3_70b()\n    config.parallelism.tensor_parallel_degree = 4\n" \
           "    return config\n"  # fmt: skip
    plan = read_torchtitan(text, "file")
    assert (plan.tp, plan.recompute, plan.microbatch_size) == (4, "full", 8)


def test_stages_are_listed_by_their_modules():
    assert name_stage_modules([1, 0, 2]) == [
        ["tok_embeddings", "layers.0"], [], ["layers.1", "layers.2", "norm", "lm_head"],
    ]  # fmt: skip


def test_what_is_written_is_a_module_that_sets_literals_and_calls_nothing_else():
    plan = LaunchPlan(dp=2, tp=2, pp=2, layers=(15, 17), microbatch_size=1, batch=16, zero=3,
                      recompute="full", precision="bf16-mixed", gradients="fp32", optimizer="adamw",
                      sizes=MODELS["llama3_8b"][1])  # fmt: skip
    text = write_torchtitan(plan, ['a """plan""" \\'])
    called = [n.func for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert sorted(ast.unparse(x) for x in called) == ["FullAC.Config", "llama3_8b"]
    assert read_torchtitan(text, "file") == plan
    assert "config.training.disable_cuda_graphs = True" in text


def test_a_schedule_without_a_name_is_a_file_beside():
    plan = LaunchPlan(dp=2, pp=2, layers=(15, 17), microbatch_size=1, batch=16, zero=3,
                      schedule="zero-bubble", precision="bf16-mixed", gradients="fp32",
                      optimizer="adamw", sizes=MODELS["llama3_8b"][1])  # fmt: skip
    text = write_torchtitan(plan, [])
    assert "'PipelineScheduleMulti'" in text
    assert (
        'pipeline_parallel_schedule_csv = str(Path(__file__).with_suffix(".csv"))'
        in text
    )
    assert read_torchtitan(text, "file") == plan


@pytest.mark.parametrize(
    "sizes",
    [
        DecoderSizes(2, 64, 4, 2, 96, 32, 128, tied=True),
        DecoderSizes(2, 64, 4, 2, 96, 32, 128, own_head_size=32),
        DecoderSizes(
            2, 64, 4, 2, 96, 32, 128, vectors=2 * 64 + 64 + 2 * 32
        ),  # Qwen2's biases
        DecoderSizes(2, 64, 4, 2, 96, 32, 128, head_norms=True),
        DecoderSizes(2, 64, 4, 2, 96, 32, 128, experts=ExpertLayers(8, 2, 96)),
    ],
)
def test_other_sizes_are_registered_by_the_module(sizes):
    plan = LaunchPlan(dp=2, microbatch_size=1, batch=4, zero=3, precision="bf16-mixed",
                      gradients="fp32", optimizer="adamw", sizes=sizes)  # fmt: skip
    text = write_torchtitan(plan, [])
    assert '_configs["gnnplace"] = _model' in text
    assert read_torchtitan(text, "file") == plan


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (DecoderSizes(2, 64, 4, 4, 96, 32, 128, gated=False), "without a gate"),
        (DecoderSizes(2, 64, 4, 4, 96, 32, 128, vectors=4 * 64), "norms or biases"),
        (
            DecoderSizes(2, 64, 4, 4, 96, 32, 128, experts=ExpertLayers(8, 2, 96, 96)),
            "beside",
        ),
        (replace(MODELS["deepseek_v3_16b"][1], layers=28), "give --model"),
    ],
)
def test_layers_that_torchtitan_has_no_code_for_have_no_file(sizes, reason):
    plan = LaunchPlan(dp=1, microbatch_size=1, batch=1, sizes=sizes)
    with pytest.raises(InfeasibleError, match=reason) as caught:
        write_torchtitan(plan, [])
    assert "\n" not in str(caught.value)


def test_shards_that_cut_a_head_of_keys_have_no_file():
    plan = LaunchPlan(
        dp=1, tp=16, microbatch_size=1, batch=1, sizes=MODELS["llama3_8b"][1]
    )
    with pytest.raises(InfeasibleError, match="tp 16 must divide 8 heads"):
        write_torchtitan(plan, [])


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('"dim": 64', '"dim": size', "MODEL: must be a literal"),
        ('"dim": 64', '"dim": 0', r"MODEL\.dim: '0': must be a whole number"),
        ('    "dim": 64,\n', "", r"MODEL\.dim: is missing"),
    ],
)
def test_a_registered_model_without_sizes_is_one_line(before, after, reason):
    plan = LaunchPlan(dp=1, microbatch_size=1, batch=1, precision="bf16-mixed",
                      sizes=DecoderSizes(2, 64, 4, 2, 96, 32, 128))  # fmt: skip
    text = write_torchtitan(plan, [])
    assert before in text
    with pytest.raises(FormatError, match=reason):
        read_torchtitan(text.replace(before, after), "file")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(", "not Python"),
        (REGISTRY, "say which function"),
        ("x = 1", "it has none"),
        (
            "def f():\n    c.training.num_tokens_per_microbatch_per_dp_rank = 100\n",
            "no multiple",
        ),
        ("def f():\n    c.parallelism.pipeline_parallel_degree = -2\n", "whole number"),
    ],
)
def test_what_is_wrong_is_one_line(text, told):
    with pytest.raises(FormatError, match=told) as caught:
        read_torchtitan(text, "file")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("graphs", "compiled"), [(None, False), ("off", True), ("iteration", True)]
)
def test_what_is_compiled_and_captured_comes_back(graphs, compiled):
    """`compile.enable` of layers and loss; launches are captured unless they are disabled."""
    sizes = MODELS["llama3_8b"][1]
    plan = LaunchPlan(dp=8, zero=3, microbatch_size=1, batch=8, sizes=sizes, optimizer="adamw",
                      precision="bf16-mixed", compile=compiled, cuda_graphs=graphs)  # fmt: skip
    text = write_torchtitan(plan, [])
    assert f"config.compile.enable = {compiled}" in text
    assert ("disable_cuda_graphs" in text) is (graphs is not None)
    back = read_torchtitan(text, "plan.py")
    assert (back.compile, back.cuda_graphs) == (compiled, graphs)


def test_a_compiled_loss_alone_is_said():
    text = """
def mine():
    config = llama3_8b()
    config.compile = CompileConfig(enable=True, components=["loss"])
    return config
"""
    plan = read_torchtitan(text, "plan.py")
    assert not plan.compile
    assert plan.notes == ("compile of loss alone: priced without",)
    assert read_torchtitan(text.replace('"loss"', '"model", "loss"'), "plan.py").compile
    assert (
        "float8 products: priced in bf16"
        in read_torchtitan(text.replace("8b", "405b"), "plan.py").notes
    )


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        (
            "converters=[Float8LinearConverter.Config(), b.LoRA()]",
            "Float8LinearConverter, LoRA",
        ),
        ("converters=chosen", "chosen"),
        ("converters=None", ""),
        ("converters=[]", ""),
    ],
)
def test_what_converts_a_model_is_said(argument, names):
    text = (
        "from torchtitan.models.llama3.config_registry import llama3_8b\n"
        "def mine():\n    config = llama3_8b()\n"
        f"    config.model_spec = model_registry('8B', {argument})\n    return config\n"
    )
    notes = [x for x in read_torchtitan(text, "plan.py").notes if "converters" in x]
    line = f"converters {names}: priced in bf16, and without what they change"
    assert notes == ([line] if names else [])
