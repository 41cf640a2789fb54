"""Megatron-LM: a script that starts `pretrain_gpt.py` by a plan.

Written for Megatron-LM d98e8a64 (August 2026). Reading is in `megatron_script` and `megatron_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gnnplace.errors import InfeasibleError
from gnnplace.launch.launch_plan import (
    FULL,
    MODULES,
    NONE,
    SELECTIVE,
    LaunchPlan,
    header,
)
from gnnplace.launch.layer_details import LLAMA, LayerDetails
from gnnplace.launch.offloading import OPTIMIZER
from gnnplace.plans import DecoderSizes, ExpertLayers

GRAPHS = {
    "layers": ["--cuda-graph-impl transformer_engine"],
    "iteration": [
        "--cuda-graph-impl full_iteration",
        "--no-check-for-nan-in-loss-and-grad",
    ],
}


OPTIMIZERS = ("adamw", "sgd", "muon")  # its `adam` decouples weight decay


def write_megatron(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return the text of a script that trains by a plan.

    Args:
        plan: The plan, with the sizes of its model.
        lines: Lines for the head of the file.
        gpus: GPUs of a server.

    Raises:
        InfeasibleError: If no flags can say it.
    """
    sizes = plan.sizes
    if sizes is None:
        raise InfeasibleError(
            "megatron-lm: needs the sizes of a decoder; give --model hf:CONFIG"
        )
    world = plan.world or 1
    gpus_of_server = math.gcd(gpus, world)
    groups = [
        ("MODEL", [*model_flags(sizes), *detail_flags(plan.details)]),
        ("PLAN", plan_flags(plan)),
        (
            "RUN",
            [
                "--mock-data",
                "--tokenizer-type NullTokenizer",
                f"--vocab-size {sizes.vocabulary}",
                "--train-iters 20",
                "--lr 1e-4",
                "--log-interval 1",
                "--log-throughput",
            ],
        ),
    ]
    text = [
        "#!/bin/bash",
        *(f"# {line}" for line in header(plan, lines)),
        "# Start it in the root of Megatron-LM; on servers, with NODE_RANK and MASTER_ADDR.",
        "# RUN has made-up data; put yours there, or behind the name of this script.",
    ]
    # Megatron's FSDP refuses it, and splits need it on GPUs before Blackwell.
    if plan.zero < 2:
        text.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    for name, flags in groups:
        text += [f"{name}=(", *(f"    {flag}" for flag in flags), ")"]
    text += [
        f"torchrun --nproc-per-node {gpus_of_server} --nnodes {world // gpus_of_server} \\",
        '    --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        '    pretrain_gpt.py "${MODEL[@]}" "${PLAN[@]}" "${RUN[@]}" "$@"',
    ]
    return "\n".join(text) + "\n"


