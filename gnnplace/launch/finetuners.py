"""axolotl, LLaMA-Factory and TRL: YAML of fine-tuning by Hugging Face's Trainer.

Read by axolotl 067b021c (`src/axolotl/utils/schemas`), LLaMA-Factory ff6d4d12
(`src/llamafactory/hparams`) and TRL 0.9 (`ModelConfig` and `TrainingArguments`, as
alignment-handbook has them). They name a model, a DeepSpeed JSON or FSDP, micro-batch and
accumulation; the replicas are what the cluster leaves. LoRA and QLoRA are read; other adapters are
not priced, and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gnnplace.launch.adapter_keys import AdapterKeys, read_adapters
from gnnplace.launch.launch_plan import FULL, NONE, LaunchPlan
from gnnplace.launch.offloading import fsdp_offload
from gnnplace.launch.yaml_reading import (
    YamlReading,
    training_optimizer,
    with_json,
)
from gnnplace.plans import HALF_BITS, QUANTIZED_BITS

AXOLOTL_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": ("dp_shard_size", "dp_replicate_size"),
    "tp": ("tensor_parallel_size",),
    "cp": ("context_parallel_size", "sequence_parallel_degree"),
    "zero": ("fsdp_config.reshard_after_forward", "fsdp_config", "fsdp", "deepspeed"),
    "group": ("dp_replicate_size",),
    "microbatch_size": ("micro_batch_size",),
    "accumulation": ("gradient_accumulation_steps",),
    "recompute": ("gradient_checkpointing",),
    "precision": ("bf16", "fp16"),
    "optimizer": ("optimizer",),
    "compile": ("torch_compile",),
    "lora": ("adapter",),
}
AXOLOTL_EFFECTS: Mapping[str, str] = {
    "activation_offloading": "offloads activations to the CPU; priced on the GPU",
    "load_in_8bit": "weights in 8 bits; priced in the half type",
    "peft_use_dora": "DoRA's magnitudes; priced as LoRA",
    "peft_layers_to_transform": "some layers have adapters; priced as all",
    "lora_modules_to_save": "modules that are trained beside adapters; priced as frozen",
    "lora_target_parameters": "adapters of experts; priced without",
    "relora": "adapters that are merged now and then; priced as LoRA",
    "unfrozen_parameters": "most parameters are frozen; priced as training of all",
    "sample_packing": "examples are packed; priced at the full length",
    "rl": "training on preferences; priced as training on tokens",
    "fp8": "matrix products in fp8; priced in the half type",
    "lisa_n_layers": "few layers are trained at a time; priced as training of all",
    "eager_attention": "eager attention; priced with the usual kernels",
    "xformers_attention": "attention by xformers; priced with the usual kernels",
}
FACTORY_KEYS: Mapping[str, tuple[str, ...]] = {
    "zero": ("deepspeed", "fsdp"),
    "microbatch_size": ("per_device_train_batch_size",),
    "accumulation": ("gradient_accumulation_steps",),
    "recompute": ("disable_gradient_checkpointing", "gradient_checkpointing"),
    "precision": ("bf16", "fp16", "pure_bf16"),
    "optimizer": ("optim",),
    "lora": ("finetuning_type",),
}
FACTORY_EFFECTS: Mapping[str, str] = {
    "use_dora": "DoRA's magnitudes; priced as LoRA",
    "additional_target": "modules that are trained beside adapters; priced as frozen",
    "use_galore": "GaLore's gradients of low rank; priced as adamw",
    "use_badam": "BAdam's blocks; priced as adamw",
    "use_apollo": "APOLLO's update; priced as adamw",
    "packing": "examples are packed; priced at the full length",
    "use_kt": "experts on the CPU (KTransformers); priced on the GPU",
    "use_unsloth": "Unsloth's kernels; priced with the usual ones",
    "enable_liger_kernel": "Liger's kernels; priced with the usual ones",
    "fp8": "matrix products in fp8; priced in the half type",
}
MEGATRON_DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
"""Keys of LLaMA-Factory's runs on Megatron-Core."""
NO_TRAINING = ("infer_backend", "export_dir")
"""Keys of LLaMA-Factory's files that chat, or that merge adapters."""
TRL_KEYS: Mapping[str, tuple[str, ...]] = {
    "microbatch_size": ("per_device_train_batch_size",),
    "accumulation": ("gradient_accumulation_steps",),
    "recompute": ("gradient_checkpointing",),
    "precision": ("bf16", "fp16"),
    "optimizer": ("optim",),
    "compile": ("torch_compile",),
    "lora": ("use_peft",),
}
TRL_EFFECTS: Mapping[str, str] = {
    "load_in_8bit": "weights in 8 bits; priced in the half type",
    "use_dora": "DoRA's magnitudes; priced as LoRA",
    "lora_modules_to_save": "modules that are trained beside adapters; priced as frozen",
    "packing": "examples are packed; priced at the full length",
    "use_liger_kernel": "Liger's kernels; priced with the usual ones",
}
PREFERENCES = ("beta", "loss_type", "max_prompt_length")
"""Keys of trainers that compare two answers, or that weigh generated ones."""
AXOLOTL_ADAPTERS = AdapterKeys(rank="lora_r", targets="lora_target_modules")
FACTORY_ADAPTERS = AdapterKeys(
    rank="lora_rank", targets="lora_target", default_rank=8, default_targets=("all",)
)
TRL_ADAPTERS = AdapterKeys(
    rank="lora_r",
    targets="lora_target_modules",
    default_rank=16,
    default_targets=("q_proj", "v_proj"),
)
OPEN_KEYS = (
    "micro_batch_size",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
)


