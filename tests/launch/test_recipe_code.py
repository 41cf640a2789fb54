"""Recipes are followed as Python would, and nothing of them runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnplace.errors import FormatError
from gnnplace.launch import recipe_code
from gnnplace.launch.megatron_bridge import read_bridge
from gnnplace.launch.recipe_code import Made, RecipeReader, Symbol, UnknownValue

HEAD = """
SIZES = {"small": 2, "large": 8}
LAYOUT = "|".join(("E" + "t" * 14, "t" * 18 + "L"))


def layout(pp_size: int, vp_size: int | None):
    layouts = {(1, 1): None, (2, 1): [["embedding"] + ["decoder"] * 3, ["decoder", "loss"]]}
    vp_size = 1 if vp_size is None else vp_size
    if (pp_size, vp_size) not in layouts:
        raise ValueError(f"no layout of {pp_size}")
    found = layouts[(pp_size, vp_size)]
    if found is not None:
        found = list([list(x) for x in found])
    return found


def recipe(scheme="small", **others):
    cfg = ConfigContainer(model=GPTModelProvider(num_layers=4), train=TrainingConfig())
    model = cfg.model
"""


def made(lines: str) -> Made:
    text = HEAD + "".join(f"    {line}\n" for line in lines.splitlines())
    module = recipe_code.parse_module(text + "    return cfg\n", Path("r.py"))
    assert module is not None
    recipe = RecipeReader("r.py", {}, {}).result(module, "recipe")
    assert isinstance(recipe, Made)
    model = recipe.fields["model"]
    assert isinstance(model, Made)
    return model


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("cfg.model.x = 1\ncfg.model.x = 2", 2),
        ("model.x = SIZES[scheme]", 2),
        ("is_on = False\nif is_on:\n    model.x = 1\nelse:\n    model.x = 128 * 1024", 131072),
        ("model.x = layout(2, 1)", [["embedding", *["decoder"] * 3], ["decoder", "loss"]]),
        ("model.x = LAYOUT", "E" + "t" * 14 + "|" + "t" * 18 + "L"),
        ("build = partial(layout, vp_size=None)\nmodel.x = build(1)", None),
        ("defaults = {'a': 3}\nsizes = {**defaults, **others}\nmodel.x = sizes['a']", 3),
        ("model.x = []\nfor k in range(3):\n    model.x.append(k)", [0, 1, 2]),
        ("model.x = torch.bfloat16", Symbol("torch.bfloat16")),
        ("model.x = 7 if cfg.model.num_layers > 3 else 8", 7),
        ("model.x = 1\nif os.environ.get('A'):\n    model.x = 2", UnknownValue("model.x")),
        ("model.x = 1\nif unknown:\n    raise ValueError", 1),
        ("model.x = 'a' * 10**9", UnknownValue("'a' * 10 ** 9")),
        ("model.x = open('/etc/passwd').read()", "open('/etc/passwd').read"),
    ],
)  # fmt: skip
def test_values_are_those_of_python(lines, value):
    x = made(lines).fields["x"]
    assert (x.name if isinstance(x, Made) else x) == value


def test_errors_of_a_recipe_are_its_own():
    with pytest.raises(FormatError, match=r"the recipe raises ValueError\(f'no layout"):
        made("model.x = layout(3, 1)")
    with pytest.raises(FormatError, match="more than 50000 statements"):
        made("for k in range(100000):\n    model.x = k")


def test_a_keyword_of_a_class_is_a_setting_and_has_a_line():
    text = """
def recipe():
    cfg = _sft_common()
    cfg.model = HybridModelProvider(
        tensor_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=None,
        sequence_parallel=True,
    )
    cfg.train.global_batch_size = 4
    return cfg
"""
    plan = read_bridge(text, "recipe.py")
    assert (plan.tp, plan.batch, plan.microbatch_size, plan.zero) == (2, 4, 1, 1)
    assert plan.lines["tp"] == 5
    assert plan.gradients == "fp32"


def test_a_branch_that_is_not_known_is_named():
    text = """
def recipe(precision):
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/X").to_megatron_provider()
    if precision == "fp8":
        cfg.model.tensor_model_parallel_size = 4
    else:
        cfg.model.num_layers = 3
    return cfg
"""
    with pytest.raises(
        FormatError, match=r"line 6: model.tensor_model_parallel_size: .* --set model"
    ):
        read_bridge(text, "recipe.py")
    given = {"model.tensor_model_parallel_size": "2"}
    plan = read_bridge(text, "recipe.py", given)
    assert plan.tp == 2
    assert any("depends on precision == 'fp8'" in note for note in plan.notes)
    assert "the model is meta-llama/X: give it as MODEL" in plan.notes


def test_recipes_of_2025_hand_dictionaries_on():
    """As `recipes/llama/llama3.py` of Megatron-Bridge 0.2 does."""
    text = """
def llama3_8b_pretrain_config(**user_kwargs) -> ConfigContainer:
    recommended_kwargs: Llama3CommonKwargs = {
        "hf_path": "meta-llama/Meta-Llama-3-8B",
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 2,
    }
    combined_kwargs: Llama3CommonKwargs = {**recommended_kwargs, **user_kwargs}
    return _llama3_common(**combined_kwargs)


def _llama3_common(hf_path, tensor_model_parallel_size=1, context_parallel_size=1,
                   micro_batch_size=1, precision_config="bf16_mixed"):
    model_cfg = AutoBridge.from_hf_pretrained(hf_path).to_megatron_provider(load_weights=False)
    model_cfg.tensor_model_parallel_size = tensor_model_parallel_size
    model_cfg.context_parallel_size = context_parallel_size
    opt_config, scheduler = distributed_fused_adam_with_cosine_annealing(lr_warmup_iters=2000)
    cfg = ConfigContainer(
        model=model_cfg,
        train=TrainingConfig(global_batch_size=512, micro_batch_size=micro_batch_size),
        optimizer=opt_config,
        ddp=DistributedDataParallelConfig(overlap_grad_reduce=True),
        mixed_precision=precision_config,
    )
    if cfg.comm_overlap is None:
        cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    return cfg
"""
    plan = read_bridge(text, "llama3.py:llama3_8b_pretrain_config")
    assert plan.words == "cp=2,microbatch_size=1,zero=1,gradients=fp32"
    assert (plan.batch, plan.precision) == (512, "bf16-master")