def nearest_megatron(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield what Megatron-LM cannot express, one thing at a time.

    Yields:
        A line for the user, and the nearest plan so far that Megatron-LM can express.
    """
    for given_up, run in plan.as_it_runs("Megatron-LM", graphs=tuple(GRAPHS)):
        plan = run
        yield given_up, plan
    for line, run in plan.without_unsayable(
        "Megatron-LM",
        overlap=("gradients", "parameters", "tp"),
        zero_groups=(1,),
        optimizers=OPTIMIZERS,
        offloads=(OPTIMIZER,) if plan.zero == 1 or plan.dp == 1 else (),
    ):
        plan = run
        yield line, plan
    if plan.schedule not in ("1f1b", "interleaved"):
        name = (
            "interleaved"
            if plan.chunks > 1 and plan.microbatches % plan.pp == 0
            else "1f1b"
        )
        given_up = (
            f"schedule {plan.schedule}: Megatron-LM has 1f1b and interleaved; {name} is "
            "written"
        )
        looped = replace(plan, schedule=name)
        plan = looped if name == "interleaved" else plan.with_one_stage_a_rank()
        yield given_up, plan
    if plan.precision in ("bf16-mixed", "16-mixed", "bf16-true", "16-true"):
        half = f"{plan.precision.partition('-')[0]}-master"
        given_up = (
            f"precision {plan.precision}: Megatron-LM has half parameters with a fp32 copy in the "
            f"optimizer; {half} is written"
        )
        plan = replace(plan, precision=half)
        yield given_up, plan
    if plan.sizes is not None and plan.sizes.experts and plan.tp > 1 and not plan.sp:
        plan = replace(plan, sp=True)
        yield (
            "sp=off: Megatron-LM trains experts beside tp with cut tokens; sp=on is written",
            plan,
        )


def model_flags(sizes: DecoderSizes) -> list[str]:
    """Return the flags of a decoder's sizes: Llama's layers if they are gated, else GPT-2's.

    Raises:
        InfeasibleError: If the experts are not gated.
    """
    flags = [
        "--use-mcore-models",
        f"--num-layers {sizes.layers}",
        f"--hidden-size {sizes.hidden}",
        f"--ffn-hidden-size {sizes.feed_forward}",
        f"--num-attention-heads {sizes.heads}",
        f"--seq-length {sizes.length}",
        f"--max-position-embeddings {max(sizes.length, sizes.learned)}",
    ]
    latent = sizes.latent
    if latent is not None:
        flags += [
            "--multi-latent-attention",
            f"--kv-lora-rank {latent.keys}",
            f"--qk-head-dim {sizes.head_size - latent.rotary}",
            f"--qk-pos-emb-head-dim {latent.rotary}",
            f"--v-head-dim {latent.values}",
        ]
        flags += [f"--q-lora-rank {latent.queries}"] if latent.queries else []
    elif sizes.kv_heads != sizes.heads:
        flags += ["--group-query-attention", f"--num-query-groups {sizes.kv_heads}"]
    if sizes.own_head_size and latent is None:
        flags.append(f"--kv-channels {sizes.own_head_size}")
    flags += ["--qk-layernorm"] if latent or sizes.head_norms else []
    if sizes.gated:
        flags += [
            "--swiglu",
            "--normalization RMSNorm",
            "--disable-bias-linear",
            "--attention-dropout 0.0",
            "--hidden-dropout 0.0",
        ]
    if sizes.gated or not sizes.learned:
        positions = "learned_absolute" if sizes.learned else "rope"
        flags.append(f"--position-embedding-type {positions}")
    flags += expert_flags(sizes.experts, sizes) if sizes.experts else []
    return [*flags, *([] if sizes.tied else ["--untie-embeddings-and-output-weights"])]


def detail_flags(details: LayerDetails | None) -> list[str]:
    """Return flags of what a model's layers have beside sizes."""
    if details is None or not details.is_gated:
        return []
    flags = []
    if details.rotary_base is not None:
        flags.append(f"--rotary-base {int(details.rotary_base)}")
    if details.rotary_part < 1:
        flags.append(f"--rotary-percent {details.rotary_part:g}")
    if details.norm_epsilon is not None:
        flags.append(f"--norm-epsilon {details.norm_epsilon:g}")
    if details.scaling.get("rope_type") == LLAMA:
        flags += [
            "--use-rope-scaling",
            f"--rope-scaling-factor {details.scaling['factor']:g}",
        ]
    return [*flags, *(["--add-qkv-bias"] if details.query_biases else [])]


def expert_flags(experts: ExpertLayers, sizes: DecoderSizes) -> list[str]:
    """Return the flags of layers with experts, to which an all-to-all sends tokens.

    Raises:
        InfeasibleError: If the experts are not gated.
    """
    if not sizes.gated:
        raise InfeasibleError("megatron-lm: experts that are not gated are not written")
    flags = [
        f"--num-experts {experts.count}",
        f"--moe-router-topk {experts.active}",
        f"--moe-ffn-hidden-size {experts.width}",
        "--moe-token-dispatcher-type alltoall",
        "--moe-grouped-gemm",
    ]
    flags += (
        [f"--moe-shared-expert-intermediate-size {experts.shared}"]
        if experts.shared
        else []
    )
    layer_pattern = f"([0]*{experts.dense}+[1]*{sizes.layers - experts.dense})"
    return flags + ([f"--moe-layer-freq '{layer_pattern}'"] if experts.dense else [])


def plan_flags(plan: LaunchPlan) -> list[str]:
    """Return the flags of everything that a plan decides.

    Raises:
        InfeasibleError: If Megatron does not have the schedule.
    """
    if plan.schedule not in ("1f1b", "interleaved"):
        raise InfeasibleError(
            f"megatron-lm: has no schedule {plan.schedule!r}; take 1f1b"
        )
    flags = [
        f"--tensor-model-parallel-size {plan.tp}",
        f"--pipeline-model-parallel-size {plan.pp}",
        f"--context-parallel-size {plan.cp}",
        f"--micro-batch-size {plan.microbatch_size}",
        f"--global-batch-size {plan.batch}",
    ]
    flags += [f"--expert-model-parallel-size {plan.ep}"] if plan.ep > 1 else []
    flags += [f"--expert-tensor-parallel-size {plan.etp}"] if plan.etp else []
    flags += ["--sequence-parallel"] if plan.tp > 1 and plan.sp else []
    flags += stage_flags(plan)
    if plan.zero == 1 or plan.offload != NONE:
        flags.append("--use-distributed-optimizer")
        if plan.group and plan.dp:
            flags.append(
                f"--num-distributed-optimizer-instances {plan.dp // plan.group}"
            )
    elif plan.zero:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[plan.zero]
        flags += [
            "--use-megatron-fsdp",
            "--use-distributed-optimizer",
            "--ckpt-format fsdp_dtensor",
            f"--data-parallel-sharding-strategy {strategy}",
        ]
    # Megatron-LM asks for its precision-aware optimizer beside the CPU's.
    if plan.offload != NONE:
        flags += [
            "--optimizer-cpu-offload",
            "--optimizer-offload-fraction 1.0",
            "--use-precision-aware-optimizer",
        ]
    flags += GRAPHS.get(plan.cuda_graphs or "", [])
    kind, _, count = plan.recompute.partition(":")
    if kind == SELECTIVE:
        flags.append("--recompute-granularity selective")
    elif kind == MODULES:
        names = " ".join(plan.spec.recomputed_modules)
        flags += [
            "--recompute-granularity selective",
            f"--recompute-modules {names}",
        ]
    elif kind != NONE:
        method = "uniform" if kind == FULL else kind
        flags += [
            "--recompute-granularity full",
            f"--recompute-method {method}",
            f"--recompute-num-layers {count or 1}",
        ]
    half = {"bf16": "--bf16", "16": "--fp16"}.get(
        (plan.precision or "").partition("-")[0]
    )
    flags += [half] if half else []
    flags += (
        ["--grad-reduce-in-bf16"]
        if half == "--bf16" and plan.gradients != "fp32"
        else []
    )
    if half == "--fp16" and plan.gradients == "fp32":
        flags.append("--accumulate-allreduce-grads-in-fp32")
    optimizer = plan.optimizer or "adamw"
    flags += [f"--optimizer {'adam' if optimizer == 'adamw' else optimizer}"]
    switches = {
        "gradients": "--overlap-grad-reduce",
        "parameters": "--overlap-param-gather",
        "tp": "--tp-comm-overlap",
    }
    return [*flags, *(flag for name, flag in switches.items() if name in plan.overlap)]


def stage_flags(plan: LaunchPlan) -> list[str]:
    """Return the flags that cut the layers: the number of chunks, or a layout if stages differ."""
    if plan.pp == 1:
        return []
    layers = plan.layers
    if layers is not None and len(set(layers)) > 1:
        return [f"--pipeline-model-parallel-layout '{format_layout(layers)}'"]
    if plan.chunks > 1:
        return [f"--num-virtual-stages-per-pipeline-rank {plan.chunks}"]
    return []


def format_layout(layers: Sequence[int]) -> str:
    """Return Megatron's layout of stages with these numbers of layers: `Et*3|t*2|t*6L` is 3+2+6."""
    stage_texts = [
        "" if count == 0 else "t" if count == 1 else f"t*{count}" for count in layers
    ]
    return f"E{'|'.join(stage_texts)}L"
