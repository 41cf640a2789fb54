"""Launchers that are read and not written: NeoX, NeMo, llm-foundry, Lightning, axolotl, …"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnplace.errors import FormatError, InfeasibleError, InputError
from gnnplace.launch.finetuners import read_axolotl, read_factory, read_trl
from gnnplace.launch.foundry import read_foundry
from gnnplace.launch.interpolation import MissingValue, resolve
from gnnplace.launch.lightning_cli import read_lightning
from gnnplace.launch.nemo import read_nemo
from gnnplace.launch.neox import read_neox
from gnnplace.launch.registry import (
    READERS,
    find_framework,
    find_launcher_of_file,
    get_reader,
    read_launch_file,
)
from gnnplace.launch.searching import price_launch_plan
from gnnplace.launch.writing import convert_launch_file
from gnnplace.plans.decoders.decoder import catalogue_decoder, with_adapters

NEOX = """{ "pipe_parallel_size": 0, "model-parallel-size": 2, "num_layers": 8, "hidden_size": 256,
  "num_attention_heads": 8, "num_kv_heads": 2, "seq_length": 128, "no_weight_tying": true,
  "activation": "swiglu", "intermediate_size": 2064, "mlp_multiple_of": 16,
  "attention_config": [[["flash"], 8]], "zero_optimization": {"stage": 1, "cpu_offload": True,},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "checkpoint_activations": true, "checkpoint_num_layers": 2, "bf16": {"enabled": true}, }"""
NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  encoder_seq_length: 128
  num_layers: 8
  hidden_size: 256
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 8
  activation: fast-swiglu
  megatron_amp_O2: true
  use_flash_attention: false
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  optim: {name: mcore_distributed_optim, overlap_grad_sync: true}
"""
FOUNDRY = """
variables: {length: 256}
max_seq_len: ${variables.length}
model: {name: mpt_causal_lm, d_model: 256, n_heads: 8, n_layers: 4, vocab_size: 512}
optimizer: {name: decoupled_lionw}
global_train_batch_size: 64
device_train_microbatch_size: auto
precision: amp_bf16
fsdp_config: {sharding_strategy: SHARD_GRAD_OP, activation_cpu_offload: true}
"""
LIGHTNING = """
trainer:
  devices: 8
  num_nodes: 2
  precision: bf16-mixed
  accumulate_grad_batches: 4
  strategy:
    class_path: lightning.pytorch.strategies.FSDPStrategy
    init_args: {sharding_strategy: HYBRID_SHARD, cpu_offload: true}
model: {class_path: a.Net, init_args: {use_peft: true}}
data: {class_path: a.Rows, init_args: {batch_size: 2}}
"""
AXOLOTL = """
base_model: a/b
adapter: lora
micro_batch_size: 2
gradient_accumulation_steps: 3
gradient_checkpointing: true
bf16: auto
optimizer: adamw_bnb_8bit
dp_shard_size: 8
fsdp_config: {reshard_after_forward: false}
"""
FACTORY = """
model_name_or_path: a/b
finetuning_type: full
deepspeed: cfg/z.json
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
"""


def test_neox_has_megatrons_sizes_and_deepspeeds_plan():
    plan = read_neox(NEOX, "a.yml")
    assert (plan.tp, plan.pp, plan.sp, plan.zero, plan.recompute) == (
        2,
        1,
        False,
        1,
        "uniform:2",
    )
    assert (plan.microbatch_size, plan.accumulation, plan.precision) == (
        4,
        8,
        "bf16-master",
    )
    assert plan.sizes is not None
    # Three matrices: a third of the width, up to the next multiple of 16.
    assert (plan.sizes.feed_forward, plan.sizes.gated, plan.sizes.kv_heads) == (
        688,
        True,
        2,
    )
    assert (plan.offload, plan.not_priced) == ("optimizer", ())
    assert plan.lines["tp"] == 1


