"""A plan from flags of Megatron-LM by name, as its own `validate_args` understands them.

Written for Megatron-LM d98e8a64 (August 2026): `megatron/training/arguments.py`,
`core/transformer/transformer_config.py`, `core/model_parallel_config.py`; flags of 2020 to 2022 and
those of Megatron-DeepSpeed f4157bea are read by their meaning.

What is assumed where nothing is said is Megatron's: gradients are summed in fp32 with `--bf16`
unless `--grad-reduce-in-bf16`, and in fp16 with `--fp16` unless
`--accumulate-allreduce-grads-in-fp32`; embedding and head are tied unless `--untie-…`, the
feed-forward width is 4 x hidden, with `--swiglu` the multiple of 64 nearest below 8/3 of it. Its
uneven splits are made as it makes them: `--pipeline-model-parallel-layout`, numbers of layers of
the first and the last stage with the rest evenly, or one layer less for the embedding and the loss;
they exclude each other.

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

ATTENTION = "core_attn"  # The module that selective recomputation has by default
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
UNPRICED_EXPERTS = "experts that are not gated, or not of all last layers"
SIZES = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
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
"""Flags of other years and of Megatron-DeepSpeed, with today's name."""
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
"""The flags that say a word."""
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
"""Flags of more than one value."""
LAYOUT = ("pipeline-model-parallel-layout",)
ENDS = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
ACCOUNTED = (
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
)
WAYS = (LAYOUT, ENDS, ACCOUNTED)
MOST_STAGES = 100_000  # letters of a layout
LONGEST_PATTERN = 4000  # letters of `--moe-layer-freq`
EACH = "num-layers-per-virtual-pipeline-stage"


def is_counted(name: str) -> bool:
    """Return whether a flag decides the plan or the sizes of the model."""
    return name in NUMBERS or name in SIZES or name in OTHERS or name in SAME_FLAGS


def is_known(name: str) -> bool:
    """Return whether a flag decides the plan, or is in a table of what no price counts."""
    return is_counted(name) or is_listed(name)


def with_todays_names(
    flags: Flags, lines: Mapping[str, int | None]
) -> tuple[Flags, dict[str, int | None]]:
    """Return flags under the names of today, and their lines."""
    renamed: Flags = {}
    places: dict[str, int | None] = {}
    for name, value in flags.items():
        today = SAME_FLAGS.get(name, name)
        if today != name and today in flags:
            continue
        renamed[today] = value
        places[today] = lines.get(name)
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
    """Return the error of a flag."""
    return FormatError(f"{source}: --{flag}: {reason}")


def check_decoder(flags: Flags, source: str) -> None:
    """Check that flags are not those of an encoder-decoder (Megatron-LM's `pretrain_t5.py`).

    Models of images and text have the length of their decoder, too.

    Raises:
        FormatError: If they are.
    """
    reason = "is of an encoder and a decoder (t5); decoders of text are read"
    if "decoder-num-layers" in flags:
        raise fault(source, "decoder-num-layers", reason)
    has_images = "img-h" in flags or "language-model-type" in flags
    if "decoder-seq-length" in flags and not has_images:
        raise fault(source, "decoder-seq-length", reason)