def read_axolotl(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of axolotl.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by path.

    Raises:
        FormatError: If it is none, names a JSON that is not beside it, or contradicts itself.
    """
    reading = YamlReading.of_text(text, source, values or {}, OPEN_KEYS)
    shard = reading.count("dp_shard_size")
    replicate = reading.count("dp_replicate_size", 1) or 1
    dp = None if shard is None else shard * replicate
    cp = reading.count("context_parallel_size") or reading.degree(
        "sequence_parallel_degree"
    )
    has_fsdp = bool(
        reading.get("fsdp_config") or reading.get("fsdp") or (shard or 1) > 1
    )
    zero = 3 if has_fsdp else 0
    if reading.text("fsdp_config.reshard_after_forward") == "false":
        zero = 2
    offload = _offload(reading, zero)
    reading.refuse_switches(AXOLOTL_EFFECTS)
    lora = _axolotl_adapters(reading)
    _note_model(reading, "base_model")
    plan = LaunchPlan(
        dp=dp,
        tp=reading.degree("tensor_parallel_size"),
        cp=cp,
        zero=zero,
        group=shard if replicate > 1 and shard and shard > 1 else None,
        offload=offload,
        microbatch_size=reading.count("micro_batch_size"),
        accumulation=reading.count("gradient_accumulation_steps", 1) or 1,
        recompute=FULL if reading.get("gradient_checkpointing") else NONE,
        precision=_precision(reading, "bf16", "fp16"),
        gradients="same",
        optimizer=training_optimizer(reading, "optimizer"),
        compile=reading.is_on("torch_compile"),
        lora=lora,
        length=reading.count("sequence_len"),
        lines=reading.keys.word_lines(AXOLOTL_KEYS),
    )
    return _finish_plan(reading, plan, text)


def _offload(reading: YamlReading, zero: int) -> str:
    """Return what FSDP keeps in the host's memory. What no word says is noted."""
    for path in ("fsdp_config.offload_params", "fsdp_config.fsdp_offload_params"):
        if not reading.is_on(path):
            continue
        offload = fsdp_offload(zero)
        if offload is not None:
            return offload
        reading.refuse_price(path, "offloads parameters to the CPU; priced on the GPU")
    return NONE


def read_factory(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of LLaMA-Factory.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by path.

    Raises:
        FormatError: If it is none, names a JSON that is not beside it, or contradicts itself.
    """
    reading = YamlReading.of_text(text, source, values or {}, OPEN_KEYS)
    for key in NO_TRAINING:
        if reading.keys.has(key) and not reading.is_on("do_train"):
            raise reading.keys.fault(key, "runs no training")
    lora = _factory_adapters(reading)
    reading.refuse_switches(FACTORY_EFFECTS)
    _note_model(reading, "model_name_or_path")
    keeps = reading.is_on("disable_gradient_checkpointing")
    plan = LaunchPlan(
        zero=3 if reading.get("fsdp") else 0,
        microbatch_size=reading.count("per_device_train_batch_size"),
        accumulation=reading.count("gradient_accumulation_steps", 1) or 1,
        recompute=NONE
        if keeps
        else FULL,  # LLaMA-Factory turns it on unless this is there
        precision="bf16-true"
        if reading.is_on("pure_bf16")
        else _precision(reading, "bf16", "fp16"),
        gradients="same",
        optimizer=training_optimizer(reading, "optim") or "adamw",
        lora=lora,
        length=reading.count("cutoff_len"),
        lines=reading.keys.word_lines(FACTORY_KEYS),
    )
    if any(reading.keys.has(key) for key in MEGATRON_DEGREES):
        plan = _with_megatron(reading, plan)
    return _finish_plan(reading, plan, text)


def _with_megatron(reading: YamlReading, plan: LaunchPlan) -> LaunchPlan:
    """Return a plan with the keys of a run on Megatron-Core, which have its names."""
    reading.notes.append("trained by Megatron-Core; priced with PyTorch's constants")
    chunks = reading.degree("virtual_pipeline_model_parallel_size")
    keeps = reading.text("recompute_granularity") != FULL
    hidden = {
        "overlap_grad_reduce": "gradients",
        "overlap_param_gather": "parameters",
    }
    tp = reading.degree("tensor_model_parallel_size")
    return replace(
        plan,
        tp=tp,
        sp=tp == 1 or reading.is_on("sequence_parallel"),
        pp=reading.degree("pipeline_model_parallel_size"),
        cp=reading.degree("context_parallel_size"),
        ep=reading.degree("expert_model_parallel_size"),
        chunks=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        zero=1 if reading.is_on("use_distributed_optimizer") else 0,
        overlap=tuple(word for key, word in hidden.items() if reading.is_on(key)),
        recompute=NONE if keeps else FULL,
        precision="bf16-master" if plan.precision == "bf16-mixed" else plan.precision,
        gradients="fp32",
    )


def read_trl(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of the arguments of a script that trains by TRL or the Trainer.

    How replicas shard is said by the configuration of accelerate that starts the script.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by path.

    Raises:
        FormatError: If it is none, or contradicts itself.
    """
    reading = YamlReading.of_text(text, source, values or {}, OPEN_KEYS)
    reading.refuse_switches(TRL_EFFECTS)
    for key in PREFERENCES:
        if reading.keys.has(key):
            effect = "training on preferences; priced as training on tokens"
            reading.refuse_price(key, effect)
            break
    _note_model(reading, "model_name_or_path")
    reading.notes.append(
        "how replicas shard: is said by accelerate's file; priced as DDP"
    )
    lora = None
    if reading.is_on("use_peft"):
        bits = QUANTIZED_BITS if reading.is_on("load_in_4bit") else HALF_BITS
        lora = read_adapters(reading, TRL_ADAPTERS, bits=bits)
    plan = LaunchPlan(
        microbatch_size=reading.count("per_device_train_batch_size"),
        accumulation=reading.count("gradient_accumulation_steps", 1) or 1,
        recompute=FULL if reading.is_on("gradient_checkpointing") else NONE,
        precision=_precision(reading, "bf16", "fp16"),
        gradients="same",
        optimizer=training_optimizer(reading, "optim") or "adamw",
        compile=reading.is_on("torch_compile"),
        lora=lora,
        length=reading.count("max_length") or reading.count("max_seq_length"),
        lines=reading.keys.word_lines(TRL_KEYS),
    )
    return _finish_plan(reading, plan, text)


def _axolotl_adapters(reading: YamlReading) -> str | None:
    """Return the adapters of axolotl's keys, as `--lora` has them."""
    kind = reading.text("adapter")
    if kind not in ("lora", "qlora"):
        if kind:
            effect = f"{kind}: adapters of another kind; priced as training of all parameters"
            reading.refuse_price("adapter", effect)
        return None
    keys = AXOLOTL_ADAPTERS
    if reading.is_on("lora_target_linear"):
        keys = replace(keys, default_targets=("all",))
    if reading.is_on("load_in_4bit"):
        bits = QUANTIZED_BITS
    else:
        bits = HALF_BITS
    has_quantized_experts = bits < HALF_BITS and reading.is_on("quantize_moe_experts")
    if has_quantized_experts:
        expert_bits = QUANTIZED_BITS
    else:
        expert_bits = HALF_BITS
    return read_adapters(reading, keys, bits=bits, expert_bits=expert_bits)


def _factory_adapters(reading: YamlReading) -> str | None:
    """Return the adapters of LLaMA-Factory's keys, as `--lora` has them."""
    kind = reading.text("finetuning_type") or "lora"
    num_bits = reading.count("quantization_bit")
    if kind != "lora":
        if kind != "full":
            effect = f"{kind}: frozen layers or adapters; priced as training of all parameters"
            reading.refuse_price("finetuning_type", effect)
        return None
    if num_bits not in (None, QUANTIZED_BITS):
        effect = f"weights in {num_bits} bits; priced in the half type"
        reading.refuse_price("quantization_bit", effect)
    if num_bits == QUANTIZED_BITS:
        bits = QUANTIZED_BITS
    else:
        bits = HALF_BITS
    return read_adapters(reading, FACTORY_ADAPTERS, bits=bits)


def _precision(reading: YamlReading, bf16: str, fp16: str) -> str | None:
    """Return the precision, or None if the run finds out what its GPUs can do."""
    if reading.text(bf16) == "auto":
        return None
    if reading.is_on(bf16):
        return "bf16-mixed"
    if reading.is_on(fp16):
        return "16-mixed"
    return "32-true"


def _note_model(reading: YamlReading, key: str) -> None:
    name = reading.get(key)
    if name:
        reading.notes.append(f"{key}: {str(name)[:80]}: give the model as MODEL")


def _finish_plan(reading: YamlReading, plan: LaunchPlan, text: str) -> LaunchPlan:
    """Return a plan with DeepSpeed's JSON, notes and what the header says."""
    path = reading.get("deepspeed")
    if isinstance(path, str) and path:
        plan = with_json(reading, plan, path, "deepspeed")
    return reading.finish(plan, text)
