"""GPT-NeoX: the YAML of `deepy.py train.py`, DeepSpeed's configuration with Megatron's sizes.

Read by GPT-NeoX ea7aefd8 (`megatron/neox_arguments`). `pipe_parallel_size` 0 and 1 are both no
pipeline. `intermediate_size` of gated layers is three times the width of one matrix. The batch is
micro-batch x accumulation x replicas, and the replicas are what the cluster leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gnnplace.launch.launch_plan import FULL, NONE, LaunchPlan
from gnnplace.launch.offloading import find_deepspeed_offload
from gnnplace.launch.yaml_reading import YamlReading
from gnnplace.plans import DecoderSizes

WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "tp": ("model_parallel_size",),
    "pp": ("pipe_parallel_size",),
    "cp": ("context_parallel_size",),
    "sp": ("sequence_parallel",),
    "microbatch_size": ("train_micro_batch_size_per_gpu",),
    "batch": ("train_batch_size",),
    "accumulation": ("gradient_accumulation_steps", "gas"),
    "zero": ("zero_optimization.stage",),
    "recompute": ("checkpoint_activations",),
    "precision": ("precision", "fp16", "bf16"),
    "optimizer": ("optimizer.type",),
    "gradients": ("data_types.grad_accum_dtype",),
}
EFFECTS: Mapping[str, str] = {
    "partition_activations": "kept activations are cut over tensor-parallel shards; priced whole",
    "checkpoint_in_cpu": "offloads checkpointed activations to the CPU; priced on the GPU",
    "fp32_allreduce": "gradients are reduced in fp32; priced in their own type",
    "sparse_gradients": "sparse gradients of embeddings; priced as dense",
    "curriculum_learning.enabled": "the sequence length grows; priced at its last length",
    "soft_prompt_tuning": "trains a prompt alone; priced as training of all parameters",
    "mup": "initial values by muP; priced the same",
    "use_mup": "initial values by muP; priced the same",
    "te_fp8_format": "matrix products in fp8; priced in the half type",
    "window_size": "attention in a window; priced over all tokens",
    "moe_num_experts": "experts in layers; the sizes are not read",
}
OFFLOADING: Mapping[str, str] = {
    "zero_optimization.cpu_offload": "offloads the optimizer's state; priced on the GPU",
    "zero_optimization.offload_optimizer": "offload_optimizer: the optimizer's state is offloaded; "
    "priced on the GPU",
    "zero_optimization.offload_param": "offload_param: parameters are offloaded; priced on the GPU",
}
"""Keys of what is offloaded, where no word of a plan says it."""
GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")


def read_neox(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of GPT-NeoX.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by name.

    Raises:
        FormatError: If it is none, or its numbers contradict.
    """
    reading = YamlReading.of_text(text, source, values or {}, tuple(OPEN_KEYS))
    data = reading.keys.data
    keys = replace(
        reading.keys,
        data={key.replace("-", "_"): value for key, value in data.items()},
        lines={
            path.replace("-", "_"): line for path, line in reading.keys.lines.items()
        },
    )
    reading.keys = keys
    tp = reading.degree("model_parallel_size")
    pp = reading.count("pipe_parallel_size", 1, least=0) or 1
    zero = reading.count("zero_optimization.stage", 0, least=0) or 0
    if zero > 3:
        raise keys.fault("zero_optimization.stage", "must be 0 to 3")
    steps = reading.count("gradient_accumulation_steps") or reading.count("gas")
    groups = reading.count("checkpoint_num_layers", 1) or 1
    recompute = NONE
    if reading.is_on("checkpoint_activations"):
        if groups == 1:
            recompute = FULL
        else:
            recompute = f"uniform:{groups}"
    # Its engine is DeepSpeed's, and reads the same section.
    offload = find_deepspeed_offload(
        reading.get("zero_optimization.offload_optimizer")
        or reading.get("zero_optimization.cpu_offload"),
        reading.get("zero_optimization.offload_param"),
        zero,
    )
    if offload is None:
        reading.refuse_switches(OFFLOADING)
    reading.refuse_switches(EFFECTS)
    _note_attention(reading)
    batch = reading.count("train_batch_size")
    plan = LaunchPlan(
        tp=tp,
        pp=pp,
        cp=reading.degree("context_parallel_size"),
        sp=tp == 1 or reading.is_on("sequence_parallel"),
        microbatch_size=reading.count("train_micro_batch_size_per_gpu"),
        batch=batch,
        accumulation=(steps or 1) if batch is None else steps,
        zero=zero,
        offload=offload or NONE,
        recompute=recompute,
        precision=_precision(reading),
        gradients="fp32"
        if reading.text("data_types.grad_accum_dtype") == "fp32"
        else "same",
        optimizer=_optimizer(reading),
        sizes=_sizes(reading),
        length=reading.count("seq_length"),
        lines=keys.word_lines(WORD_KEYS),
    )
    return reading.finish(plan, text)