def parse_plan_flags(
    flags: Flags, source: str, lines: Mapping[str, int | None] | None = None
) -> LaunchPlan:
    """Return the plan of flags by name.

    Args:
        flags: Values by name.
        source: The name that errors begin with.
        lines: Line that each flag stands on.

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
    zero = _zero(flags, source)
    half = next(
        (
            p
            for name, p in (("bf16", "bf16-master"), ("fp16", "16-master"))
            if is_on(flags, name)
        ),
        "32-true",
    )
    overlap = {
        "overlap-grad-reduce": "gradients",
        "overlap-param-gather": "parameters",
        "tp-comm-overlap": "tp",
    }
    optimizer = flags.get("optimizer", "adam")
    plan = replace(
        plan,
        sp=plan.tp == 1 or is_on(flags, "sequence-parallel"),
        chunks=chunks,
        layers=layers,
        zero=zero,
        recompute=_recompute(flags, source),
        schedule="interleaved" if chunks > 1 else "1f1b",
        precision=half,
        gradients=_gradients(flags, half),
        optimizer={"adam": "adamw"}.get(optimizer, optimizer),
        overlap=tuple(reason for name, reason in overlap.items() if is_on(flags, name)),
        cuda_graphs=_graphs(flags)[0],
        offload=OPTIMIZER if _offloads(flags) else NONE,
        sizes=sizes,
        length=None if sizes is not None else _length(flags),
        unknown_model=f"{UNPRICED_EXPERTS}, which are not priced"
        if _has_unpriced_experts(flags, sizes)
        else "",
        notes=tuple(_notes(flags, sizes)),
        not_priced=tuple(_not_priced(flags, places)),
        lines=_word_lines(flags, places),
    )
    # Replicas are what the processes leave; without them the cluster says.
    processes = [
        parse_flag_number(flags, x, source)
        for x in ("nproc-per-node", "nnodes")
        if x in flags
    ]
    if len(processes) == 2:
        plan = plan.with_dp(processes[0] * processes[1], source)
    elif "world-size" in flags:
        plan = plan.with_dp(parse_flag_number(flags, "world-size", source), source)
    count = parse_flag_number(flags, "num-distributed-optimizer-instances", source, 1)
    if count > 1 and plan.dp and plan.zero and plan.dp % count == 0:
        return replace(plan, group=plan.dp // count)
    reason = (f"{count} instances of the optimizer: its ZeRO is priced as one",) * (
        count > 1
    )
    return replace(plan, notes=(*plan.notes, *reason))


OFFLOADING_FLAGS = ("optimizer-cpu-offload", "optimizer-offload-fraction")


def _offloads(flags: Flags) -> bool:
    """Return whether the whole optimizer's state lies in the host's memory."""
    fraction = flags.get("optimizer-offload-fraction", "1.0")
    is_whole = fraction.replace(".", "", 1).isdigit() and float(fraction) == 1.0
    return is_on(flags, "optimizer-cpu-offload") and is_whole


def _zero(flags: Flags, source: str) -> int:
    """Return the stage of ZeRO that flags mean."""
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


def _gradients(flags: Flags, precision: str) -> str:
    """Return the type in which gradients are summed: fp32 is the default of bf16 alone."""
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


def _word_lines(
    flags: Flags, places: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Return the line of every word that a flag says."""
    lines: dict[str, int | None] = {}
    for word, names in WORD_FLAGS.items():
        for name in names:
            if name in flags:
                lines[word] = places.get(name)
                break
    return lines


