from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gnnplace.errors import InputError
from gnnplace.launch.torchtitan import MODELS
from gnnplace.plans.decoders.decoder import (
    DecoderSizes,
    ExpertLayers,
    LatentAttention,
    find_decoder,
    from_config,
)
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster.presets import load_cluster

SIZES = {
    "llama": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 130},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 130, "n_positions": 40},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 130},
    "mixtral": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 96, "num_local_experts": 4,
                "vocab_size": 130},
    "deepseek_v3": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                    "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8,
                    "num_experts_per_tok": 2, "q_lora_rank": 24, "kv_lora_rank": 16, "n_group": 1,
                    "topk_group": 1, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
                    "v_head_dim": 16, "first_k_dense_replace": 1, "vocab_size": 130},
    "nemotron": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 256,
                 "vocab_size": 130},
    "gpt_neox": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "intermediate_size": 256, "vocab_size": 130},
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZES)
def test_parameters_are_those_of_the_model_itself(kind):
    config = AutoConfig.for_model(kind, **SIZES[kind])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    real = sum(p.numel() for p in model.parameters())
    decoder = from_config(kind, config, 16)
    assert decoder is not None
    assert decoder.parameters == real


def test_an_unknown_kind_of_layers_is_none():
    assert from_config("t5", AutoConfig.for_model("t5"), 16) is None


def test_a_name_gives_sizes_length_and_batch_and_other_models_none():
    decoder = find_decoder(
        "hf:llama?hidden_size=64&num_attention_heads=4&length=32&batch=6"
    )
    assert decoder is not None
    assert (decoder.hidden, decoder.length, decoder.batch) == (64, 32, 6)
    assert find_decoder("hf:bert") is None
    assert find_decoder("mlp") is None


MIXTRAL = DecoderSizes(
    32, 4096, 32, 8, 14336, 4096, 32000, experts=ExpertLayers(8, 2, 14336)
)
NAMED = {
    "llama": DecoderSizes(4, 64, 4, 2, 96, 32, 128, own_head_size=32),
    "qwen3": DecoderSizes(4, 64, 4, 2, 96, 32, 128, own_head_size=32, head_norms=True),
    "gpt2": DecoderSizes(4, 64, 4, 4, 256, 32, 512, gated=False, tied=True, positions=32),
    "mixtral": MIXTRAL, "qwen3_moe": MODELS["qwen3_30b_a3b"][1],
    "deepseek_v2": MODELS["deepseek_v3_16b"][1], "deepseek_v3": MODELS["deepseek_v3_671b"][1],
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMED)
def test_sizes_name_the_model_of_transformers_that_has_them(kind):
    """Its configuration says the same sizes; no weight is made."""
    sizes = NAMED[kind]
    assert sizes.model.startswith(f"hf:{kind}?")
    found = find_decoder(sizes.model)
    assert found is not None
    assert replace(found, batch=1) == sizes


@pytest.mark.parametrize(
    "sizes",
    [
        replace(MIXTRAL, experts=ExpertLayers(8, 2, 128, shared=128)),
        replace(MIXTRAL, experts=ExpertLayers(8, 2, 128, dense=1)),
    ],
)
def test_layers_that_no_known_model_has_are_one_line(sizes):
    with pytest.raises(InputError, match="with latent attention alone"):
        _ = sizes.model


def test_latent_attention_without_experts_is_deepseeks_before_its_first():
    own = LatentAttention(16, 8, 8, 16)
    sizes = DecoderSizes(4, 64, 4, 4, 96, 32, 128, own_head_size=24, latent=own)
    found = find_decoder(sizes.model)
    assert found is not None
    assert found.parameters == sizes.parameters


@pytest.mark.parametrize("framework", ["pytorch", "megatron-lm", "nanotron"])
def test_packed_samples_attend_within_themselves(framework):
    sizes = DecoderSizes(8, 4096, 32, 8, 14336, length=4096, vocabulary=32000, batch=8)
    setting = make_pricing_setting(
        sizes, load_cluster("1xH100"), framework_name=framework
    )
    spec = PlanSpec(microbatch_size=1)

    def seconds(length):
        answer = price(setting, replace(spec, sample_length=length))
        return answer.step_time, answer.peak

    kernels, constants = setting.framework.kernels, setting.framework.constants
    saved = kernels.attend(4096, 4096, 4096, 128) - kernels.attend(4096, 512, 4096, 128)
    passes = 1 + constants["attention_backward"]
    assert seconds(4096) == seconds(None)
    assert seconds(None)[0] - seconds(512)[0] == pytest.approx(
        8 * 8 * passes * saved, rel=1e-6
    )
    assert seconds(512)[1] == seconds(None)[1]
    assert price(setting, replace(spec, sample_length=8192)).reason == (
        "sample_length=8192: examples have 4096 tokens"
    )
    scores = 2 * sizes.layers * 4096 * (4096 - 512) * (sizes.queries + sizes.values)
    packed = replace(sizes, sample_length=512)
    assert sizes.forward_flops - packed.forward_flops == pytest.approx(scores)
