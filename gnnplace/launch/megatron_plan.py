"""Turns Megatron-LM's command-line flags into a plan, as its own `validate_args` reads them.

Written for Megatron-LM d98e8a64 (August 2026): `megatron/training/arguments.py`,
`core/transformer/transformer_config.py`, `core/model_parallel_config.py`; flags of 2020 to 2022 and
those of Megatron-DeepSpeed f4157bea are translated to today's flag of the same meaning.

A missing flag has Megatron's default:

* Gradients are summed in fp32 with `--bf16`, unless `--grad-reduce-in-bf16` is given; with `--fp16`
  in fp16, unless `--accumulate-allreduce-grads-in-fp32` is given.
* Embedding and head share their weights, unless `--untie-embeddings-and-output-weights` is given.
* The feed-forward width is 4 x hidden; with `--swiglu` it is 8/3 x hidden, rounded down to a
  multiple of 64.

There are three ways to cut layers into uneven stages, and they exclude each other:
`--pipeline-model-parallel-layout`; the numbers of layers of the first and the last rank, with equal
numbers on the others; or one layer less beside the embedding and the loss.

Complexity: linear in the flags, and in layers times stages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gnnplace.errors import FormatError
from gnnplace.launch.launch_plan import (
    FULL,
    NONE,
    PRICED_OPTIMIZERS,
    SELECTIVE,
    LaunchPlan,
    NotPriced,
)
from gnnplace.launch.megatron_flags import effects, is_listed
from gnnplace.launch.offloading import OPTIMIZER
from gnnplace.plans import (
    RECOMPUTED_MODULES,
    DecoderSizes,
    ExpertLayers,
    LatentAttention,
)

ATTENTION = "core_attn"
"""The only module that selective recomputation recomputes by default."""
Flags = dict[str, str]
"""Values of flags by name, without dashes in front; "true" of a switch."""
NUMBERS = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "micro-batch-size": "microbatch_size",
    "global-batch-size": "batch",
}
"""Field of `LaunchPlan` that the number behind each of these flags is."""
UNPRICED_EXPERTS = "experts that are not gated, or not of all last layers"
SIZES = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
"""Flags without which the sizes of the model are not known."""
OTHERS = (
    "decoder-seq-length",
    "ffn-hidden-size",
    "num-query-groups",
    "group-query-attention",
    "vocab-size",
    "swiglu",
    "kv-channels",
    "untie-embeddings-and-output-weights",
    "sequence-parallel",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "data-parallel-sharding-strategy",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "recompute-modules",
    "recompute-activations",
    "bf16",
    "fp16",
    "grad-reduce-in-bf16",
    "accumulate-allreduce-grads-in-fp32",
    "optimizer",
    "pipeline-model-parallel-layout",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
    "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "tp-comm-overlap",
    "no-overlap-p2p-communication",
    "nproc-per-node",
    "nnodes",
    "num-experts",
    "multi-latent-attention",
    "world-size",
    "num-distributed-optimizer-instances",
    "padded-vocab-size",
    "make-vocab-size-divisible-by",
    "cp-comm-type",
    "moe-router-topk",
    "moe-ffn-hidden-size",
    "moe-layer-freq",
    "moe-shared-expert-intermediate-size",
    "moe-token-dispatcher-type",
    "qk-layernorm",
    "q-lora-rank",
    "kv-lora-rank",
    "qk-head-dim",
    "qk-pos-emb-head-dim",
    "v-head-dim",
    "microbatch-group-size-per-virtual-pipeline-stage",
    "cuda-graph-impl",
    "cuda-graph-modules",
    "cuda-graph-scope",
    "enable-cuda-graph",
    "external-cuda-graph",
    "main-grads-dtype",
    "use-torch-fsdp2",
    "torch-fsdp2-no-reshard-after-forward",
    "num-key-value-heads",
    "pp-partition-method",
    "zero-stage",
    "deepspeed",
    "deepspeed-config",
    "no-pipeline-parallel",
    "checkpoint-activations",
    "activations-checkpoint-method",
    "glu-activation",
    "DDP-impl",
    "use-cpu-initialization",
)
"""Further flags that decide the plan or the sizes, or that change neither."""
SAME_FLAGS: Mapping[str, str] = {
    "model-parallel-size": "tensor-model-parallel-size",
    "batch-size": "micro-batch-size",
    "encoder-num-layers": "num-layers",
    "encoder-seq-length": "seq-length",
    "moe-expert-parallel-size": "expert-model-parallel-size",
    "ds-sequence-parallel-size": "context-parallel-size",
    "topk": "moe-router-topk",
    "qk-nope-head-dim": "qk-head-dim",
    "qk-rope-head-dim": "qk-pos-emb-head-dim",
    "pad-vocab-size-to": "padded-vocab-size",
    "checkpoint-num-layers": "recompute-num-layers",
    "activations-checkpoint-num-layers": "recompute-num-layers",
    "activations-checkpoint-granularity": "recompute-granularity",
    "num-query-groups-per-rank": "num-query-groups",
}
"""Today's name of flags of earlier years and of Megatron-DeepSpeed."""
WORD_FLAGS: Mapping[str, tuple[str, ...]] = {
    "dp": ("nproc-per-node", "nnodes", "world-size"),
    "tp": ("tensor-model-parallel-size",),
    "pp": ("pipeline-model-parallel-size",),
    "cp": ("context-parallel-size",),
    "ep": ("expert-model-parallel-size",),
    "etp": ("expert-tensor-parallel-size",),
    "sp": ("sequence-parallel",),
    "layers": (
        "pipeline-model-parallel-layout",
        "decoder-first-pipeline-num-layers",
        "decoder-last-pipeline-num-layers",
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
        "pp-partition-method",
    ),
    "schedule": (
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "pipeline-model-parallel-layout",
    ),
    "microbatch_size": ("micro-batch-size",),
    "batch": ("global-batch-size",),
    "zero": (
        "use-megatron-fsdp",
        "use-torch-fsdp2",
        "use-distributed-optimizer",
        "zero-stage",
    ),
    "group": ("num-distributed-optimizer-instances",),
    "gradients": (
        "grad-reduce-in-bf16",
        "accumulate-allreduce-grads-in-fp32",
        "main-grads-dtype",
    ),
    "recompute": (
        "recompute-granularity",
        "recompute-activations",
        "checkpoint-activations",
        "activations-checkpoint-method",
    ),
    "overlap": ("overlap-grad-reduce", "overlap-param-gather"),
    "cuda_graphs": ("cuda-graph-impl", "enable-cuda-graph", "external-cuda-graph"),
    "precision": ("bf16", "fp16"),
    "optimizer": ("optimizer",),
}
"""For each word of a plan, the flags that decide it, the decisive one first."""
SEVERAL = (
    "cuda-graph-modules",
    "cuda-graph-scope",
    "recompute-modules",
    "rampup-batch-size",
    "cp-comm-type",
    "window-size",
    "step-batch-size-schedule",
    "num-experts",
    "hierarchical-context-parallel-sizes",
    "target-modules",
)
"""Flags that take more than one value."""
# The three ways to cut layers into uneven stages, each with its flags.
LAYOUT = ("pipeline-model-parallel-layout",)
ENDS = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
ACCOUNTED = (
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
)
WAYS = (LAYOUT, ENDS, ACCOUNTED)
MOST_STAGES = 100_000
"""Letters of an expanded layout, and layers of an expanded pattern, at most."""
LONGEST_PATTERN = 4000
"""Letters of `--moe-layer-freq` that are parsed."""
GPT2_VOCABULARY = 50257
"""Tokens that are assumed if no flag gives the vocabulary."""
EACH = "num-layers-per-virtual-pipeline-stage"


