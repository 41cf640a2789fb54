"""Megatron-LM: a script that starts `pretrain_gpt.py`, and the flags of scripts of others.

Written for and read by Megatron-LM d98e8a64 (August 2026): `megatron/training/arguments.py`,
`core/transformer/transformer_config.py`, `core/model_parallel_config.py`. Flags are read from the
text, which never runs: variables that the text itself sets to a literal are put in, whatever else a
shell would make is unknown, and is an error only where a flag of the plan needs it. `MODEL_ARGS`
of Megatron's functional tests (`--flag: value` lines) are read alike.

What is assumed where nothing is said is Megatron's: gradients are summed in fp32 unless
`--grad-reduce-in-bf16`, embedding and head are tied unless `--untie-…`, the feed-forward width is 4
x hidden, with `--swiglu` the multiple of 64 nearest below 8/3 of it. Its uneven splits are made as
it makes them: `--pipeline-model-parallel-layout`, numbers of layers of the first and the last stage
with the rest evenly, or one layer less for the embedding and the loss; they exclude each other.

Complexity: linear in the text, and in layers times stages.
"""

from __future__ import annotations

import ast
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, LatentAttention
from gnnplace.plans.launch.launch_plan import (
    FULL,
    NONE,
    SELECTIVE,
    LaunchPlan,
    check_plan_words,
    header,
    with_header,
)

Flags = dict[str, str]
"""Values of flags by name, without dashes in front; "true" of a switch."""
OTHER_WORD = re.compile(r"-(?![0-9.])|[)|>&;]")
"""What begins no value of a flag: an option, or what a shell reads."""
ASSIGNED = re.compile(
    r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"$`]*\"|'[^'$`]*'|[^\s;&|$`()]*|"
    r"\"?\$\{\w+:-[^}$`]*\}\"?)\s*(#.*)?$"
)
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}$`]*))?\}|\$(\w+)")
ARRAY = re.compile(r"^\s*\w+\+?=\(")
SHELL = re.compile(r"\$|`")
NUMBERS = {
    "tensor-model-parallel-size": "tp", "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp", "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "micro-batch-size": "microbatch_size", "global-batch-size": "batch",
}  # fmt: skip
SIZES = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
OTHERS = (
    "ffn-hidden-size", "num-query-groups", "group-query-attention", "vocab-size", "swiglu",
    "kv-channels", "untie-embeddings-and-output-weights", "sequence-parallel",
    "use-distributed-optimizer",
    "use-megatron-fsdp", "data-parallel-sharding-strategy", "recompute-granularity",
    "recompute-method", "recompute-num-layers", "recompute-modules", "recompute-activations",
    "bf16", "fp16", "grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32", "optimizer",
    "pipeline-model-parallel-layout", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split", "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank", "overlap-grad-reduce", "overlap-param-gather",
    "tp-comm-overlap", "no-overlap-p2p-communication", "nproc-per-node", "nnodes", "num-experts",
    "multi-latent-attention", "mtp-num-layers", "world-size", "step-batch-size-schedule",
    "num-distributed-optimizer-instances", "padded-vocab-size", "make-vocab-size-divisible-by",
    "cp-comm-type", "moe-router-topk", "moe-ffn-hidden-size", "moe-layer-freq",
    "moe-shared-expert-intermediate-size", "moe-token-dispatcher-type", "qk-layernorm",
    "q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim",
    "microbatch-group-size-per-virtual-pipeline-stage", "cuda-graph-impl", "cuda-graph-modules",
    "cuda-graph-scope", "enable-cuda-graph", "external-cuda-graph",
)  # fmt: skip
UNRELATED = re.compile(
    "(save|load|log|tensorboard|wandb|eval|data|split|lr|min-lr|weight-decay|adam|clip|init|train|"
    "tokenizer|vocab-file|merge|dist|ckpt|async|use-persistent|exit|seed|num-workers|master|node|"
    "rdzv|timing|manual|profile|attention|hidden-dropout|transformer-impl|use-mcore|use-flash|"
    "deterministic|no-grad|no-mmap|no-create|no-check|no-load|no-save|norm|qk-layernorm|rotary|position|"
    "max-position|mock|moe|disable-bias|apply-layernorm|cross-entropy|auto-detect|"
    "override|rerun|decoupled|empty-unused|tiktoken|no-masked|no-bias|no-rope|squared|mscale|"
    "check-for|calculate-per-token|use-rotary|q-lora|kv-lora|qk-|v-head|mtp-loss|enable|trust|"
    "rampup|start-weight|end-weight|loss-scale|initial|hysteresis|swin|bert|logging|local|"
    "use-checkpoint|make-vocab|step-batch|sgd|cuda-graph-w|inference-cuda)[a-z0-9-]*"
)
SEVERAL = ("cuda-graph-modules", "cuda-graph-scope")  # flags of more than one value
GRAPHS = {"layers": ["--cuda-graph-impl transformer_engine"],
          "iteration": ["--cuda-graph-impl full_iteration",
                        "--no-check-for-nan-in-loss-and-grad"]}  # fmt: skip
