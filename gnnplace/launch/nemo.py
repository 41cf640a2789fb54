"""NeMo: the YAML of its Megatron models, with `trainer:` and `model:`, also of its launcher.

Read by NeMo 8cfedd72 (`examples/nlp/language_modeling/conf`). Values such as
`${multiply:4, ${.hidden_size}}` are computed. `megatron_amp_O2` keeps half parameters and a fp32
copy; without it the precision is autocast over fp32 parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gnnplace.launch.adapter_keys import AdapterKeys, read_adapters
from gnnplace.launch.launch_plan import (
    FULL,
    NONE,
    SELECTIVE,
    LaunchPlan,
)
from gnnplace.launch.yaml_reading import YamlReading
from gnnplace.plans import DecoderSizes, ExpertLayers, parse_adapters

WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": ("trainer.num_nodes", "trainer.devices"),
    "tp": ("model.tensor_model_parallel_size",),
    "pp": ("model.pipeline_model_parallel_size",),
    "cp": ("model.context_parallel_size",),
    "ep": ("model.expert_model_parallel_size",),
    "sp": ("model.sequence_parallel",),
    "schedule": ("model.virtual_pipeline_model_parallel_size",),
    "microbatch_size": ("model.micro_batch_size",),
    "batch": ("model.global_batch_size",),
    "zero": ("model.fsdp_sharding_strategy", "model.optim.name"),
    "recompute": ("model.activations_checkpoint_granularity",),
    "overlap": ("model.optim.overlap_grad_sync",),
    "precision": ("trainer.precision",),
    "gradients": ("model.optim.grad_sync_dtype",),
    "optimizer": ("model.optim.name",),
    "lora": ("model.peft.peft_scheme",),
}
EFFECTS: Mapping[str, str] = {
    "model.fp8": "matrix products in fp8; priced in the half type",
    "model.cpu_offloading": "offloads activations to the CPU; priced on the GPU",
    "model.rampup_batch_size": "the batch grows; priced at its last size",
    "model.fp32_residual_connection": "the residual stream is in fp32; priced in the half type",
    "model.activations_checkpoint_layers_per_pipeline": "stages recompute unlike numbers of layers",
    "model.num_micro_batches_with_partial_activation_checkpoints": "some micro-batches recompute "
    "less",
    "model.apply_query_key_layer_scaling": "scores are scaled by layer; priced the same",
    "model.window_size": "attention in a window; priced over all tokens",
    "model.defer_embedding_wgrad_compute": "the head's weight gradient is computed in the bubble; "
    "priced without",
    "model.seq_len_interpolation_factor": "positions are interpolated; priced the same",
    "model.drop_layers": "layers are left out; priced with all",
    "model.sharp": "reductions in the switches; priced without",
}
FREE = ("model.apply_query_key_layer_scaling", "model.seq_len_interpolation_factor")
ADAPTERS = AdapterKeys(
    rank="model.peft.lora_tuning.adapter_dim",
    targets="model.peft.lora_tuning.target_modules",
    default_rank=32,
    default_targets=("attention_qkv",),
)
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
OPEN_KEYS = ("trainer", "model")


def read_nemo(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of NeMo.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys by path, and of its environment by name.

    Raises:
        FormatError: If it is none, or its numbers contradict.
    """
    reading = YamlReading.of_text(text, source, values or {}, OPEN_KEYS)
    tp, pp, cp, ep = (
        reading.degree(f"model.{name}_parallel_size")
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    chunks = reading.count("model.virtual_pipeline_model_parallel_size", 1) or 1
    chunks = chunks if pp > 1 else 1
    # What changes the step and has no word is noted before the words are made.
    precision = _precision(reading)
    effects = {path: effect for path, effect in EFFECTS.items() if path not in FREE}
    reading.refuse_switches(effects)
    _note_attention(reading)
    sizes = _sizes(reading)
    lora = _adapters(reading)
    if lora is not None and sizes is not None:
        # NeMo's layers make queries, keys and values by one product, gate and up by another.
        sizes = replace(sizes, joins_queries=True, joins_gate=sizes.gated)
        adapters = parse_adapters(lora)
        if not sizes.gated:
            targets = tuple(name for name in adapters.targets if name != "gate")
            lora = str(replace(adapters, targets=targets))
    overlap = [
        word
        for word, path in (
            ("gradients", "model.optim.overlap_grad_sync"),
            ("parameters", "model.optim.overlap_param_sync"),
            ("tp", "model.ub_tp_comm_overlap"),
        )
        if reading.is_on(path)
    ]
    half = precision.partition("-")[2] == "master"
    plan = LaunchPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        sp=tp == 1 or reading.is_on("model.sequence_parallel"),
        chunks=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        microbatch_size=reading.count("model.micro_batch_size"),
        batch=reading.count("model.global_batch_size"),
        zero=_zero(reading),
        recompute=_recompute(reading),
        precision=precision,
        gradients="fp32"
        if half and reading.text("model.optim.grad_sync_dtype") != "bf16"
        else "same",
        optimizer=_optimizer(reading),
        overlap=tuple(overlap),
        sizes=sizes,
        length=reading.count("model.encoder_seq_length"),
        lora=lora,
        lines=reading.keys.word_lines(WORD_KEYS),
    )
    # Replicas are what the processes leave; without them the cluster says.
    devices = reading.get("trainer.devices")
    nodes = reading.get("trainer.num_nodes")
    if type(devices) is int and devices > 0 and type(nodes) in (int, type(None)):
        plan = plan.with_dp(devices * (nodes or 1), source)
    return reading.finish(plan, text)