def _not_priced(flags: Flags, places: Mapping[str, int | None]) -> Iterator[NotPriced]:
    """Yield what flags change that no price counts."""
    priced = OFFLOADING_FLAGS if _offloads(flags) else ()
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
    """Return a flag's whole number.

    Args:
        flags: Values of flags by name.
        name: The flag.
        source: The file's path, which errors begin with.
        default: Returned if the flag is missing; None: it must be there.

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
    latent = _latent(flags, source)
    experts = _experts(flags, layers, width, source)
    if experts is not None and (experts.dense < 0 or not gated):
        return None  # a note of the plan says so
    groups = parse_flag_number(flags, "num-key-value-heads", source, heads)
    if is_on(flags, "group-query-attention"):
        groups = parse_flag_number(flags, "num-query-groups", source, 1)
    width_of_head = parse_flag_number(
        flags, "kv-channels", source, hidden // max(heads, 1)
    )
    if latent is not None:
        width_of_head = (
            parse_flag_number(flags, "qk-head-dim", source, 128) + latent.rotary
        )
    vocabulary = parse_flag_number(
        flags,
        "padded-vocab-size",
        source,
        parse_flag_number(flags, "vocab-size", source, 50257),
    )
    largest_position = parse_flag_number(
        flags, "max-position-embeddings", source, length
    )
    return DecoderSizes(
        layers,
        hidden,
        heads,
        groups,
        width,
        length,
        vocabulary,
        gated=gated,
        tied=not is_on(flags, "untie-embeddings-and-output-weights"),
        own_head_size=None if width_of_head * heads == hidden else width_of_head,
        experts=experts,
        latent=latent,
        head_norms=latent is None and is_on(flags, "qk-layernorm"),
        positions=_positions(flags, length, largest_position, is_gated=gated),
    )


def _length(flags: Flags) -> int | None:
    """Return the tokens of an example, or None if no flag says them as a number."""
    length = flags.get("decoder-seq-length", flags.get("seq-length", ""))
    return int(length) if re.fullmatch("[1-9][0-9]{0,8}", length) else None


def _positions(
    flags: Flags, length: int, largest: int, *, is_gated: bool
) -> int | None:
    """Return the number of learned positions; None where it is what the layers usually have.

    Gated layers usually have none, others as many as tokens (`DecoderSizes.learned`).

    Args:
        flags: The flags.
        length: Tokens of an example.
        largest: Positions of the embedding, where it is learned.
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


def _latent(flags: Flags, source: str) -> LatentAttention | None:
    """Return the widths of latent attention, or None if it is off.

    Widths that no flag gives are the defaults of Megatron-LM's own parser.
    """
    if not is_on(flags, "multi-latent-attention"):
        return None
    usual = {
        "q-lora-rank": 0,
        "kv-lora-rank": 32,
        "qk-pos-emb-head-dim": 64,
        "v-head-dim": 128,
    }
    return LatentAttention(
        *(parse_flag_number(flags, name, source, n) for name, n in usual.items())
    )


