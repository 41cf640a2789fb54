from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gnnplace.plans.decoders.decoder import decoder_of, from_config

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
    beside = 2 * 64 if kind == "bloom" else 0  # a norm of its own after the embedding
    assert decoder.parameters == real - beside


def test_an_unknown_kind_of_layers_is_none():
    assert from_config("t5", AutoConfig.for_model("t5"), 16) is None


def test_a_name_gives_sizes_length_and_batch_and_other_models_none():
    decoder = decoder_of("hf:llama?hidden_size=64&num_attention_heads=4&length=32&batch=6")
    assert decoder is not None
    assert (decoder.hidden, decoder.length, decoder.batch) == (64, 32, 6)
    assert decoder_of("hf:bert") is None
    assert decoder_of("mlp") is None