LAYOUT = ("pipeline-model-parallel-layout",)
ENDS = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
ACCOUNTED = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
WAYS = (LAYOUT, ENDS, ACCOUNTED)
MOST_STAGES = 100_000  # letters of a layout
LONGEST_PATTERN = 4000  # letters of `--moe-layer-freq`
EACH = "num-layers-per-virtual-pipeline-stage"


def write_megatron(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """A script that trains by a plan.

    Args:
        plan: with the sizes of its model.
        lines: for the head of the file.
        gpus: of a server.

    Raises:
        InfeasibleError: no flags can say it.
    """
    sizes = plan.sizes
    if sizes is None:
        raise InfeasibleError("megatron-lm: needs the sizes of a decoder; give --model hf:CONFIG")
    world = plan.world or 1
    each = math.gcd(gpus, world)
    groups = [
        ("MODEL", model_flags(sizes)),
        ("PLAN", plan_flags(plan)),
        ("RUN", ["--mock-data", "--tokenizer-type NullTokenizer",
                 f"--vocab-size {sizes.vocabulary}",
                 "--train-iters 20", "--lr 1e-4", "--log-interval 1", "--log-throughput"]),
    ]  # fmt: skip
    text = ["#!/bin/bash", *(f"# {line}" for line in header(plan, lines)),
            "# Start it in the root of Megatron-LM; on servers, with NODE_RANK and MASTER_ADDR.",
            "# RUN has made-up data; put yours there, or behind the name of this script.",
    ]  # fmt: skip
    if plan.zero < 2:  # which Megatron's FSDP refuses, and splits on GPUs before Blackwell need
        text.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    for name, flags in groups:
        text += [f"{name}=(", *(f"    {flag}" for flag in flags), ")"]
    text += [
        f"torchrun --nproc-per-node {each} --nnodes {world // each} \\",
        '    --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        '    pretrain_gpt.py "${MODEL[@]}" "${PLAN[@]}" "${RUN[@]}" "$@"',
    ]
    return "\n".join(text) + "\n"


def nearest_megatron(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """What Megatron-LM cannot say, one thing at a time, with the nearest plan that it can."""
    for told, run in plan.as_it_runs("Megatron-LM", graphs=tuple(GRAPHS)):
        plan = run
        yield told, plan
    if plan.schedule not in ("1f1b", "interleaved"):
        name = "interleaved" if plan.chunks > 1 and plan.microbatches % plan.pp == 0 else "1f1b"
        told = f"schedule {plan.schedule}: Megatron-LM has 1f1b and interleaved; {name} is written"
        looped = replace(plan, schedule=name)
        plan = looped if name == "interleaved" else plan.with_one_stage_a_rank()
        yield told, plan
    if plan.precision in ("bf16-mixed", "16-mixed", "bf16-true", "16-true"):
        half = f"{plan.precision.partition('-')[0]}-master"
        told = (
            f"precision {plan.precision}: Megatron-LM has half parameters with a fp32 copy in the "
            f"optimizer; {half} is written"
        )
        plan = replace(plan, precision=half)
        yield told, plan
    if plan.sizes is not None and plan.sizes.experts and plan.tp > 1 and not plan.sp:
        plan = replace(plan, sp=True)
        yield "sp=off: Megatron-LM trains experts beside tp with cut tokens; sp=on is written", plan


def model_flags(sizes: DecoderSizes) -> list[str]:
    """Flags of a decoder's sizes: Llama's layers where they are gated, else GPT-2's.

    Raises:
        InfeasibleError: experts that are not gated.
    """
    flags = [
        "--use-mcore-models", f"--num-layers {sizes.layers}", f"--hidden-size {sizes.hidden}",
        f"--ffn-hidden-size {sizes.feed_forward}", f"--num-attention-heads {sizes.heads}",
        f"--seq-length {sizes.length}", f"--max-position-embeddings {sizes.length}",
    ]  # fmt: skip
    own = sizes.latent
    if own is not None:
        flags += ["--multi-latent-attention", f"--kv-lora-rank {own.keys}",
                  f"--qk-head-dim {sizes.head_size - own.rotary}",
                  f"--qk-pos-emb-head-dim {own.rotary}", f"--v-head-dim {own.values}"]  # fmt: skip
        flags += [f"--q-lora-rank {own.queries}"] if own.queries else []
    elif sizes.kv_heads != sizes.heads:
        flags += ["--group-query-attention", f"--num-query-groups {sizes.kv_heads}"]
    if sizes.own_head_size and own is None:
        flags.append(f"--kv-channels {sizes.own_head_size}")
    flags += ["--qk-layernorm"] if own or sizes.head_norms else []
    if sizes.gated:
        flags += ["--swiglu", "--normalization RMSNorm", "--position-embedding-type rope",
                  "--disable-bias-linear", "--attention-dropout 0.0",
                  "--hidden-dropout 0.0"]  # fmt: skip
    flags += expert_flags(sizes.experts, sizes) if sizes.experts else []
    return [*flags, *([] if sizes.tied else ["--untie-embeddings-and-output-weights"])]


def expert_flags(own: ExpertLayers, sizes: DecoderSizes) -> list[str]:
    """Flags of layers with experts, to which rows are sent by an all-to-all.

    Raises:
        InfeasibleError: they are not gated.
    """
    if not sizes.gated:
        raise InfeasibleError("megatron-lm: experts that are not gated are not written")
    flags = [
        f"--num-experts {own.count}", f"--moe-router-topk {own.active}",
        f"--moe-ffn-hidden-size {own.width}", "--moe-token-dispatcher-type alltoall",
        "--moe-grouped-gemm",
    ]  # fmt: skip
    flags += [f"--moe-shared-expert-intermediate-size {own.shared}"] if own.shared else []
    chosen = f"([0]*{own.dense}+[1]*{sizes.layers - own.dense})"
    return flags + ([f"--moe-layer-freq '{chosen}'"] if own.dense else [])


def plan_flags(plan: LaunchPlan) -> list[str]:
    """Flags of everything that a plan decides.

    Raises:
        InfeasibleError: a schedule that Megatron does not have.
    """
    if plan.schedule not in ("1f1b", "interleaved"):
        raise InfeasibleError(f"megatron-lm: has no schedule {plan.schedule!r}; take 1f1b")
    flags = [
        f"--tensor-model-parallel-size {plan.tp}", f"--pipeline-model-parallel-size {plan.pp}",
        f"--context-parallel-size {plan.cp}", f"--micro-batch-size {plan.microbatch_size}",
        f"--global-batch-size {plan.batch}",
    ]  # fmt: skip
    flags += [f"--expert-model-parallel-size {plan.ep}"] if plan.ep > 1 else []
    flags += [f"--expert-tensor-parallel-size {plan.etp}"] if plan.etp else []
    flags += ["--sequence-parallel"] if plan.tp > 1 and plan.sp else []
    flags += stage_flags(plan)
    if plan.zero == 1:
        flags.append("--use-distributed-optimizer")
        if plan.group and plan.dp:
            flags.append(f"--num-distributed-optimizer-instances {plan.dp // plan.group}")
    elif plan.zero:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[plan.zero]
        flags += ["--use-megatron-fsdp", "--use-distributed-optimizer",
                  "--ckpt-format fsdp_dtensor",
                  f"--data-parallel-sharding-strategy {strategy}"]  # fmt: skip
    flags += GRAPHS.get(plan.cuda_graphs or "", [])
    kind, _, count = plan.recompute.partition(":")
    if kind == SELECTIVE:
        flags.append("--recompute-granularity selective")
    elif kind != NONE:
        method = "uniform" if kind == FULL else kind
        flags += ["--recompute-granularity full", f"--recompute-method {method}",
                  f"--recompute-num-layers {count or 1}"]  # fmt: skip
    half = {"bf16": "--bf16", "16": "--fp16"}.get((plan.precision or "").partition("-")[0])
    flags += [half] if half else []
    flags += ["--grad-reduce-in-bf16"] if half == "--bf16" and plan.gradients != "fp32" else []
    flags += [f"--optimizer {'sgd' if plan.optimizer == 'sgd' else 'adam'}"]
    switches = {"gradients": "--overlap-grad-reduce", "parameters": "--overlap-param-gather",
                "tp": "--tp-comm-overlap"}  # fmt: skip
    return [*flags, *(flag for name, flag in switches.items() if name in plan.overlap)]


def stage_flags(plan: LaunchPlan) -> list[str]:
    """How layers are cut: by numbers where they are equal, else by a layout."""
    if plan.pp == 1:
        return []
    layers = plan.layers
    if layers is not None and len(set(layers)) > 1:
        return [f"--pipeline-model-parallel-layout '{layout_of(layers)}'"]
    return [f"--num-virtual-stages-per-pipeline-rank {plan.chunks}"] if plan.chunks > 1 else []


def layout_of(layers: Sequence[int]) -> str:
    """Megatron's layout of stages with so many layers: `3+2+6` is `Et*3|t*2|t*6L`."""
    told = ["" if count == 0 else "t" if count == 1 else f"t*{count}" for count in layers]
    return f"E{'|'.join(told)}L"


def read_megatron(text: str, source: str) -> LaunchPlan:
    """The plan of a script, of a file of flags or of a functional test.

    Raises:
        FormatError: a flag of the plan that cannot be read, or flags that contradict each other.
    """
    flags, unknown = flags_of(text, source)
    if not flags:
        raise FormatError(f"{source}: has no flag of Megatron-LM, such as --num-layers 32")
    plan = plan_of_flags(flags, source)
    if unknown:
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        told = ", ".join(f"--{name}" for name in unknown[:8])
        plan = replace(
            plan, notes=(*plan.notes, f"flags that are not known, and not priced: {told}{more}")
        )
    return check_plan_words(with_header(plan, text, source), source)


def flags_of(text: str, source: str) -> tuple[Flags, list[str]]:
    """Flags that a plan is made of, and the names of those that nobody knows.

    Raises:
        FormatError: a flag is there twice with two values, or its value is the shell's to make.
    """
    variables = {
        m[1]: _put_in(m[2].strip("'\""), {})
        for line in text.splitlines()
        if (m := ASSIGNED.match(line))
    }
    found: Flags = {}
    unknown: list[str] = []
    for name, value, line in _words(text, variables):
        if not is_known(name) and name not in unknown:
            unknown.append(name)
        if not is_counted(name):
            continue
        if SHELL.search(value):
            if name in ("nproc-per-node", "nnodes"):
                continue
            told = f"{value[:60]}: is made by a shell, and nothing is run; write its value"
            raise fault(f"{source}: line {line}", name, told)
        if found.setdefault(name, value) != value:
            told = f"{value[:40]}: was {found[name][:40]} before"
            raise fault(f"{source}: line {line}", name, told)
    return found, unknown


def is_counted(name: str) -> bool:
    """Whether a flag is of a plan, or of the sizes of a model."""
    return name in NUMBERS or name in SIZES or name in OTHERS


def is_known(name: str) -> bool:
    """Whether a flag is, or changes nothing of them."""
    return is_counted(name) or UNRELATED.fullmatch(name) is not None


def _words(text: str, variables: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """Flags with their values and lines; a flag without a value is "true"."""
    name, values, at = "", list[str](), 0
    for number, line in enumerate(text.splitlines(), start=1):
        for word in _split(_put_in(line, variables)):
            flag = re.fullmatch(r"--([A-Za-z][\w-]*)(?:[:=](.*))?", word)
            if flag is not None:
                if name:
                    yield name, " ".join(values) or "true", at
                name, at = flag[1].replace("_", "-"), number
                values = [flag[2]] if flag[2] else []
            elif name and (name in SEVERAL or not values) and not OTHER_WORD.match(word):
                values.append(word)
    if name:
        yield name, " ".join(values) or "true", at


def _split(line: str) -> list[str]:
    """Words of a line as a shell has them; words within quotes are words too, unless a layout."""
    try:
        words = shlex.split(ARRAY.sub("", line).removesuffix("\\"), comments=True)
    except ValueError:  # a quotation that goes on
        words = line.split("#")[0].replace('"', " ").replace("'", " ").split()
    return [x.rstrip(")") if x.startswith("--") else x for word in words
            for x in (word.split() if word.startswith("--") else [word])]  # fmt: skip


def _put_in(line: str, variables: Mapping[str, str]) -> str:
    return VARIABLE.sub(
        lambda m: variables.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), line
    )


def fault(source: str, flag: str, told: str) -> FormatError:
    """What is wrong with a flag."""
    return FormatError(f"{source}: --{flag}: {told}")


def plan_of_flags(flags: Flags, source: str) -> LaunchPlan:
    """A plan from flags by name.

    Raises:
        FormatError: naming the flag that is wrong, or those that contradict each other.
    """
    counts = {
        word: number_of(flags, name, source) for name, word in NUMBERS.items() if name in flags
    }
    plan = LaunchPlan(**counts)  # type: ignore[arg-type]
    plan = replace(plan, etp=None) if plan.etp == plan.tp else plan
    sizes = sizes_of_flags(flags, source)
    chunks, layers = stages_of_flags(flags, plan.pp, sizes, source)
    zero = 0
    if is_on(flags, "use-megatron-fsdp"):
        zero = {"no_shard": 0, "optim": 1, "optim_grads": 2}.get(
            flags.get("data-parallel-sharding-strategy", ""), 3
        )
    elif is_on(flags, "use-distributed-optimizer"):
        zero = 1
    half = next(
        (p for name, p in (("bf16", "bf16-master"), ("fp16", "16-master")) if is_on(flags, name)),
        "32-true",
    )
    overlap = {"overlap-grad-reduce": "gradients", "overlap-param-gather": "parameters",
               "tp-comm-overlap": "tp"}  # fmt: skip
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
        gradients="same" if half == "32-true" or is_on(flags, "grad-reduce-in-bf16") else "fp32",
        optimizer={"adam": "adamw"}.get(optimizer, optimizer),
        overlap=tuple(told for name, told in overlap.items() if is_on(flags, name)),
        cuda_graphs=_graphs(flags)[0],
        sizes=sizes,
        notes=tuple(_notes(flags, sizes)),
    )
    processes = [number_of(flags, x, source) for x in ("nproc-per-node", "nnodes") if x in flags]
    if len(processes) == 2:
        plan = plan.with_dp(processes[0] * processes[1], source)
    elif "world-size" in flags:
        plan = plan.with_dp(number_of(flags, "world-size", source), source)
    count = number_of(flags, "num-distributed-optimizer-instances", source, 1)
    if count > 1 and plan.dp and plan.zero and plan.dp % count == 0:
        return replace(plan, group=plan.dp // count)
    told = (f"{count} instances of the optimizer: its ZeRO is priced as one",) * (count > 1)
    return replace(plan, notes=(*plan.notes, *told))


def number_of(flags: Flags, name: str, source: str, default: int | None = None) -> int:
    """A flag's whole number.

    Raises:
        FormatError: it is none, or the flag is missing.
    """
    value = flags.get(name)
    if value is None and default is not None:
        return default
    if value is None or re.fullmatch("[0-9]{1,12}", value.strip()) is None:
        told = "is missing" if value is None else f"{value[:40]!r} is no whole number"
        raise fault(source, name, told)
    return int(value)


def is_on(flags: Flags, name: str) -> bool:
    """Whether a switch is there, and not `false`."""
    return flags.get(name, "false").lower() not in ("false", "0", "no", "off")


def sizes_of_flags(flags: Flags, source: str) -> DecoderSizes | None:
    """Sizes of the model; None where the flags have not all of them."""
    if any(name not in flags for name in SIZES):
        return None
    layers, hidden, heads, length = (number_of(flags, name, source) for name in SIZES)
    gated = is_on(flags, "swiglu")
    width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    width = number_of(flags, "ffn-hidden-size", source, width)
    latent, experts = _latent(flags, source), _experts(flags, layers, width, source)
    if experts is not None and (experts.dense < 0 or not gated):
        return None  # a line says so
    groups = (
        number_of(flags, "num-query-groups", source, 1)
        if is_on(flags, "group-query-attention")
        else heads
    )
    width_of_head = number_of(flags, "kv-channels", source, hidden // max(heads, 1))
    if latent is not None:
        width_of_head = number_of(flags, "qk-head-dim", source, 128) + latent.rotary
    vocabulary = number_of(
        flags, "padded-vocab-size", source, number_of(flags, "vocab-size", source, 50257)
    )
    return DecoderSizes(
        layers, hidden, heads, groups, width, length,
        vocabulary, gated=gated, tied=not is_on(flags, "untie-embeddings-and-output-weights"),
        own_head_size=None if width_of_head * heads == hidden else width_of_head, experts=experts,
        latent=latent, head_norms=latent is None and is_on(flags, "qk-layernorm"),
    )  # fmt: skip


def _latent(flags: Flags, source: str) -> LatentAttention | None:
    """Widths of latent attention; those that are not said are the parser's own."""
    if not is_on(flags, "multi-latent-attention"):
        return None
    usual = {"q-lora-rank": 0, "kv-lora-rank": 32, "qk-pos-emb-head-dim": 64, "v-head-dim": 128}
    return LatentAttention(*(number_of(flags, name, source, n) for name, n in usual.items()))


def _experts(flags: Flags, layers: int, width: int, source: str) -> ExpertLayers | None:
    """Layers with experts; `dense` is -1 where they are not all behind those without.

    Raises:
        FormatError: a frequency that is none, or is not of all layers.
    """
    if number_of(flags, "num-experts", source, 0) == 0:
        return None
    freq = flags.get("moe-layer-freq", "1").strip("'\"")
    if re.fullmatch("[1-9][0-9]{0,4}", freq):
        told = [int(k % int(freq) == 0) for k in range(layers)]
    else:
        try:
            told = _pattern(ast.parse(freq[:LONGEST_PATTERN], mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise fault(source, "moe-layer-freq", f"{freq[:40]!r}: is no pattern") from None
    if len(told) != layers:
        raise fault(source, "moe-layer-freq", f"is of {len(told)} layers, and there are {layers}")
    dense = told.index(1) if 1 in told else layers
    return ExpertLayers(
        number_of(flags, "num-experts", source), number_of(flags, "moe-router-topk", source, 2),
        number_of(flags, "moe-ffn-hidden-size", source, width),
        number_of(flags, "moe-shared-expert-intermediate-size", source, 0),
        dense if all(told[dense:]) else -1,
    )  # fmt: skip


def _pattern(node: ast.expr) -> list[int]:
    """The layers of a pattern such as `([0]*3+[1]*11)`, 1 where a layer has experts.

    Raises:
        ValueError: it is none.
    """
    if isinstance(node, ast.List):
        values = [x.value for x in node.elts if isinstance(x, ast.Constant)]
        if len(values) == len(node.elts) and all(x in (0, 1) for x in values):
            return [int(x) for x in values if isinstance(x, int)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left) + _pattern(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times, part = getattr(node.right, "value", None), _pattern(node.left)
        if type(times) is int and 0 <= times * len(part) <= MOST_STAGES:
            return part * times
    raise ValueError("no pattern of layers")


def stages_of_flags(
    flags: Flags, pp: int, sizes: DecoderSizes | None, source: str
) -> tuple[int, tuple[int, ...] | None]:
    """Stages of every rank, and their layers as Megatron cuts them; None where they are equal.

    Raises:
        FormatError: flags that exclude each other, or numbers that do not add up.
    """
    used = [way for way in WAYS if any(flags.get(name, "false") != "false" for name in way)]
    if len(used) > 1:
        raise fault(source, used[0][0], f"and --{used[1][0]}: Megatron-LM takes one of them")
    total = None if sizes is None else sizes.layers
    if used and used[0] == LAYOUT:
        layers = layers_of_layout(flags[LAYOUT[0]], source)
        if len(layers) % pp:
            raise fault(source, LAYOUT[0], f"{len(layers)} stages are no multiple of {pp} ranks")
        return len(layers) // pp, layers
    chunks = number_of(flags, "num-virtual-stages-per-pipeline-rank", source, 1)
    if EACH in flags and total is not None:
        each = number_of(flags, EACH, source)
        if not each or total % (pp * each):
            told = f"{total} layers are no multiple of {each} on {pp} ranks"
            raise fault(source, EACH, told)
        chunks = total // (pp * each)
    if not used or total is None:
        return chunks, None
    uneven = _one_less if used[0] == ACCOUNTED else _first_and_last
    return chunks, uneven(flags, pp, chunks, total, source)


def _one_less(flags: Flags, pp: int, chunks: int, total: int, source: str) -> tuple[int, ...]:
    """Layers where embedding and loss count as a layer each."""
    first, last = (is_on(flags, name) for name in ACCOUNTED)
    stages = pp * chunks
    each, rest = divmod(total + first + last, stages)
    if rest:
        told = f"{total} layers, embedding and loss are no multiple of {stages} stages"
        raise fault(source, ACCOUNTED[0], told)
    layers = [each] * stages
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def _first_and_last(flags: Flags, pp: int, chunks: int, total: int, source: str) -> tuple[int, ...]:
    """Layers where those of the first and the last rank are told, over all their stages."""
    told = {0: ENDS[0], pp - 1: ENDS[1]}
    known = {r: number_of(flags, name, source) for r, name in told.items() if name in flags}
    others, left = pp - len(known), total - sum(known.values())
    if left < 0 or (left % others if others else left):
        raise fault(source, ENDS[0], f"{left} layers are left for {others} ranks")
    ranks = [known.get(rank, left // max(others, 1)) for rank in range(pp)]
    if any(count % chunks for count in ranks):
        raise fault(source, ENDS[0], f"ranks have {ranks} layers, in {chunks} stages each")
    return tuple(ranks[k % pp] // chunks for k in range(pp * chunks))


def layers_of_layout(layout: str, source: str) -> tuple[int, ...]:
    """Layers of every stage of Megatron's layout.

    Raises:
        FormatError: it is none, or embedding and loss are not once, first and last.
    """
    text = layout.replace(",", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        if sum(len(m[1]) * int(m[2]) for m in re.finditer(pattern, text)) > MOST_STAGES:
            raise fault(source, LAYOUT[0], f"{layout[:60]!r}: has more than can be trained")
        text = re.sub(pattern, lambda m: m[1] * int(m[2]), text)
    if re.fullmatch("[EtmL|]+", text) is None:
        raise fault(source, LAYOUT[0], f"{layout[:60]!r}: has E, t, m, L, |, x*n and (…)*n")
    plain = text.replace("|", "")
    if plain.count("E") != 1 or plain.count("L") != 1 or (text[0], text[-1]) != ("E", "L"):
        raise fault(source, LAYOUT[0], f"{layout[:60]!r}: has E once and first, L once and last")
    return tuple(stage.count("t") for stage in text.split("|"))


def _recompute(flags: Flags, source: str) -> str:
    lean = SELECTIVE if is_on(flags, "recompute-activations") else NONE
    granularity = flags.get("recompute-granularity", lean)
    if granularity in (NONE, SELECTIVE):
        return granularity
    if granularity != FULL:
        raise fault(source, "recompute-granularity", f"{granularity[:40]}: full or selective")
    method = flags.get("recompute-method", "")
    count = number_of(flags, "recompute-num-layers", source, 1)
    if method not in ("uniform", "block"):
        raise fault(source, "recompute-method", f"{method[:40]!r}: must be uniform or block")
    return FULL if (method, count) == ("uniform", 1) else f"{method}:{count}"


def _graphs(flags: Flags) -> tuple[str | None, str]:
    """Whose launches are captured, and the modules if it is some parts of layers."""
    impl = flags.get("cuda-graph-impl", "none")
    for name in ("enable-cuda-graph", "external-cuda-graph"):
        impl = name if is_on(flags, name) else impl
    told = " ".join(flags.get(name, "") for name in SEVERAL)
    parts = set(re.findall(r"\b(attn|mlp|moe|moe_\w+|mamba|full_iteration)\b", told))
    if impl == "none":
        return None, ""
    if "full_iteration" in (impl, *parts):
        return "iteration", ""
    return (None, ", ".join(sorted(parts))) if parts and not {"attn", "mlp"} <= parts else (
        "layers", "")  # fmt: skip


def _notes(flags: Flags, sizes: DecoderSizes | None) -> Iterator[str]:
    """What our words do not say."""
    if "num-experts" in flags:
        sent = flags.get("moe-token-dispatcher-type", "allgather")
        if sent == "allgather" and flags.get("expert-model-parallel-size", "1") != "1":
            yield "moe-token-dispatcher-type allgather: priced as an all-to-all"
        if sizes is None and all(name in flags for name in SIZES):
            yield "experts that are not gated, or not of all last layers: no sizes; give --model"
    if parts := _graphs(flags)[1]:
        yield f"CUDA graphs of {parts} alone: priced without"
    if "mtp-num-layers" in flags:
        yield "layers that predict further tokens (mtp) are not counted"
    if "vocab-size" not in flags and "padded-vocab-size" not in flags and "num-layers" in flags:
        yield "no --vocab-size: 50257 tokens are assumed"
    if "step-batch-size-schedule" in flags:
        yield "the batch is that of the last steps (--step-batch-size-schedule)"
    modules = flags.get("recompute-modules")
    if modules not in (None, "core_attn"):
        yield f"recompute-modules {modules}: counted as those of attention"