def test_nemo_computes_its_values_and_its_replicas():
    plan = read_nemo(NEMO, "a.yaml")
    assert plan.words == (
        "dp=2,tp=4,pp=2,sp=off,microbatch_size=1,zero=1,gradients=fp32,recompute=block:2,"
        "schedule=interleaved:2"
    )
    assert plan.sizes is not None
    assert (plan.sizes.feed_forward, plan.sizes.gated, plan.precision) == (
        1024,
        True,
        "bf16-master",
    )
    assert [entry.key for entry in plan.not_priced] == ["model.use_flash_attention"]


def test_foundry_asks_for_what_is_chosen_at_the_run():
    plan = read_foundry(FOUNDRY, "a.yaml")
    assert (plan.zero, plan.microbatch_size, plan.batch, plan.optimizer) == (
        2, None, 64, "decoupled_lionw",
    )  # fmt: skip
    assert plan.sizes is not None
    assert (plan.sizes.length, plan.sizes.feed_forward, plan.sizes.tied) == (
        256,
        1024,
        True,
    )
    assert {entry.key for entry in plan.not_priced} == {
        "fsdp_config.activation_cpu_offload", "optimizer.name",
    }  # fmt: skip
    given = read_foundry(FOUNDRY, "a.yaml", {"device_train_microbatch_size": "8"})
    assert given.microbatch_size == 8


def test_lightning_shards_within_a_server():
    plan = read_lightning(LIGHTNING, "a.yaml")
    assert (plan.dp, plan.group, plan.zero, plan.microbatch_size) == (16, 8, 3, 2)
    assert plan.offload == "optimizer+parameters"
    assert len(plan.not_priced) == 1  # adapters
    auto = read_lightning(LIGHTNING.replace("devices: 8", "devices: auto"), "a.yaml")
    assert (auto.dp, auto.needs) == (None, ("devices",))
    stage = read_lightning(
        "trainer: {devices: 8, strategy: deepspeed_stage_3_offload}\n", "a"
    )
    assert (stage.zero, stage.offload, stage.not_priced) == (3, "optimizer", ())


def test_axolotl_and_llama_factory_name_adapters_and_read_the_json_beside(tmp_path):
    plan = read_axolotl(AXOLOTL, "a.yaml")
    assert (plan.dp, plan.zero, plan.accumulation, plan.recompute) == (8, 2, 3, "full")
    assert (plan.precision, plan.optimizer) == (None, "adamw-8bit")
    assert [entry.key for entry in plan.not_priced] == [
        "lora_r"
    ]  # which axolotl asks for
    path = tmp_path / "a.yaml"
    path.write_text(FACTORY)
    with pytest.raises(
        FormatError, match=r"deepspeed: cfg/z.json: .* is not beside this file"
    ):
        read_launch_file(path)
    (tmp_path / "z.json").write_text(
        '{"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": '
        '{"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
    )
    read = read_launch_file(path)
    assert (read.zero, read.precision, read.microbatch_size) == (2, "bf16-master", 1)
    assert (read.offload, read.not_priced) == ("optimizer", ())
    assert (
        read_factory(FACTORY.replace("deepspeed: cfg/z.json\n", ""), "a.yaml").zero == 0
    )


LORA = "adapter: lora\nlora_r: 8\n"


@pytest.mark.parametrize(
    ("keys", "lora", "not_priced"),
    [
        (LORA + "lora_target_linear: true\n", "r=8", []),
        (LORA + "lora_target_modules: [q_proj, v_proj]\n", "r=8,targets=q+v", []),
        (LORA + "lora_target_modules: all-linear\n", "r=8", []),
        (
            LORA.replace(": lora", ": qlora")
            + "load_in_4bit: true\nquantize_moe_experts: true\n"
            "lora_target_modules: [self_attn.o_proj, lm_head]\n",
            "r=8,targets=o,bits=4,expert_bits=4",
            ["lora_target_modules"],
        ),
        (LORA, None, ["lora_target_modules"]),
        (LORA + "lora_target_modules: [embed_tokens]\n", None, ["lora_target_modules"]),
        ("adapter: llama-adapter\n", None, ["adapter"]),
        (
            LORA
            + "lora_target_modules: 'model.layers.[\\d]+.(mlp|self_attn).(up|down|q|k)_proj'\n",
            "r=8,targets=q+k+up+down",
            [],
        ),
        (
            LORA
            + "lora_target_modules: '.*\\.layers\\.(3|7)\\.self_attn\\.(q|v)_proj'\n",
            "r=8,targets=q+v",
            ["lora_target_modules"],
        ),
        (
            LORA
            + "lora_target_linear: true\npeft_use_dora: true\nlora_modules_to_save: [lm_head]\n",
            "r=8",
            ["peft_use_dora", "lora_modules_to_save"],
        ),
    ],
)
def test_axolotl_s_adapters_are_read(keys, lora, not_priced):
    plan = read_axolotl(AXOLOTL.replace("adapter: lora\n", keys), "a.yaml")
    assert plan.lora == lora
    assert sorted(entry.key for entry in plan.not_priced) == sorted(not_priced)


