"""llm-foundry: the YAML of `composer train.py`.

Read by llm-foundry 8c8dd48f (`llmfoundry/command_utils/train.py`). FSDP is on where `fsdp_config`
is there; `device_train_microbatch_size: auto` is chosen at the run, so it is asked for. The
replicas are what the cluster leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnnplace.launch.adapter_keys import AdapterKeys, read_adapters
from gnnplace.launch.launch_plan import FULL, NONE, LaunchPlan
from gnnplace.launch.offloading import fsdp_offload
from gnnplace.launch.yaml_reading import YamlReading
from gnnplace.plans import DecoderSizes

WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "microbatch_size": ("device_train_microbatch_size",),
    "batch": ("global_train_batch_size",),
    "zero": ("fsdp_config.sharding_strategy", "fsdp_config"),
    "recompute": ("fsdp_config.activation_checkpointing",),
    "precision": ("precision",),
    "optimizer": ("optimizer.name",),
    "tp": ("tp_config.tensor_parallel_degree",),
}
STRATEGIES = {
    "full_shard": 3,
    "shard_grad_op": 2,
    "no_shard": 0,
    "hybrid_shard": 3,
    "_hybrid_shard_zero2": 2,
}
PRECISIONS = {
    "amp_bf16": "bf16-mixed",
    "amp_fp16": "16-mixed",
    "fp32": "32-true",
    "amp_fp8": "bf16-mixed",
}
EFFECTS: Mapping[str, str] = {
    "fsdp_config.activation_cpu_offload": "offloads activations to the CPU; priced on the GPU",
    "peft_config": "adapters (LoRA); priced as training of all parameters",
    "model.attn_config.sliding_window_size": "attention in a window; priced over all tokens",
    "model.ffn_config.moe_num_experts": "experts in layers; the sizes are not read",
    "model.attn_config.attn_uses_sequence_id": "attention within documents; priced over all tokens",
}
ADAPTERS = AdapterKeys(
    rank="model.peft_config.r",
    targets="model.peft_config.target_modules",
    default_rank=8,
)
USUAL_ALGORITHMS = ("gradient_clipping",)
OPEN_KEYS = ("global_train_batch_size", "device_train_microbatch_size", "precision")


def read_foundry(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of llm-foundry.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys by path, and of its environment by name.

    Raises:
        FormatError: If it is none, or its numbers contradict.
    """
    reading = YamlReading.of_text(text, source, values or {}, OPEN_KEYS)
    size = reading.get("device_train_microbatch_size")
    if size == "auto":
        reading.notes.append(
            "device_train_microbatch_size: auto: is chosen when the run starts"
        )
    reading.refuse_switches(EFFECTS)
    algorithms = reading.get("algorithms")
    if isinstance(algorithms, dict):
        for algorithm in algorithms:
            if algorithm not in USUAL_ALGORITHMS:
                effect = f"{algorithm}: changes the step; priced without"
                reading.refuse_price("algorithms", effect)
    if reading.text("precision") == "amp_fp8":
        reading.refuse_price("precision", "matrix products in fp8; priced in bf16")
    name = reading.text("optimizer.name")
    plain = {"decoupled_adamw": "adamw", "adamw": "adamw", "adam": "adam", "sgd": "sgd"}
    precision = reading.text("precision")
    attention = reading.text("model.attn_config.attn_impl") or reading.text(
        "model.attn_impl"
    )
    if attention in ("torch", "triton"):
        path = "model.attn_config.attn_impl"
        reading.refuse_price(
            path, f"{attention} attention; priced with the usual kernels"
        )
    strategy = reading.text("fsdp_config.sharding_strategy") or "full_shard"
    if strategy.startswith(("hybrid", "_hybrid")):
        reading.notes.append(
            f"{strategy}: shards within a server; priced over all replicas"
        )
    # Without `fsdp_config` the replicas are DDP's.
    if reading.get("fsdp_config"):
        zero = STRATEGIES.get(strategy, 3)
    else:
        zero = 0
    has_adapters = bool(reading.get("model.peft_config"))
    is_offloaded = reading.is_on("fsdp_config.cpu_offload")
    if is_offloaded:
        offload = fsdp_offload(zero)
    else:
        offload = NONE
    if offload is None:
        effect = "offloads parameters to the CPU; priced on the GPU"
        reading.refuse_price("fsdp_config.cpu_offload", effect)
    plan = LaunchPlan(
        tp=reading.degree("tp_config.tensor_parallel_degree"),
        microbatch_size=None
        if size == "auto"
        else reading.count("device_train_microbatch_size"),
        batch=reading.count("global_train_batch_size"),
        zero=zero,
        offload=offload or NONE,
        recompute=FULL
        if reading.is_on("fsdp_config.activation_checkpointing")
        else NONE,
        precision=PRECISIONS.get(precision),
        gradients="same",
        optimizer=reading.optimizer("optimizer.name", plain.get(name, name)),
        compile=reading.get("compile_config") is not None,
        sizes=_sizes(reading),
        length=reading.count("max_seq_len"),
        lora=read_adapters(reading, ADAPTERS) if has_adapters else None,
        lines=reading.keys.word_lines(WORD_KEYS),
    )
    return reading.finish(plan, text)


def _sizes(reading: YamlReading) -> DecoderSizes | None:
    """Return the sizes of an MPT model, None for models by name."""
    names = ("model.n_layers", "model.d_model", "model.n_heads")
    layers, hidden, heads = (reading.count(name) for name in names)
    length = reading.count("max_seq_len") or reading.count("model.max_seq_len")
    if not layers or not hidden or not heads or not length:
        named = reading.text("model.pretrained_model_name_or_path")
        if named:
            reading.notes.append(f"the model is {named}: give it as MODEL")
        return None
    if (reading.count("model.ffn_config.moe_num_experts", 1) or 1) > 1:
        return None
    ratio = reading.get("model.expansion_ratio")
    width = int(hidden * (ratio if isinstance(ratio, (int, float)) else 4))
    vocabulary = reading.count("model.vocab_size")
    if vocabulary is None:
        vocabulary = 50368
        reading.notes.append("no model.vocab_size: 50368 tokens are assumed")
    rotary = reading.is_on("model.attn_config.rope") or reading.is_on(
        "model.attn_config.alibi"
    )
    return DecoderSizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=reading.count("model.attn_config.kv_n_heads", heads) or heads,
        feed_forward=reading.count("model.ffn_config.ffn_hidden_size", width) or width,
        length=length,
        vocabulary=vocabulary,
        gated="glu" in reading.text("model.ffn_config.ffn_type"),
        tied=reading.get("model.tie_word_embeddings") is not False,
        positions=0
        if rotary or reading.get("model.learned_pos_emb") is False
        else None,
    )