def is_counted(name: str) -> bool:
    """Return whether a flag decides the plan or the sizes of the model."""
    return name in NUMBERS or name in SIZES or name in OTHERS or name in SAME_FLAGS


def is_known(name: str) -> bool:
    """Return whether a flag decides the plan, or is listed as one whose effect has no price."""
    return is_counted(name) or is_listed(name)


def with_todays_names(
    flags: Flags, lines: Mapping[str, int | None]
) -> tuple[Flags, dict[str, int | None]]:
    """Return flags under today's names, and the line of each.

    Where both names of a flag are given, today's counts.

    Args:
        flags: Values by the names that the script uses.
        lines: Line of each of these names.
    """
    renamed: Flags = {}
    places: dict[str, int | None] = {}
    for name, value in flags.items():
        today = SAME_FLAGS.get(name, name)
        if today != name and today in flags:
            continue
        renamed[today] = value
        places[today] = lines.get(name)
    # Two old flags mean today's granularity "full"; one of them also gives the method.
    method = renamed.get("activations-checkpoint-method")
    if method is not None or is_on(renamed, "checkpoint-activations"):
        if "recompute-granularity" not in renamed:
            if method is None:
                old = "checkpoint-activations"
            else:
                old = "activations-checkpoint-method"
            renamed["recompute-granularity"] = FULL
            places["recompute-granularity"] = places.get(old)
        renamed.setdefault("recompute-method", method or "uniform")
    return renamed, places