def _zero(reading: YamlReading) -> int:
    if reading.is_on("model.fsdp"):
        strategy = reading.text("model.fsdp_sharding_strategy")
        if strategy == "grad":
            return 2
        return 3
    if reading.text("model.optim.name") in SHARDED:
        return 1
    return 0


def _recompute(reading: YamlReading) -> str:
    """Return the word for what is recomputed."""
    granularity = reading.text("model.activations_checkpoint_granularity")
    if granularity in ("", "none", "null"):
        return NONE
    if granularity == SELECTIVE:
        return SELECTIVE
    method = reading.text("model.activations_checkpoint_method") or "uniform"
    count = reading.count("model.activations_checkpoint_num_layers", 1) or 1
    if (method, count) == ("uniform", 1):
        return FULL
    return f"{method}:{count}"


def _precision(reading: YamlReading) -> str:
    word = reading.text("trainer.precision")
    if "bf16" in word:
        half = "bf16"
    elif "16" in word:
        half = "16"
    else:
        half = "32"
    if half == "32":
        return "32-true"
    if word.endswith("-true"):
        return f"{half}-true"
    if reading.is_on("model.megatron_amp_O2"):
        return f"{half}-master"
    return f"{half}-mixed"


def _optimizer(reading: YamlReading) -> str | None:
    name = reading.text("model.optim.name")
    adams = (*SHARDED, "fused_adam", "adamw", "adam", "megatron_fused_adam")
    return reading.optimizer("model.optim.name", "adamw" if name in adams else name)


def _note_attention(reading: YamlReading) -> None:
    """Note attention by unfused kernels."""
    by_engine = reading.is_on("model.transformer_engine")
    flash = reading.get("model.use_flash_attention")
    if flash is False and not by_engine:
        effect = "no FlashAttention, unfused attention; priced with the framework's usual kernels"
        reading.refuse_price("model.use_flash_attention", effect)


def _adapters(reading: YamlReading) -> str | None:
    """Return the adapters of `model.peft`, as `--lora` has them."""
    scheme = reading.text("model.peft.peft_scheme")
    if scheme in ("", "none", "null", "0"):
        return None
    if scheme != "lora":
        effect = (
            f"{scheme}: adapters of another kind; priced as training of all parameters"
        )
        reading.refuse_price("model.peft.peft_scheme", effect)
        return None
    return read_adapters(reading, ADAPTERS)


def _sizes(reading: YamlReading) -> DecoderSizes | None:
    """Return the sizes of the model, or None if the file has not all of them."""
    names = ("num_layers", "hidden_size", "num_attention_heads", "encoder_seq_length")
    layers, hidden, heads, length = (reading.count(f"model.{name}") for name in names)
    if not layers or not hidden or not heads or not length:
        return None
    activation = reading.text("model.activation")
    gated = "glu" in activation
    width = reading.count("model.ffn_hidden_size", 4 * hidden) or 4 * hidden
    experts = reading.count("model.num_moe_experts", 1) or 1
    shared = reading.get("model.share_embeddings_and_output_weights")
    head_size = reading.count("model.kv_channels")
    vocabulary = reading.vocabulary("model.tokenizer.vocab_size")
    if experts > 1 and not gated:
        return None
    positions = reading.text("model.position_embedding_type")
    return DecoderSizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=reading.count("model.num_query_groups", heads) or heads,
        feed_forward=width,
        length=length,
        vocabulary=vocabulary,
        gated=gated,
        tied=shared is not False,
        positions=None if positions in ("", "learned_absolute") else 0,
        own_head_size=head_size if head_size and head_size * heads != hidden else None,
        experts=ExpertLayers(
            count=experts,
            active=reading.count("model.moe_router_topk", 2) or 2,
            width=reading.count("model.moe_ffn_hidden_size", width) or width,
        )
        if experts > 1
        else None,
    )
