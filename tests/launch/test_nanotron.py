"""nanotron: its example has the words that it means; stages are cut as it cuts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from gnnplace.errors import FormatError
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.nanotron import cut_by_cost, read_nanotron, write_nanotron
from gnnplace.plans.decoders.decoder import DecoderSizes, catalogue_decoder

# `examples/config_tiny_llama.yaml` of nanotron 2411b022, without what says nothing of a plan.
TINY = """
general:
  project: debug
model:
  dtype: bfloat16
  model_config:
    hidden_size: 2048
    intermediate_size: 11008
    is_llama_config: true
    max_position_embeddings: 128256
    num_attention_heads: 16
    num_hidden_layers: 28
    num_key_value_heads: 2
    tie_word_embeddings: true
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  optimizer_factory:
    name: adamW
  zero_stage: 0
parallelism:
  dp: 4
  expert_parallel_size: 1
  pp: 1
  pp_engine: 1f1b
  tp: 2
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 1
  micro_batch_size: 3
  sequence_length: 4096
"""


def test_the_example_has_the_words_that_it_means():
    plan = read_nanotron(TINY, "file")
    assert plan.words == "dp=4,tp=2,microbatch_size=3,gradients=fp32"
    assert (plan.batch, plan.sp, plan.zero, plan.overlap) == (12, True, 0, ("tp",))
    assert plan.sizes == DecoderSizes(28, 2048, 16, 2, 11008, 4096, 128256, tied=True)


@pytest.mark.parametrize(("pp", "layers"), [(2, (16, 12)), (4, (8, 8, 8, 4))])
def test_stages_are_cut_by_cost(pp, layers):
    """As `get_block_compute_costs` and `build_nanotron_model` cut this model."""
    text = TINY.replace("pp: 1\n", f"pp: {pp}\n")
    assert read_nanotron(text, "file").layers == layers
    sizes = read_nanotron(TINY, "file").sizes
    assert sizes is not None
    assert cut_by_cost(sizes, pp) == layers


def test_no_engine_is_afab():
    text = TINY.replace("  pp_engine: 1f1b\n", "").replace("pp: 1\n", "pp: 2\n")
    assert read_nanotron(text, "file").schedule == "gpipe"


def test_a_starcoder_has_plain_layers():
    """By the keys and defaults of `Starcoder2Config`: the sizes are the catalogue's."""
    llama = TINY[TINY.index("    hidden_size") : TINY.index("optimizer:")]
    starcoder = """
    is_starcoder2_config: true
    hidden_size: 4608
    num_attention_heads: 36
    num_hidden_layers: 32
    vocab_size: 49152
    grouped_query: true
    num_kv_heads: 4
"""
    text = TINY.replace(llama, starcoder)
    sizes = read_nanotron(text, "file").sizes
    catalogue = catalogue_decoder("bigcode/starcoder2-7b", 8)
    assert catalogue is not None
    assert sizes == replace(catalogue, batch=1)
    shared = text.replace("    grouped_query: true\n    num_kv_heads: 4\n", "")
    sizes = read_nanotron(shared.replace("tp: 2", "tp: 1"), "file").sizes
    assert sizes is not None
    assert sizes.kv_heads == 1


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("parallelism.dp", "four", "must be a whole number from 1 on"),
        ("parallelism.tp", 3, "16 heads are no multiple of tp 3"),
        ("parallelism.tp_mode", "SUM", "must be one of ALL_REDUCE, REDUCE_SCATTER"),
        ("model.model_config.hidden_size", None, "hidden_size: is missing"),
        ("tokens.micro_batch_size", 0, "must be a whole number from 1 on"),
        ("model", 3, "model: must be keys and values"),
        ("model.model_config.is_mamba_config", True, "layers of Mamba are not priced"),
    ],
)
def test_what_is_wrong_is_one_line(path, value, told):
    data = part = yaml.safe_load(TINY)
    *way, last = path.split(".")
    for key in way:
        part = part[key]
    part[last] = value
    with pytest.raises(FormatError, match=told) as caught:
        read_nanotron(yaml.safe_dump(data), "file")
    assert "\n" not in str(caught.value)


def test_words_of_the_scheduler_are_those_that_nanotron_takes():
    """`LRSchedulerArgs.__post_init__` of its `config/config.py` raises at any others, or none."""
    sizes = DecoderSizes(4, 64, 4, 4, 128, 64, 512)
    text = write_nanotron(LaunchPlan(dp=1, microbatch_size=1, batch=2, sizes=sizes), [])
    scheduler = yaml.safe_load(text)["optimizer"]["learning_rate_scheduler"]
    assert scheduler["lr_warmup_style"] in ("linear", "constant")
    assert scheduler["lr_decay_style"] in ("linear", "cosine", "1-sqrt")