def fault(source: str, flag: str, reason: str) -> FormatError:
    """Return the error that a flag's value is wrong for a reason."""
    return FormatError(f"{source}: --{flag}: {reason}")


def check_decoder(flags: Flags, source: str) -> None:
    """Refuse the flags of an encoder-decoder (Megatron-LM's `pretrain_t5.py`).

    `--decoder-seq-length` alone is no sign of one: models of images and text have it, too.

    Raises:
        FormatError: If the flags are those of an encoder-decoder.
    """
    reason = (
        "belongs to a model with an encoder and a decoder (t5); only models with a decoder alone "
        "are read"
    )
    if "decoder-num-layers" in flags:
        raise fault(source, "decoder-num-layers", reason)
    has_images = "img-h" in flags or "language-model-type" in flags
    if "decoder-seq-length" in flags and not has_images:
        raise fault(source, "decoder-seq-length", reason)


def parse_plan_flags(
    flags: Flags, source: str, lines: Mapping[str, int | None] | None = None
) -> LaunchPlan:
    """Return the plan that flags describe.

    Args:
        flags: Values of flags by name.
        source: The file's path, which errors begin with.
        lines: Line of the file that each flag stands on.

    Raises:
        FormatError: If a flag is wrong, or flags contradict each other.
    """
    flags, places = with_todays_names(flags, lines or {})
    check_decoder(flags, source)
    counts = {
        word: parse_flag_number(flags, name, source)
        for name, word in NUMBERS.items()
        if name in flags
    }
    plan = LaunchPlan(**counts)  # type: ignore[arg-type]
    if plan.etp == plan.tp:
        plan = replace(plan, etp=None)
    sizes = parse_flag_sizes(flags, source)
    chunks, layers = parse_flag_stages(flags, plan.pp, sizes, source)
    zero = _find_zero_stage(flags, source)
    if is_on(flags, "bf16"):
        precision = "bf16-master"
    elif is_on(flags, "fp16"):
        precision = "16-master"
    else:
        precision = "32-true"
    overlap = {
        "overlap-grad-reduce": "gradients",
        "overlap-param-gather": "parameters",
        "tp-comm-overlap": "tp",
    }
    optimizer = flags.get("optimizer", "adam")
    unknown_model = ""
    if _has_unpriced_experts(flags, sizes):
        unknown_model = f"{UNPRICED_EXPERTS}, which are not priced"
    plan = replace(
        plan,
        sp=plan.tp == 1 or is_on(flags, "sequence-parallel"),
        chunks=chunks,
        layers=layers,
        zero=zero,
        recompute=_parse_recompute(flags, source),
        schedule="interleaved" if chunks > 1 else "1f1b",
        precision=precision,
        gradients=_find_gradient_type(flags, precision),
        optimizer={"adam": "adamw"}.get(optimizer, optimizer),
        overlap=tuple(word for name, word in overlap.items() if is_on(flags, name)),
        cuda_graphs=_parse_graphs(flags)[0],
        offload=OPTIMIZER if _offloads_optimizer(flags) else NONE,
        sizes=sizes,
        length=None if sizes is not None else _parse_length(flags),
        unknown_model=unknown_model,
        notes=tuple(_list_notes(flags, sizes)),
        not_priced=tuple(_list_not_priced(flags, places)),
        lines=_find_word_lines(flags, places),
    )
    # The number of replicas follows from that of the processes. If no flag gives it, the cluster
    # of the price does.
    if "nproc-per-node" in flags and "nnodes" in flags:
        per_node = parse_flag_number(flags, "nproc-per-node", source)
        nodes = parse_flag_number(flags, "nnodes", source)
        plan = plan.with_dp(per_node * nodes, source)
    elif "world-size" in flags:
        plan = plan.with_dp(parse_flag_number(flags, "world-size", source), source)
    # Instances of the distributed optimizer: each shards its state over a group of replicas.
    instances = parse_flag_number(
        flags, "num-distributed-optimizer-instances", source, 1
    )
    if instances <= 1:
        return plan
    if plan.dp and plan.zero and plan.dp % instances == 0:
        return replace(plan, group=plan.dp // instances)
    note = f"{instances} instances of the optimizer: its ZeRO is priced as one"
    return replace(plan, notes=(*plan.notes, note))


OFFLOADING_FLAGS = ("optimizer-cpu-offload", "optimizer-offload-fraction")


def _offloads_optimizer(flags: Flags) -> bool:
    """Return whether all of the optimizer's state is offloaded to the host's memory."""
    fraction = flags.get("optimizer-offload-fraction", "1.0")
    is_whole = fraction.replace(".", "", 1).isdigit() and float(fraction) == 1.0
    return is_on(flags, "optimizer-cpu-offload") and is_whole


def _find_zero_stage(flags: Flags, source: str) -> int:
    """Return the ZeRO stage that flags mean.

    DeepSpeed's number counts before FSDP 2, FSDP 2 before Megatron's own FSDP, and that before the
    distributed optimizer, which is stage 1.

    Raises:
        FormatError: If DeepSpeed's stage is not one of 0 to 3.
    """
    if "deepspeed" in flags or "zero-stage" in flags:
        stage = parse_flag_number(flags, "zero-stage", source, 0)
        if stage > 3:
            raise fault(source, "zero-stage", f"{stage}: must be 0 to 3")
        return stage
    if is_on(flags, "use-torch-fsdp2"):
        if is_on(flags, "torch-fsdp2-no-reshard-after-forward"):
            return 2
        return 3
    if is_on(flags, "use-megatron-fsdp"):
        strategy = flags.get("data-parallel-sharding-strategy", "")
        return {"no_shard": 0, "optim": 1, "optim_grads": 2}.get(strategy, 3)
    if is_on(flags, "use-distributed-optimizer"):
        return 1
    return 0


def _find_gradient_type(flags: Flags, precision: str) -> str:
    """Return in which type replicas sum gradients: "fp32", or "same" as the passes'.

    By default it is fp32 with bf16 passes, and the passes' own type with any other.
    """
    if precision == "32-true" or "deepspeed" in flags:
        return "same"
    if precision == "bf16-master":
        in_bf16 = (
            is_on(flags, "grad-reduce-in-bf16")
            or flags.get("main-grads-dtype") == "bf16"
        )
        if in_bf16:
            return "same"
        return "fp32"
    in_fp32 = is_on(flags, "accumulate-allreduce-grads-in-fp32")
    return "fp32" if in_fp32 else "same"


def _find_word_lines(
    flags: Flags, places: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Return the line of every word of the plan that a flag decides, by the word."""
    lines: dict[str, int | None] = {}
    for word, names in WORD_FLAGS.items():
        for name in names:
            if name in flags:
                lines[word] = places.get(name)
                break
    return lines


def _list_not_priced(
    flags: Flags, places: Mapping[str, int | None]
) -> Iterator[NotPriced]:
    """Yield the flags that change seconds or bytes which no price counts."""
    priced = OFFLOADING_FLAGS if _offloads_optimizer(flags) else ()
    yield from effects(
        {name: flags[name] for name in flags if name not in priced}, places
    )
    optimizer = flags.get("optimizer", "adam")
    if optimizer not in PRICED_OPTIMIZERS:
        effect = f"the update and the state of {optimizer}; priced as adamw"
        yield NotPriced(key="--optimizer", effect=effect, line=places.get("optimizer"))


def parse_flag_number(
    flags: Flags, name: str, source: str, default: int | None = None
) -> int:
    """Return the whole number that a flag gives.

    Args:
        flags: Values of flags by name.
        name: The flag.
        source: The file's path, which errors begin with.
        default: Returned if the flag is missing; None: the flag is required.

    Raises:
        FormatError: If the value is no whole number, or the flag is missing.
    """
    value = flags.get(name)
    if value is None and default is not None:
        return default
    if value is None or re.fullmatch("[0-9]{1,12}", value.strip()) is None:
        if value is None:
            reason = "is missing"
        else:
            reason = f"{value[:40]!r} is no whole number"
        raise fault(source, name, reason)
    return int(value)


def is_on(flags: Flags, name: str) -> bool:
    """Return whether a switch is given and does not have a value such as `false`."""
    return flags.get(name, "false").lower() not in ("false", "0", "no", "off")


def parse_flag_sizes(flags: Flags, source: str) -> DecoderSizes | None:
    """Return the sizes of the model, or None if the flags do not have all of them."""
    if any(name not in flags for name in SIZES):
        return None
    layers, hidden, heads, length = (
        parse_flag_number(flags, name, source) for name in SIZES
    )
    # In models of images and text the sequence is the encoder's.
    length = parse_flag_number(flags, "decoder-seq-length", source, length)
    gated = is_on(flags, "swiglu") or flags.get("glu-activation") in ("swiglu", "geglu")
    if gated:
        width = int(4 * hidden * 2 / 3 / 64) * 64
    else:
        width = 4 * hidden
    width = parse_flag_number(flags, "ffn-hidden-size", source, width)
    # Experts that the pricer does not know leave the model without sizes.
    latent = _parse_latent(flags, source)
    experts = _parse_experts(flags, layers, width, source)
    if experts is not None and (experts.dense < 0 or not gated):
        return None  # a note of the plan says so
    # Heads: keys and values may have fewer than queries, and a width of their own.
    groups = parse_flag_number(flags, "num-key-value-heads", source, heads)
    if is_on(flags, "group-query-attention"):
        groups = parse_flag_number(flags, "num-query-groups", source, 1)
    head_width = parse_flag_number(
        flags, "kv-channels", source, hidden // max(heads, 1)
    )
    if latent is not None:
        head_width = (
            parse_flag_number(flags, "qk-head-dim", source, 128) + latent.rotary
        )
    vocabulary = parse_flag_number(flags, "vocab-size", source, GPT2_VOCABULARY)
    vocabulary = parse_flag_number(flags, "padded-vocab-size", source, vocabulary)
    largest_position = parse_flag_number(
        flags, "max-position-embeddings", source, length
    )
    return DecoderSizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        feed_forward=width,
        length=length,
        vocabulary=vocabulary,
        gated=gated,
        tied=not is_on(flags, "untie-embeddings-and-output-weights"),
        own_head_size=None if head_width * heads == hidden else head_width,
        experts=experts,
        latent=latent,
        head_norms=latent is None and is_on(flags, "qk-layernorm"),
        positions=_count_positions(flags, length, largest_position, is_gated=gated),
    )


def _parse_length(flags: Flags) -> int | None:
    """Return the tokens of an example, or None if no flag gives them as a number."""
    length = flags.get("decoder-seq-length", flags.get("seq-length", ""))
    return int(length) if re.fullmatch("[1-9][0-9]{0,8}", length) else None


def _count_positions(
    flags: Flags, length: int, largest: int, *, is_gated: bool
) -> int | None:
    """Return the number of learned positions, or None if it is the usual one.

    Usually gated layers have none, and others as many as an example has tokens
    (`DecoderSizes.learned`).

    Args:
        flags: The flags.
        length: Tokens of an example.
        largest: Rows of the position embedding, if there is one.
        is_gated: Whether feed-forward layers are gated.
    """
    usual = 0 if is_gated else length
    count = usual
    kind = flags.get("position-embedding-type")
    if kind == "learned_absolute":
        count = largest
    elif (
        kind is not None
        or is_on(flags, "use-rotary-position-embeddings")
        or is_on(flags, "no-position-embedding")
    ):
        count = 0
    return None if count == usual else count


def _parse_latent(flags: Flags, source: str) -> LatentAttention | None:
    """Return the widths of latent attention, or None if it is off.

    The defaults are those of Megatron-LM's own parser.
    """
    if not is_on(flags, "multi-latent-attention"):
        return None
    return LatentAttention(
        queries=parse_flag_number(flags, "q-lora-rank", source, 0),
        keys=parse_flag_number(flags, "kv-lora-rank", source, 32),
        rotary=parse_flag_number(flags, "qk-pos-emb-head-dim", source, 64),
        values=parse_flag_number(flags, "v-head-dim", source, 128),
    )


def _parse_experts(
    flags: Flags, layers: int, width: int, source: str
) -> ExpertLayers | None:
    """Return the layers with experts, or None if there are none.

    `dense` is -1 if a layer without experts follows one with experts, or if layers have different
    numbers of experts: `DecoderSizes` can describe neither.

    Args:
        flags: Values of flags by name.
        layers: Layers of the model.
        width: Inner width of the feed-forward, which experts have by default.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If `--moe-layer-freq` is no pattern, or does not have all layers.
    """
    counts = set(flags.get("num-experts", "0").split())
    if len(counts) > 1:
        return ExpertLayers(count=1, active=1, width=width, dense=-1)
    if parse_flag_number(flags, "num-experts", source, 0) < 2:
        return None
    # The frequency is a number n (every n-th layer has experts) or a Python list of 0 and 1.
    frequency = flags.get("moe-layer-freq", "1").strip("'\"")
    if re.fullmatch("[1-9][0-9]{0,4}", frequency):
        has_experts = [int(k % int(frequency) == 0) for k in range(layers)]
    else:
        try:
            parsed = ast.parse(frequency[:LONGEST_PATTERN], mode="eval")
            has_experts = _expand_pattern(parsed.body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            reason = (
                f"{frequency[:40]!r}: is no pattern of layers; give a number or a list such as "
                "([0]*3+[1]*11)"
            )
            raise fault(source, "moe-layer-freq", reason) from None
    if len(has_experts) != layers:
        reason = (
            f"is a pattern of {len(has_experts)} layers, and --num-layers is {layers}"
        )
        raise fault(source, "moe-layer-freq", reason)
    if 1 in has_experts:
        dense = has_experts.index(1)
    else:
        dense = layers
    return ExpertLayers(
        count=parse_flag_number(flags, "num-experts", source),
        active=parse_flag_number(flags, "moe-router-topk", source, 2),
        width=parse_flag_number(flags, "moe-ffn-hidden-size", source, width),
        shared=parse_flag_number(
            flags, "moe-shared-expert-intermediate-size", source, 0
        ),
        dense=dense if all(has_experts[dense:]) else -1,
    )


def _expand_pattern(node: ast.expr) -> list[int]:
    """Return the layers of a pattern such as `([0]*3+[1]*11)`, 1 where a layer has experts.

    Only lists, `+` and `*` are understood, and nothing is evaluated.

    Raises:
        ValueError: If the expression is anything else.
    """
    if isinstance(node, ast.List):
        values = [x.value for x in node.elts if isinstance(x, ast.Constant)]
        if len(values) == len(node.elts) and all(x in (0, 1) for x in values):
            return [int(x) for x in values if isinstance(x, int)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _expand_pattern(node.left) + _expand_pattern(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times = getattr(node.right, "value", None)
        layers = _expand_pattern(node.left)
        if type(times) is int and 0 <= times * len(layers) <= MOST_STAGES:
            return layers * times
    raise ValueError("no pattern of layers")


def parse_flag_stages(
    flags: Flags, pp: int, sizes: DecoderSizes | None, source: str
) -> tuple[int, tuple[int, ...] | None]:
    """Return how Megatron-LM cuts the layers into stages.

    Args:
        flags: Values of flags by name.
        pp: Pipeline ranks.
        sizes: Sizes of the model, if the flags have them.
        source: The file's path, which errors begin with.

    Returns:
        The number of stages of every rank, and the layers of every stage in pipeline order; None
        if all stages have the same number of layers.

    Raises:
        FormatError: If flags exclude each other, or layers do not divide as they say.
    """
    ways_used = [way for way in WAYS if any(is_on(flags, name) for name in way)]
    if len(ways_used) > 1:
        reason = f"and --{ways_used[1][0]} exclude each other in Megatron-LM; give one of them"
        raise fault(source, ways_used[0][0], reason)
    total = None if sizes is None else sizes.layers
    if ways_used and ways_used[0] == LAYOUT:
        layers = parse_layout(flags[LAYOUT[0]], source)
        if len(layers) % pp:
            raise fault(
                source, LAYOUT[0], f"{len(layers)} stages are no multiple of {pp} ranks"
            )
        return len(layers) // pp, layers
    chunks = parse_flag_number(flags, "num-virtual-stages-per-pipeline-rank", source, 1)
    if EACH in flags and total is not None:
        layers_each = parse_flag_number(flags, EACH, source)
        if not layers_each or total % (pp * layers_each):
            reason = f"{total} layers are no multiple of {layers_each} on {pp} ranks"
            raise fault(source, EACH, reason)
        chunks = total // (pp * layers_each)
    if not ways_used and total is not None and pp > 1:
        return chunks, _cut_by_type(flags, pp * chunks, total)
    if not ways_used or total is None:
        return chunks, None
    if ways_used[0] == ACCOUNTED:
        cut = _cut_beside_ends
    else:
        cut = _cut_given_ends
    return chunks, cut(flags, pp, chunks, total, source)


def _cut_by_type(flags: Flags, stages: int, total: int) -> tuple[int, ...] | None:
    """Return the layers of every stage as DeepSpeed cuts them, or None if all have as many.

    DeepSpeed's `PipelineModule` with the method `type:REGEX` counts the layers whose class name
    matches, and fills each stage in turn up to the same number. Embedding and tied head count if
    the expression names the embedding.

    Args:
        flags: Values of flags by name.
        stages: Stages of the pipeline.
        total: Layers of the model.
    """
    method = flags.get("pp-partition-method", "").strip("'\"").lower()
    if "deepspeed" not in flags and not method:
        return None
    counts_ends = "embed" in method
    if not counts_ends and total % stages == 0:
        return None
    counted = total + 2 * counts_ends
    largest = -(-counted // stages)
    layers = []
    position = 0
    for _ in range(stages):
        count = min(largest, counted - position)
        layers.append(count)
        position += count
    if counts_ends:
        layers[0] -= 1
        layers[-1] -= 1
    if min(layers) < 0 or len(set(layers)) == 1:
        return None
    return tuple(layers)


def _cut_beside_ends(
    flags: Flags, pp: int, chunks: int, total: int, source: str
) -> tuple[int, ...]:
    """Return the layers of every stage if the embedding, the loss or both count as a layer.

    Args:
        flags: Values of flags by name.
        pp: Pipeline ranks.
        chunks: Stages of every rank.
        total: Layers of the model.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If layers, embedding and loss are no multiple of the stages.
    """
    first, last = (is_on(flags, name) for name in ACCOUNTED)
    stages = pp * chunks
    layers_each, remainder = divmod(total + first + last, stages)
    if remainder:
        reason = (
            f"{total} layers, embedding and loss are no multiple of {stages} stages"
        )
        raise fault(source, ACCOUNTED[0], reason)
    layers = [layers_each] * stages
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def _cut_given_ends(
    flags: Flags, pp: int, chunks: int, total: int, source: str
) -> tuple[int, ...]:
    """Return the layers of every stage if flags give those of the first or the last rank.

    The other ranks share the remaining layers equally, and a rank's stages share its layers.

    Args:
        flags: Values of flags by name.
        pp: Pipeline ranks.
        chunks: Stages of every rank.
        total: Layers of the model.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If the layers do not divide.
    """
    end_flags = {0: ENDS[0], pp - 1: ENDS[1]}
    given_layers = {
        r: parse_flag_number(flags, name, source)
        for r, name in end_flags.items()
        if name in flags
    }
    num_middle_ranks = pp - len(given_layers)
    remaining = total - sum(given_layers.values())
    if num_middle_ranks:
        remainder = remaining % num_middle_ranks
    else:
        remainder = remaining
    if remaining < 0 or remainder:
        reason = f"the remaining {remaining} layers do not divide over {num_middle_ranks} ranks"
        raise fault(source, ENDS[0], reason)
    ranks = [
        given_layers.get(rank, remaining // max(num_middle_ranks, 1))
        for rank in range(pp)
    ]
    if any(count % chunks for count in ranks):
        reason = f"ranks have {ranks} layers, which {chunks} stages of each cannot share equally"
        raise fault(source, ENDS[0], reason)
    return tuple(ranks[k % pp] // chunks for k in range(pp * chunks))


def parse_layout(layout: str, source: str) -> tuple[int, ...]:
    """Return the number of layers of every stage of a Megatron layout, such as "Et*3|(tt|)*4L".

    In a layout E is the embedding, t a layer, m a layer that predicts further tokens, L the loss
    and | the border between two stages; `x*n` and `(...)*n` repeat.

    Args:
        layout: The layout.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If the text is no layout, or E is not its only first or L its only last letter.
    """
    # Groups are expanded before single letters. The length is checked before a text is built.
    text = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        if sum(len(m[1]) * int(m[2]) for m in re.finditer(pattern, text)) > MOST_STAGES:
            reason = (
                f"{layout[:60]!r}: has more than {MOST_STAGES:,} letters, written out"
            )
            raise fault(source, LAYOUT[0], reason)
        text = re.sub(pattern, lambda m: m[1] * int(m[2]), text)
    if re.fullmatch("[EtmL|]+", text) is None:
        reason = f"{layout[:60]!r}: may consist of E, t, m, L, |, x*n and (…)*n alone"
        raise fault(source, LAYOUT[0], reason)
    plain = text.replace("|", "")
    if (
        plain.count("E") != 1
        or plain.count("L") != 1
        or (text[0], text[-1]) != ("E", "L")
    ):
        reason = f"{layout[:60]!r}: must begin with its only E and end with its only L"
        raise fault(source, LAYOUT[0], reason)
    return tuple(stage.count("t") for stage in text.split("|"))


def _parse_recompute(flags: Flags, source: str) -> str:
    """Return what is recomputed, as the word `recompute` of a plan.

    Raises:
        FormatError: If granularity or method are none of Megatron-LM's.
    """
    if is_on(flags, "recompute-activations"):
        default = SELECTIVE
    else:
        default = NONE
    granularity = flags.get("recompute-granularity", default)
    if granularity == SELECTIVE:
        return _find_recomputed_modules(flags)
    if granularity == NONE:
        return NONE
    if granularity != FULL:
        reason = f"{granularity[:40]!r}: must be full or selective"
        raise fault(source, "recompute-granularity", reason)
    method = flags.get("recompute-method", "")
    count = parse_flag_number(flags, "recompute-num-layers", source, 1)
    if method not in ("uniform", "block"):
        raise fault(
            source, "recompute-method", f"{method[:40]!r}: must be uniform or block"
        )
    if (method, count) == ("uniform", 1):
        return FULL
    return f"{method}:{count}"


def _find_recomputed_modules(flags: Flags) -> str:
    """Return the word for the modules that are recomputed; by default attention alone."""
    names = re.findall(r"\w+", flags.get("recompute-modules", ATTENTION))
    modules = [name for name in RECOMPUTED_MODULES if name in names]
    if modules == [ATTENTION]:
        return SELECTIVE
    return f"modules:{'+'.join(modules)}" if modules else NONE


def _parse_graphs(flags: Flags) -> tuple[str | None, str]:
    """Return which kernel launches CUDA graphs capture.

    Returns:
        "iteration", "layers" or None, which is the plan's word; and, where only some modules of a
        layer are captured, their names for a note: such graphs are priced as none. Else the second
        is empty.
    """
    impl = flags.get("cuda-graph-impl", "none")
    for name in ("enable-cuda-graph", "external-cuda-graph"):
        impl = name if is_on(flags, name) else impl
    captured = " ".join(
        flags.get(name, "") for name in SEVERAL if name.startswith("cuda-graph")
    )
    modules = set(
        re.findall(r"\b(attn|mlp|moe|moe_\w+|mamba|full_iteration)\b", captured)
    )
    if impl == "none":
        return None, ""
    if "full_iteration" in (impl, *modules):
        return "iteration", ""
    if modules and not {"attn", "mlp"} <= modules:
        return None, ", ".join(sorted(modules))
    return "layers", ""


def _has_unpriced_experts(flags: Flags, sizes: DecoderSizes | None) -> bool:
    """Return whether the model has no sizes only because its experts cannot be priced."""
    has_sizes = all(name in flags for name in SIZES)
    return sizes is None and has_sizes and "num-experts" in flags


def _list_notes(flags: Flags, sizes: DecoderSizes | None) -> Iterator[str]:
    """Yield a line for each thing that flags say and a plan's words cannot."""
    if "num-experts" in flags:
        dispatcher = flags.get("moe-token-dispatcher-type", "allgather")
        are_parallel = flags.get("expert-model-parallel-size", "1") != "1"
        if dispatcher == "allgather" and are_parallel:
            yield "moe-token-dispatcher-type allgather: priced as an all-to-all"
        if _has_unpriced_experts(flags, sizes):
            yield f"{UNPRICED_EXPERTS}: no sizes; give --model"
    _, captured_modules = _parse_graphs(flags)
    if captured_modules:
        yield f"CUDA graphs of {captured_modules} alone: priced without"
    modules = re.findall(r"\w+", flags.get("recompute-modules", ""))
    unknown = [name for name in modules if name not in RECOMPUTED_MODULES]
    if unknown and flags.get("recompute-granularity") == SELECTIVE:
        yield f"recompute-modules {', '.join(unknown)}: not known; priced without"
    if (
        "vocab-size" not in flags
        and "padded-vocab-size" not in flags
        and "num-layers" in flags
    ):
        yield f"no --vocab-size: {GPT2_VOCABULARY} tokens are assumed"
