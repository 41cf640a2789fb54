"""What launch files say of a known model beside its sizes, and the lines for what they do not."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.layer_details import FEATURES, PLAIN, layer_details
from gnnplace.launch.torchtitan import read_torchtitan
from gnnplace.launch.writing import write_launch_plan
from gnnplace.plans import DecoderSizes
from gnnplace.plans.decoders.decoder import catalogue_decoder


def written(model: str, launcher: str, **words: int) -> tuple[str, list[str]]:
    """The file of a launcher for eight replicas of a model, and what it does not carry."""
    decoder = catalogue_decoder(model)
    assert decoder is not None
    plan = LaunchPlan(
        dp=8,
        microbatch_size=1,
        batch=8,
        precision="bf16-mixed" if launcher == "torchtitan" else "bf16-master",
        gradients="fp32",
        optimizer="adamw",
        zero=3 if launcher == "torchtitan" else 0,
        sizes=replace(decoder, batch=1),
        details=layer_details(model),
        **words,
    )
    text, losses = write_launch_plan(plan, launcher, [])
    return text, [loss.line for loss in losses]


def test_megatron_is_told_what_makes_it_this_model():
    text, lines = written("meta-llama/Llama-3.1-8B", "megatron-lm")
    for flag in (
        "--rotary-base 500000",
        "--norm-epsilon 1e-05",
        "--use-rope-scaling",
        "--rope-scaling-factor 8",
    ):
        assert flag in text
    assert "--add-qkv-bias" not in text
    assert lines == []
    text, lines = written("Qwen/Qwen2.5-7B", "megatron-lm")
    assert "--add-qkv-bias" in text
    assert "--norm-epsilon 1e-06" in text
    assert lines == []


def test_megatron_bridge_is_told_too():
    text, lines = written("Qwen/Qwen2.5-7B", "megatron-bridge")
    assert "model.add_qkv_bias=true\n" in text
    assert "model.rotary_base=1000000\n" in text
    assert "model.layernorm_epsilon=1e-06\n" in text
    assert lines == []


def test_nanotron_is_told_too_and_its_scaling_is_a_line():
    text, lines = written("Qwen/Qwen2.5-7B", "nanotron")
    assert "is_qwen2_config: true" in text
    assert "attention_bias: true" in text
    assert "rope_theta: 1000000.0" in text
    assert "rms_norm_eps: 1.0e-06" in text
    assert lines == []
    text, lines = written("meta-llama/Llama-3.1-8B", "nanotron")
    assert "is_llama_config: true" in text
    assert lines == [
        "rotary scaling llama3: is not written; set it before weights are loaded"
    ]


def test_what_layers_have_besides_is_a_line():
    _, lines = written("google/gemma-2-9b", "megatron-lm")
    assert len(lines) == 1
    assert "gemma2 has GELU gates, norms behind blocks" in lines[0]
    _, lines = written("microsoft/phi-4", "megatron-lm")
    assert lines == [
        "norm epsilon: not known of this model; the launcher's default counts"
    ]


def test_nanotron_refuses_layers_that_are_not_llamas():
    with pytest.raises(
        InfeasibleError, match=r"nanotron: .* olmo2 has norms behind blocks"
    ):
        written("allenai/OLMo-2-1124-7B", "nanotron")


def test_every_planned_decoder_is_plain_or_has_its_features_named():
    from gnnplace.models import find_model, model_names

    rows = {
        row.name: row for name in model_names() if (row := find_model(name)) is not None
    }
    types = {
        row.type
        for row in rows.values()
        if not row.refused and catalogue_decoder(row.name)
    }
    assert types <= {*PLAIN, *FEATURES}


@pytest.mark.parametrize("name", ["0.6B", "1.7B", "14B", "32B"])
def test_torchtitan_has_configurations_of_qwen3(name):
    text, lines = written(f"Qwen/Qwen3-{name}", "torchtitan")
    assert f"import qwen3_{name.lower().replace('.', '_')}" in text
    assert lines == []


@pytest.mark.parametrize(
    ("model", "entries"),
    [
        (
            "mistralai/Mistral-7B-v0.1",
            ["\"rope\": {'theta': 10000.0}", '"qkv_bias": False'],
        ),
        (
            "Qwen/Qwen2.5-7B",
            ['"qkv_bias": True', "'eps': 1e-06", "assets/hf/Qwen2.5-7B"],
        ),
        ("Qwen/Qwen3-8B", ['"qk_norm": True', "qwen3_configs"]),
        ("mistralai/Mixtral-8x7B-v0.1", ['"top_k": 2', "qwen3_30b_a3b()"]),
        (
            "meta-llama/Llama-3.2-1B",
            ["'scaling_factor': 32.0", '"enable_weight_tying": True'],
        ),
        # Sizes of torchtitan's own 8B, whose positions are scaled.
        ("meta-llama/Meta-Llama-3-8B", ["\"rope\": {'theta': 500000.0}"]),
    ],
)
def test_torchtitan_is_given_models_that_its_registry_lacks(model, entries):
    text, lines = written(model, "torchtitan")
    for entry in entries:
        assert entry in text
    assert [line for line in lines if "norm epsilon: not known" not in line] == []


@pytest.mark.parametrize(
    ("model", "entries"),
    [
        (
            "moonshotai/Kimi-K2-Instruct",
            [
                "'num_experts': 384",
                "'router_route_scale': 2.827",
                "'rope_factor': 32.0",
            ],
        ),
        (
            "moonshotai/Moonlight-16B-A3B",
            ["'q_lora_rank': 0", "'num_shared_experts': 2", "{'theta': 50000.0}"],
        ),
        (
            "deepseek-ai/DeepSeek-V2",
            ["'router_score_func': 'softmax'", "'router_num_limited_groups': 3"],
        ),
    ],
)
def test_torchtitan_is_given_deepseek_s_layers_of_other_sizes(model, entries):
    text, _ = written(model, "torchtitan")
    assert 'deepseekv3_configs["gnnplace"] = _model' in text
    for entry in entries:
        assert entry in text
    sizes = catalogue_decoder(model)
    assert sizes is not None
    back = read_torchtitan(text, "file").sizes
    assert back == DecoderSizes(
        **{f.name: getattr(replace(sizes, batch=1), f.name) for f in fields(back)}
    )


@pytest.mark.parametrize("size", ["20b", "120b"])
def test_torchtitan_has_configurations_of_gpt_oss(size):
    text, lines = written(f"openai/gpt-oss-{size}", "torchtitan")
    assert f"config = gpt_oss_{size}()" in text
    assert lines == []


def test_norms_of_torchtitan_s_deepseek_get_the_model_s_epsilon():
    text, _ = written("deepseek-ai/DeepSeek-V3", "torchtitan")
    assert "deepseek_v3_671b()" in text
    assert "    norm.eps = 1e-06" in text


def test_rotary_positions_of_a_part_of_a_head_are_written_or_refused():
    text, lines = written("microsoft/Phi-4-mini-instruct", "megatron-lm")
    assert "--rotary-percent 0.75" in text
    assert lines == [
        "rotary scaling longrope: is not written; set it before weights are loaded",
        "norm epsilon: not known of this model; the launcher's default counts",
    ]
    assert (
        "model.rotary_percent=0.75\n"
        in written("microsoft/Phi-4-mini-instruct", "megatron-bridge")[0]
    )
    for launcher, reason in (
        ("nanotron", "rotates whole heads"),
        ("torchtitan", "0.75 of a head"),
    ):
        with pytest.raises(InfeasibleError, match=reason):
            written("microsoft/Phi-4-mini-instruct", launcher)


def test_scaling_that_a_launcher_has_no_key_for_is_a_line_or_refused():
    """Phi-3's factors by frequency: no launcher's file has a key for them."""
    name = "microsoft/Phi-3.5-mini-instruct"
    line = "rotary scaling longrope: is not written; set it before weights are loaded"
    for launcher in ("megatron-lm", "megatron-bridge", "nanotron"):
        assert line in written(name, launcher)[1]
    with pytest.raises(InfeasibleError, match="no code for rotary scaling longrope"):
        written(name, "torchtitan")


def test_torchtitan_refuses_layers_that_it_has_no_code_for():
    with pytest.raises(
        InfeasibleError, match="torchtitan: has no code for olmo2: norms behind"
    ):
        written("allenai/OLMo-2-1124-7B", "torchtitan")


def test_torchtitan_cuts_no_tied_embedding():
    with pytest.raises(
        InfeasibleError, match="torchtitan: cuts no model with a tied embedding"
    ):
        written("Qwen/Qwen3-0.6B", "torchtitan", pp=2)


def test_plans_with_experts_are_read_and_converted(tmp_path, monkeypatch):
    """The axis of experts stands beside one tensor-parallel shard. A search: 3 s of processor."""
    monkeypatch.chdir(tmp_path)
    question = (
        "plan mistralai/Mixtral-8x7B-v0.1 --cluster 16xH100 --launcher megatron-lm"
    )
    assert run([*question.split(), "--budget", "2", "-o", "plan.json"]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert "ep=" in plan["words"]
    assert run(["convert", "plan.json", "--to", "megatron-lm", "-o", "train.sh"]) == 0
    assert "--expert-model-parallel-size" in (tmp_path / "train.sh").read_text()
