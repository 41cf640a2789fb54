"""Megatron-Bridge: a recipe of its own has the words that it means."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.megatron_bridge import read_bridge, write_bridge
from gnnplace.launch.torchtitan import MODELS

# `recipes/llama/h100/llama3.py`, `llama3_70b_pretrain_32gpu_h100_bf16_config`, of 067f987d.
RECIPE = '''
def llama3_70b_pretrain_32gpu_h100_bf16_config() -> ConfigContainer:
    """Return a pre-training config for Llama 3 70B."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").get_model_config()
    cfg.dataset.num_workers = 8
    cfg.dataset.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_layout = None
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.model.recompute_granularity = None
    # cfg.mixed_precision.fp8_recipe = "tensorwise"
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.overlap_param_gather = True
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.use_megatron_fsdp = False
    cfg.ddp.grad_reduce_in_fp32 = True
'''


def test_a_recipe_has_the_words_that_it_means():
    plan = read_bridge(RECIPE, "file")
    assert plan.words == (
        "tp=4,cp=2,pp=4,microbatch_size=1,zero=1,gradients=fp32,schedule=interleaved:5"
    )
    assert (plan.batch, plan.sp, plan.overlap) == (
        512,
        True,
        ("gradients", "parameters"),
    )
    assert plan.with_dp(32, "file").dp == 1


def test_overrides_have_one_key_a_line_and_come_back():
    plan = LaunchPlan(dp=None, tp=2, pp=2, layers=(3, 5), microbatch_size=1, batch=8, zero=1,
                      recompute="block:2", precision="bf16-master", gradients="same",
                      optimizer="adamw")  # fmt: skip
    text = write_bridge(plan, ["a plan"])
    assert "model.pipeline_model_parallel_layout=Et*3|t*5L" in text.splitlines()
    assert "ddp.use_distributed_optimizer=true" in text.splitlines()
    assert read_bridge(text, "file") == plan


def test_what_contradicts_is_one_line():
    overrides = "train.micro_batch_size=1\ntrain.micro_batch_size=2\n"
    with pytest.raises(
        FormatError, match=r"train.micro_batch_size: '2': was '1' before"
    ):
        read_bridge(overrides, "file")
    with pytest.raises(FormatError, match="has no key such as"):
        read_bridge("x = 1\n", "file")


def test_a_function_of_a_file_of_recipes_is_named_behind_it():
    """What a recipe begins with is that of the function that it calls, and its own lines count."""
    text = (
        RECIPE
        + "    return cfg\n"
        + """

def another() -> ConfigContainer:
    cfg = llama3_70b_pretrain_32gpu_h100_bf16_config()
    cfg.model.context_parallel_size = 1
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    return cfg
"""
    )
    with pytest.raises(
        FormatError, match="say which function, as FILE:NAME; it has llama3_70b"
    ):
        read_bridge(text, "mine.py")
    plan = read_bridge(text, "mine.py:another")
    assert plan.words == "tp=4,pp=4,microbatch_size=1,zero=1,schedule=interleaved:5"
    one = read_bridge(text, "mine.py:llama3_70b_pretrain_32gpu_h100_bf16_config")
    assert one == read_bridge(RECIPE, "file")


@pytest.mark.parametrize(
    ("precision", "gradients", "named"),
    [
        ("bf16-master", "fp32", "bf16_mixed"),
        ("16-master", "same", "fp16_mixed"),
        (
            "bf16-master",
            "same",
            "{_target_:",
        ),  # the recipe of its name would sum them in fp32
        ("16-master", "fp32", "{_target_:"),
        ("32-true", "same", "null"),
    ],
)
def test_the_type_of_gradients_is_that_of_the_mixed_precision(
    precision, gradients, named
):
    """`training/mixed_precision.py` writes its own over `ddp.grad_reduce_in_fp32`."""
    plan = LaunchPlan(dp=None, microbatch_size=1, batch=8, precision=precision,
                      gradients=gradients, optimizer="adamw")  # fmt: skip
    text = write_bridge(plan, [])
    assert f"\nmixed_precision={named}" in text
    assert " " not in text.partition("\n")[2]  # a word a line, for the shell
    assert read_bridge(text, "file") == plan


def test_what_a_recipe_may_have_set_is_said_too():
    """`recipes/common.py` turns the distributed optimizer and both overlaps on."""
    lines = write_bridge(LaunchPlan(dp=1, microbatch_size=1, batch=1), []).splitlines()
    for key in ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer",
                "ddp.overlap_grad_reduce", "ddp.overlap_param_gather"):  # fmt: skip
        assert f"{key}=false" in lines


def test_experts_of_the_last_layers_are_a_list_and_come_back():
    sizes = MODELS["deepseek_v3_671b"][1]
    plan = LaunchPlan(dp=None, tp=2, ep=16, etp=1, microbatch_size=1, batch=8, sizes=sizes,
                      precision="bf16-master", gradients="fp32", optimizer="adamw")  # fmt: skip
    text = write_bridge(plan, [])
    assert "model.num_moe_experts=256" in text.splitlines()
    assert f"model.moe_layer_freq=[0,0,0,{','.join(['1'] * 58)}]" in text.splitlines()
    assert read_bridge(text, "file") == plan


@pytest.mark.parametrize(
    ("lines", "graphs"),
    [
        ('cfg.model.cuda_graph_impl = "none"\ncfg.model.cuda_graph_scope = "full"', None),
        ('cfg.model.cuda_graph_impl = "transformer_engine"', "layers"),
        ('cfg.model.cuda_graph_impl = "local"\n'
         "cfg.model.cuda_graph_scope = [CudaGraphScope.full_iteration]", "iteration"),
    ],
)  # fmt: skip
def test_captured_launches_are_read(lines, graphs):
    text = f"cfg.model.tensor_model_parallel_size = 1\ncfg.train.micro_batch_size = 1\n{lines}\n"
    assert read_bridge(text, "file").cuda_graphs == graphs


PEFT = """
def mine(peft_scheme: str | PEFT = {scheme}) -> ConfigContainer:
    cfg = _peft_common()
    peft_cfg = default_peft_config(peft_scheme)
    {lines}
    cfg.peft = peft_cfg
    cfg.model.tensor_model_parallel_size = 1
"""


@pytest.mark.parametrize(
    ("scheme", "lines", "lora", "effects"),
    [
        ('"lora"', "", "r=32", []),
        ('"lora"', "peft_cfg.dim = 8", "r=8", []),
        (
            '"lora"',
            'peft_cfg.target_modules = ["linear_qkv", "linear_proj"]',
            "r=32,targets=q+k+v+o",
            [],
        ),
        ('"dora"', "", "r=32", ["DoRA's magnitudes; priced as LoRA"]),
        (
            '"lora"',
            'peft_cfg.target_modules = ["linear_qkv", "in_proj"]',
            "r=32,targets=q+k+v",
            ["in_proj: no product of a layer; priced without adapters of it"],
        ),
        ('"none"', "", None, []),
        (
            '"lora"',
            "peft_cfg = CanonicalLoRA(dim=8)",
            None,
            ["adapters of another kind; priced as training of all parameters"],
        ),
        (
            '"lora"',
            "peft_cfg.target_modules = MODULES",
            None,
            [
                "the modules of its adapters are not known; priced as training of all "
                "parameters"
            ],
        ),
    ],
)
def test_adapters_of_a_recipe_are_read(scheme, lines, lora, effects):
    """As in `recipes/llama/h100/llama3.py` of 067f987d."""
    plan = read_bridge(PEFT.format(scheme=scheme, lines=lines), "recipe.py")
    assert plan.lora == lora
    assert [entry.effect for entry in plan.not_priced if entry.key == "peft"] == effects


def test_adapters_may_be_made_where_they_are_set():
    lines = 'cfg.peft = LoRA(\n        target_modules=["linear_fc1"], dim=64, alpha=32)'
    assert (
        read_bridge(f"{RECIPE}    {lines}\n", "recipe.py").lora
        == "r=64,targets=gate+up"
    )