@pytest.mark.parametrize(
    ("keys", "lora", "not_priced"),
    [
        ("finetuning_type: full\n", None, []),
        ("", "r=8", []),
        ("lora_rank: 16\nlora_target: q_proj,v_proj\n", "r=16,targets=q+v", []),
        ("quantization_bit: 4\n", "r=8,bits=4", []),
        ("quantization_bit: 8\n", "r=8", ["quantization_bit"]),
        ("finetuning_type: freeze\n", None, ["finetuning_type"]),
    ],
)
def test_llama_factory_s_adapters_are_read(keys, lora, not_priced):
    text = FACTORY.replace("deepspeed: cfg/z.json\n", "").replace(
        "finetuning_type: full\n", keys
    )
    plan = read_factory(text, "a.yaml")
    assert plan.lora == lora
    assert [entry.key for entry in plan.not_priced] == not_priced


@pytest.mark.parametrize(
    ("peft", "lora"),
    [
        ("{peft_scheme: lora}", "r=32,targets=q+k+v"),
        (
            "{peft_scheme: lora, lora_tuning: {adapter_dim: 16, target_modules: [all]}}",
            "r=16",
        ),
        (
            "{peft_scheme: lora, lora_tuning: {target_modules: [attention, mlp_fc1]}}",
            "r=32,targets=q+k+v+o+gate+up",
        ),
        ("{peft_scheme: ia3}", None),
    ],
)
def test_nemo_s_adapters_are_read(peft, lora):
    plan = read_nemo(f"{NEMO}  peft: {peft}\n", "a.yaml")
    assert plan.lora == lora
    effects = [entry.key for entry in plan.not_priced if "peft" in entry.key]
    assert effects == ([] if lora else ["model.peft.peft_scheme"])


def test_adapters_that_a_file_states_are_priced_and_written_as_a_line():
    keys = LORA + "lora_target_modules: [q_proj, v_proj]\n"
    plan = replace(
        read_axolotl(AXOLOTL.replace("adapter: lora\n", keys), "a.yaml"), lines={}
    )
    answer = price_launch_plan(
        plan, "axolotl", "8xH100", model="meta-llama/Llama-3.1-8B"
    )
    decoder = catalogue_decoder("meta-llama/Llama-3.1-8B", 8)
    assert decoder is not None
    adapted = with_adapters(decoder, "r=8,targets=q+v")
    assert (
        answer.setting.decoder.trained_parameters
        == adapted.trained_parameters
        == 3_407_872
    )
    plan = replace(plan, precision="bf16-mixed", sizes=replace(decoder, batch=1))
    file = convert_launch_file(plan, "accelerate", source_launcher="axolotl")
    told = [
        loss.line
        for loss in file.losses
        if "adapters: the script makes them" in loss.line
    ]
    assert len(told) == 1
    with pytest.raises(InfeasibleError, match=r"megatron-lm: .* no adapters"):
        convert_launch_file(plan, "megatron-lm", source_launcher="axolotl")