def _experts(flags: Flags, layers: int, width: int, source: str) -> ExpertLayers | None:
    """Return the layers with experts, or None if there are none.

    `dense` is -1 if layers with experts do not all come after those without, or if they have
    unlike numbers of experts.

    Raises:
        FormatError: If the frequency is none, or is not of all layers.
    """
    counts = set(flags.get("num-experts", "0").split())
    if len(counts) > 1:  # layers with unlike numbers of experts, which no sizes say
        return ExpertLayers(count=1, active=1, width=width, dense=-1)
    if parse_flag_number(flags, "num-experts", source, 0) < 2:
        return None
    freq = flags.get("moe-layer-freq", "1").strip("'\"")
    if re.fullmatch("[1-9][0-9]{0,4}", freq):
        has_experts = [int(k % int(freq) == 0) for k in range(layers)]
    else:
        try:
            has_experts = _pattern(ast.parse(freq[:LONGEST_PATTERN], mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise fault(
                source, "moe-layer-freq", f"{freq[:40]!r}: is no pattern"
            ) from None
    if len(has_experts) != layers:
        raise fault(
            source,
            "moe-layer-freq",
            f"is of {len(has_experts)} layers, and there are {layers}",
        )
    if 1 in has_experts:
        dense = has_experts.index(1)
    else:
        dense = layers
    return ExpertLayers(
        parse_flag_number(flags, "num-experts", source),
        parse_flag_number(flags, "moe-router-topk", source, 2),
        parse_flag_number(flags, "moe-ffn-hidden-size", source, width),
        parse_flag_number(flags, "moe-shared-expert-intermediate-size", source, 0),
        dense if all(has_experts[dense:]) else -1,
    )


def _pattern(node: ast.expr) -> list[int]:
    """Return the layers of a pattern such as `([0]*3+[1]*11)`, 1 where a layer has experts.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(node, ast.List):
        values = [x.value for x in node.elts if isinstance(x, ast.Constant)]
        if len(values) == len(node.elts) and all(x in (0, 1) for x in values):
            return [int(x) for x in values if isinstance(x, int)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left) + _pattern(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times = getattr(node.right, "value", None)
        part = _pattern(node.left)
        if type(times) is int and 0 <= times * len(part) <= MOST_STAGES:
            return part * times
    raise ValueError("no pattern of layers")


def parse_flag_stages(
    flags: Flags, pp: int, sizes: DecoderSizes | None, source: str
) -> tuple[int, tuple[int, ...] | None]:
    """Return the stages of every rank and their layers as Megatron-LM cuts them.

    Args:
        flags: Values of flags by name.
        pp: Pipeline ranks.
        sizes: Sizes of the model, if the flags have them.
        source: The file's path, which errors begin with.

    Returns:
        The number of stages of a rank, and the layers of every stage; None if all have as many.

    Raises:
        FormatError: If flags exclude each other, or numbers do not add up.
    """
    used = [way for way in WAYS if any(is_on(flags, name) for name in way)]
    if len(used) > 1:
        raise fault(
            source, used[0][0], f"and --{used[1][0]}: Megatron-LM takes one of them"
        )
    total = None if sizes is None else sizes.layers
    if used and used[0] == LAYOUT:
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
    if not used and total is not None and pp > 1:
        return chunks, _by_type(flags, pp * chunks, total)
    if not used or total is None:
        return chunks, None
    if used[0] == ACCOUNTED:
        uneven = _one_less
    else:
        uneven = _first_and_last
    return chunks, uneven(flags, pp, chunks, total, source)


def _by_type(flags: Flags, stages: int, total: int) -> tuple[int, ...] | None:
    """Return layers as DeepSpeed's `PipelineModule` cuts them, or None if they are equal.

    `type:REGEX` counts the layers whose class has a name that matches, and fills each stage up to
    the largest number that any needs; embedding and tied head count where it names them.
    """
    method = flags.get("pp-partition-method", "").strip("'\"").lower()
    if "deepspeed" not in flags and not method:
        return None
    ends = "embed" in method
    if not ends and total % stages == 0:
        return None
    counted = total + 2 * ends
    largest = -(-counted // stages)
    layers = []
    position = 0
    for _ in range(stages):
        count = min(largest, counted - position)
        layers.append(count)
        position += count
    if ends:
        layers[0] -= 1
        layers[-1] -= 1
    if min(layers) < 0 or len(set(layers)) == 1:
        return None
    return tuple(layers)


def _one_less(
    flags: Flags, pp: int, chunks: int, total: int, source: str
) -> tuple[int, ...]:
    """Return the layers of every stage, where embedding and loss may count as a layer each.

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


def _first_and_last(
    flags: Flags, pp: int, chunks: int, total: int, source: str
) -> tuple[int, ...]:
    """Return the layers of every stage, where flags may give those of the first and the last rank.

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
    if remaining < 0 or (
        remaining % num_middle_ranks if num_middle_ranks else remaining
    ):
        raise fault(
            source, ENDS[0], f"{remaining} layers are left for {num_middle_ranks} ranks"
        )
    ranks = [
        given_layers.get(rank, remaining // max(num_middle_ranks, 1))
        for rank in range(pp)
    ]
    if any(count % chunks for count in ranks):
        raise fault(
            source, ENDS[0], f"ranks have {ranks} layers, in {chunks} stages each"
        )
    return tuple(ranks[k % pp] // chunks for k in range(pp * chunks))


def parse_layout(layout: str, source: str) -> tuple[int, ...]:
    """Return the number of layers of every stage of Megatron's layout.

    Raises:
        FormatError: If it is none, or embedding and loss are not once, first and last.
    """
    text = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        if sum(len(m[1]) * int(m[2]) for m in re.finditer(pattern, text)) > MOST_STAGES:
            raise fault(
                source, LAYOUT[0], f"{layout[:60]!r}: has more than can be trained"
            )
        text = re.sub(pattern, lambda m: m[1] * int(m[2]), text)
    if re.fullmatch("[EtmL|]+", text) is None:
        raise fault(
            source, LAYOUT[0], f"{layout[:60]!r}: has E, t, m, L, |, x*n and (…)*n"
        )
    plain = text.replace("|", "")
    if (
        plain.count("E") != 1
        or plain.count("L") != 1
        or (text[0], text[-1]) != ("E", "L")
    ):
        raise fault(
            source, LAYOUT[0], f"{layout[:60]!r}: has E once and first, L once and last"
        )
    return tuple(stage.count("t") for stage in text.split("|"))


def _recompute(flags: Flags, source: str) -> str:
    if is_on(flags, "recompute-activations"):
        lean = SELECTIVE
    else:
        lean = NONE
    granularity = flags.get("recompute-granularity", lean)
    if granularity == SELECTIVE:
        return _find_recomputed_modules(flags)
    if granularity == NONE:
        return NONE
    if granularity != FULL:
        raise fault(
            source, "recompute-granularity", f"{granularity[:40]}: full or selective"
        )
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
    """Return the word for modules that are recomputed one by one; attention alone by default."""
    names = re.findall(r"\w+", flags.get("recompute-modules", ATTENTION))
    modules = [name for name in RECOMPUTED_MODULES if name in names]
    if modules == [ATTENTION]:
        return SELECTIVE
    return f"modules:{'+'.join(modules)}" if modules else NONE


def _graphs(flags: Flags) -> tuple[str | None, str]:
    """Return which launches CUDA graphs capture, and the modules if these are some parts of layers.

    The first is "iteration", "layers" or None; the second is empty or a list for a message.
    """
    impl = flags.get("cuda-graph-impl", "none")
    for name in ("enable-cuda-graph", "external-cuda-graph"):
        impl = name if is_on(flags, name) else impl
    captured = " ".join(
        flags.get(name, "") for name in SEVERAL if name.startswith("cuda-graph")
    )
    parts = set(
        re.findall(r"\b(attn|mlp|moe|moe_\w+|mamba|full_iteration)\b", captured)
    )
    if impl == "none":
        return None, ""
    if "full_iteration" in (impl, *parts):
        return "iteration", ""
    if parts and not {"attn", "mlp"} <= parts:
        return (None, ", ".join(sorted(parts)))
    return ("layers", "")


def _has_unpriced_experts(flags: Flags, sizes: DecoderSizes | None) -> bool:
    """Return whether flags have all sizes of a model with experts, and none that is priced."""
    has_sizes = all(name in flags for name in SIZES)
    return sizes is None and has_sizes and "num-experts" in flags


def _notes(flags: Flags, sizes: DecoderSizes | None) -> Iterator[str]:
    """Yield what flags say and a plan's words do not."""
    if "num-experts" in flags:
        sent = flags.get("moe-token-dispatcher-type", "allgather")
        if sent == "allgather" and flags.get("expert-model-parallel-size", "1") != "1":
            yield "moe-token-dispatcher-type allgather: priced as an all-to-all"
        if _has_unpriced_experts(flags, sizes):
            yield f"{UNPRICED_EXPERTS}: no sizes; give --model"
    if parts := _graphs(flags)[1]:
        yield f"CUDA graphs of {parts} alone: priced without"
    modules = re.findall(r"\w+", flags.get("recompute-modules", ""))
    unknown = [name for name in modules if name not in RECOMPUTED_MODULES]
    if unknown and flags.get("recompute-granularity") == SELECTIVE:
        yield f"recompute-modules {', '.join(unknown)}: not known; priced without"
    if (
        "vocab-size" not in flags
        and "padded-vocab-size" not in flags
        and "num-layers" in flags
    ):
        yield "no --vocab-size: 50257 tokens are assumed"