OPEN_KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "model_parallel_size",
    "pipe_parallel_size",
    "vocab_size",
)


OTHER_LAYERS = frozenset(["mamba", "rwkv", "gmlp", "amlp"])
"""Kinds of layers that stand where attention does."""


def _precision(reading: YamlReading) -> str | None:
    """Return the precision in Lightning's words, or None if a part of a configuration has none."""
    word = reading.text("precision")
    if reading.is_on("bf16.enabled") or word in ("bfloat16", "bf16"):
        return "bf16-master"
    if reading.is_on("fp16.enabled") or reading.is_on("fp16.fp16") or word == "fp16":
        return "16-master"
    is_whole = reading.keys.has("train_micro_batch_size_per_gpu")
    if word == "fp32" or is_whole:
        return "32-true"
    return None


def _optimizer(reading: YamlReading) -> str | None:
    name = reading.text("optimizer.type")
    return reading.optimizer(
        "optimizer.type", "adamw" if name in ("adam", "cpu_adam") else name
    )


def _attention_kinds(reading: YamlReading) -> set[str]:
    """Return the kinds of attention, or of layers in its place, that a file names."""
    config = reading.get("attention_config")
    kinds: set[str] = set()
    for part in config if isinstance(config, list) else []:
        if isinstance(part, list) and part and isinstance(part[0], list):
            kinds.update(str(kind) for kind in part[0])
    return kinds


def _note_attention(reading: YamlReading) -> None:
    """Note attention by kernels other than FlashAttention."""
    config = reading.get("attention_config")
    kinds = _attention_kinds(reading)
    if config is not None:
        unlike = sorted(kinds - {"flash"})
    else:
        unlike = ["global"]
    if kinds & OTHER_LAYERS:
        listed = ", ".join(sorted(kinds & OTHER_LAYERS))
        reading.refuse_price(
            "attention_config", f"layers of {listed}; the sizes are not read"
        )
    elif unlike:
        effect = f"attention by {', '.join(unlike)}, unfused or sparse; priced as usual"
        reading.refuse_price("attention_config", effect)


def _sizes(reading: YamlReading) -> DecoderSizes | None:
    """Return the sizes of the model, or None if the file has not all of them."""
    names = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
    layers, hidden, heads, length = (reading.count(name) for name in names)
    if not layers or not hidden or not heads or not length:
        return None
    experts = reading.count("moe_num_experts", 1) or 1
    if experts > 1 or _attention_kinds(reading) & OTHER_LAYERS:
        return None
    gated = reading.text("activation") in GATED
    width = reading.count("intermediate_size")
    multiple = reading.count("mlp_multiple_of", 1) or 1
    if width is None:
        if gated:
            width = -(-int(8 * hidden / 3) // multiple) * multiple
        else:
            width = 4 * hidden
    elif gated:  # three matrices have the width that two would have
        width = -(-width // (3 * multiple)) * multiple
    vocabulary = reading.vocabulary("vocab_size", "padded_vocab_size")
    return DecoderSizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=reading.count("num_kv_heads", heads) or heads,
        feed_forward=width,
        length=length,
        vocabulary=vocabulary,
        gated=gated,
        tied=not reading.is_on("no_weight_tying"),
        positions=0
        if reading.text("pos_emb") in ("rotary", "alibi", "rpe", "none")
        else None,
    )