@pytest.mark.parametrize(
    ("data", "path", "value"),
    [
        ({"a": 2, "b": "${sum:${a}, 1}"}, "b", 3),
        ({"a": {"b": 3, "c": "${.b}"}}, "a.c", 3),
        ({"a": "x${b}y", "b": 1}, "a", "x1y"),
        ({"a": "${oc.env:N, 4}"}, "a", 4),
        ({"a": "${oc.env:N}"}, "a", MissingValue("N")),
        ({"a": "???"}, "a", MissingValue("a")),
        ({"a": "${a}"}, "a", MissingValue("a")),
        ({"a": "${divide:1,0}"}, "a", MissingValue("divide:1,0")),
    ],
)
def test_interpolations_are_put_in_or_named(data, path, value):
    found = resolve(data, {})
    for name in path.split("."):
        found = found[name]
    assert found == value or isinstance(found, (str, MissingValue))
    if not isinstance(value, MissingValue):
        assert found == value


def test_every_launcher_has_a_framework_and_others_are_refused_by_name(tmp_path):
    plan = read_neox(NEOX, "a.yml")
    assert all(find_framework(name, plan) for name in READERS)
    with pytest.raises(InputError, match="did you mean 'nemo'"):
        get_reader("nemoo")
    path = tmp_path / "a.yaml"
    path.write_text("model:\n  _component_: torchtune.models.llama3\n")
    with pytest.raises(FormatError, match="is a file of torchtune, which is not read"):
        read_launch_file(path)


def test_llama_factory_s_runs_on_megatron_have_its_degrees():
    text = FACTORY.replace("deepspeed: cfg/z.json\n", "") + (
        "tensor_model_parallel_size: 4\nsequence_parallel: true\n"
        "pipeline_model_parallel_size: 2\nuse_distributed_optimizer: true\n"
    )
    plan = read_factory(text, "a.yaml")
    assert (plan.tp, plan.sp, plan.pp, plan.zero) == (4, True, 2, 1)
    assert (plan.recompute, plan.gradients) == ("none", "fp32")
    for key in ("infer_backend: vllm", "export_dir: out"):
        with pytest.raises(FormatError, match="runs no training"):
            read_factory(f"model_name_or_path: a/b\ntemplate: qwen\n{key}\n", "a.yaml")


TRL = """
model_name_or_path: a/b
bf16: true
gradient_accumulation_steps: 4
per_device_train_batch_size: 2
"""


@pytest.mark.parametrize(
    ("keys", "lora", "recompute", "not_priced"),
    [
        ("", None, "none", []),
        ("gradient_checkpointing: true\nbeta: 0.01\n", None, "full", ["beta"]),
        (
            "use_peft: true\nload_in_4bit: true\nlora_r: 128\n"
            "lora_target_modules: [q_proj, o_proj]\npacking: true\n",
            "r=128,targets=q+o,bits=4",
            "none",
            ["packing"],
        ),
        ("use_peft: true\n", "r=16,targets=q+v", "none", []),
    ],
)
def test_arguments_of_trl_train_all_parameters_unless_they_say_otherwise(
    tmp_path, keys, lora, recompute, not_priced
):
    """As in `recipes/` of huggingface/alignment-handbook and open-r1."""
    path = tmp_path / "config.yaml"
    path.write_text(TRL + keys)
    assert find_launcher_of_file(path) == "trl"
    plan = read_trl(TRL + keys, "a.yaml")
    assert (plan.lora, plan.recompute, plan.zero) == (lora, recompute, 0)
    assert [entry.key for entry in plan.not_priced] == not_priced


def test_a_json_of_deepspeed_may_lie_in_a_folder_above(tmp_path):
    (tmp_path / "cfg").mkdir()
    (tmp_path / "cfg" / "z.json").write_text('{"zero_optimization": {"stage": 1}}')
    path = tmp_path / "examples" / "llama" / "a.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(FACTORY)
    assert read_launch_file(path).zero == 1


def test_tokens_of_a_tokenizer_are_not_nanotron_s(tmp_path):
    path = tmp_path / "a.yml"
    path.write_text("base_model: a/b\ntokens:\n  bos_token: <s>\nmicro_batch_size: 1\n")
    assert find_launcher_of_file(path) == "axolotl"


def test_layers_in_place_of_attention_have_no_sizes():
    plan = read_neox(NEOX.replace('"flash"', '"mamba"'), "a.yml")
    assert plan.sizes is None
    effects = [entry.effect for entry in plan.not_priced]
    assert "layers of mamba; the sizes are not read" in effects
