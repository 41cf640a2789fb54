"""Flags of Megatron-LM and Megatron-DeepSpeed: which change nothing, and which no price counts.

Names are those of Megatron-LM from 2020 to August 2026 (`megatron/arguments.py`,
`megatron/training/arguments.py`) and of Megatron-DeepSpeed f4157bea, without their dashes. A flag
that is in no table here and that no plan is made of is listed as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gnnplace.plans.launch.launch_plan import NotPriced

OFF = ("false", "0", "no", "off", "none", "null", "")

EFFECTS: Mapping[str, str] = {
    "fp8-format": "matrix products in fp8; priced in the half type",
    "fp8": "matrix products in fp8; priced in the half type",
    "fp8-e4m3": "matrix products in fp8; priced in the half type",
    "fp8-hybrid": "matrix products in fp8; priced in the half type",
    "fp8-recipe": "how products in fp8 are scaled; priced in the half type",
    "fp8-param-gather": "parameters gathered in fp8, half the bytes; priced in the half type",
    "fp8-param": "parameters kept in fp8; priced in the half type",
    "fp4-format": "matrix products in fp4; priced in the half type",
    "fp4-param-gather": "parameters gathered in fp4; priced in the half type",
    "first-last-layers-bf16": "the first and the last layers are not in fp8",
    "moe-expert-capacity-factor": "experts drop tokens over their capacity; priced without a limit",
    "moe-pad-expert-input-to-capacity": "experts' rows are padded to their capacity",
    "moe-train-capacity-factor": "experts drop tokens over their capacity; priced without a limit",
    "moe-token-drop-policy": "which tokens experts drop",
    "optimizer-cpu-offload": "offloads the optimizer's state to the CPU; priced on the GPU",
    "optimizer-offload-fraction": "the share of the optimizer's state that is offloaded",
    "cpu-optimizer": "offloads the optimizer to the CPU; priced on the GPU",
    "cpu-torch-adam": "the optimizer that runs on the CPU is PyTorch's",
    "cpu-offloading": "offloads activations to the CPU; priced on the GPU",
    "cpu-offloading-num-layers": "layers whose activations are offloaded to the CPU",
    "cpu-offloading-activations": "offloads activations to the CPU; priced on the GPU",
    "cpu-offloading-weights": "offloads weights to the CPU; priced on the GPU",
    "fine-grained-activation-offloading": "offloads activations of modules; priced on the GPU",
    "offload-modules": "modules whose activations are offloaded; priced on the GPU",
    "checkpoint-in-cpu": "offloads checkpointed activations to the CPU; priced on the GPU",
    "remote-device": "offloads parameters; priced on the GPU",
    "use-precision-aware-optimizer": "types of the optimizer's state; priced as fp32 moments",
    "exp-avg-dtype": "type of the first moment; priced as fp32",
    "exp-avg-sq-dtype": "type of the second moment; priced as fp32",
    "main-params-dtype": "type of the optimizer's copy of parameters; priced as fp32",
    "use-bnb-optimizer": "8-bit moments (bitsandbytes, bnb); priced as fp32",
    "window-size": "attention in a window; priced over all tokens",
    "window-attn-skip-freq": "layers whose attention has no window",
    "mtp-num-layers": "layers that predict further tokens (mtp); priced without",
    "rampup-batch-size": "the batch grows; priced at its last size",
    "step-batch-size-schedule": "the batch grows by a schedule; priced at its last size",
    "curriculum-learning-legacy": "the sequence length grows; priced at its last length",
    "data-efficiency-curriculum-learning": "the sequence length grows; priced at its last length",
    "random-ltd": "layers drop random tokens; priced with all",
    "train-iters-to-skip": "some iterations are skipped",
    "deterministic-mode": "deterministic kernels; priced with the usual ones",
    "transformer-impl": "layers by {value}; priced with the framework's usual kernels",
    "no-masked-softmax-fusion": "an unfused softmax; priced with the framework's usual kernels",
    "no-bias-gelu-fusion": "unfused bias and GELU; priced with the framework's usual kernels",
    "no-bias-swiglu-fusion": "unfused bias and SwiGLU; priced with the framework's usual kernels",
    "no-bias-dropout-fusion": "unfused bias and dropout; priced with the usual kernels",
    "no-rope-fusion": "unfused rotary positions; priced with the framework's usual kernels",
    "no-gradient-accumulation-fusion": "weight gradients are summed by an extra kernel",
    "no-persist-layer-norm": "norms by slower kernels",
    "no-async-tensor-model-parallel-allreduce": "exchanges of tensor-parallel shards not hidden",
    "no-scatter-gather-tensors-in-pipeline": "whole tensors go between stages",
    "distribute-checkpointed-activations": "kept activations are cut over tensor-parallel shards",
    "distribute-saved-activations": "kept activations are cut over tensor-parallel shards",
    "partition-activations": "kept activations are cut over tensor-parallel shards",
    "fp32-residual-connection": "the residual stream is in fp32; priced in the half type",
    "apply-residual-connection-post-layernorm": "where the residual begins",
    "attention-softmax-in-fp32": "attention's softmax in fp32; priced with the usual kernels",
    "moe-shared-expert-overlap": "hides shared experts behind dispatch; priced without",
    "overlap-moe-expert-parallel-comm": "hides experts' dispatch; priced without",
    "delay-wgrad-compute": "weight gradients are computed later; priced without",
    "overlap-param-gather-with-optimizer-step": "hides the gather behind the update; not priced",
    "optimizer-cuda-graph": "the update is captured as a CUDA graph; priced without",
    "moe-enable-deepep": "dispatch by DeepEP; --environment deepep prices it",
    "moe-use-legacy-grouped-gemm": "experts' products by older kernels",
    "use-tutel": "experts' dispatch by Tutel; priced as an all-to-all",
    "mos": "layers with a mixture of students; priced without",
    "kd": "a teacher's forward pass (distillation) is not priced",
    "load-teacher": "a teacher's forward pass (distillation) is not priced",
    "create-moe-param-group": "experts are grouped for ZeRO; priced the same",
    "enable-expert-tensor-parallelism": "experts are cut over tensor-parallel shards",
    "ds-sequence-parallel-fpdt": "attention in chunks that are offloaded; priced without",
    "ds-sequence-parallel-fpdt-offloading": "attention's chunks are offloaded; priced without",
    "enable-zbh1-pipeline": "the schedule is ZB-H1; priced as 1f1b",
    "enable-zbh1-exact-semantics": "the schedule is ZB-H1; priced as 1f1b",
    "pipeline-model-parallel-split-rank": "stages of encoder and decoder",
    "standalone-embedding-stage": "the embedding has a stage of its own",
    "use-torch-fsdp2": "parameters are sharded by torch's FSDP 2",
    "torch-fsdp2-no-reshard-after-forward": "parameters stay gathered after the forward pass",
    "outer-dp-sharding-strategy": "how groups of replicas shard; priced without",
    "hierarchical-context-parallel-sizes": "context parallel in two levels; priced in one",
    "gtp-weight-remat-size": "weights are gathered from shards; priced without",
    "use-nccl-ub": "collectives from registered buffers; priced without",
    "use-sharp": "reductions in the switches; priced without",
    "lora-rank": "low-rank adapters (LoRA); priced as training of all parameters",
    "peft-scheme": "adapters; priced as training of all parameters",
    "freeze-all-layers": "layers are frozen; priced as training of all parameters",
    "freeze-LM": "layers are frozen; priced as training of all parameters",
    "sft": "examples of unlike lengths; priced at the full length",
    "packing": "examples are packed; priced at the full length",
    "reset-attention-mask": "attention within documents; priced over all tokens",
    "multi-token-prediction": "layers that predict further tokens (mtp); priced without",
    "experimental-attention-variant": "attention by {value}; priced as attention to all tokens",
    "linear-attention-freq": "layers with linear attention; priced as attention to all tokens",
    "heterogeneous-layers-config-path": "layers that differ; priced as equal",
    "hybrid-override-pattern": "layers of several kinds; priced as attention and feed-forward",
    "hybrid-layer-pattern": "layers of several kinds; priced as attention and feed-forward",
    "hybrid-attention-ratio": "layers of several kinds; priced as attention and feed-forward",
    "is-hybrid-model": "layers of several kinds; priced as attention and feed-forward",
    "spec": "layers by {value}; priced as attention and feed-forward",
    "moe-latent-size": "experts in a narrower space; priced at the full width",
    "vocab-extra-ids": "further rows of the vocabulary; not counted",
    "extra-vocab-size": "further rows of the tokenizer's vocabulary; not counted",
    "retro-add-retriever": "a retriever's passes are not priced",
    "init-model-with-meta-device": "parameters are made late; priced the same",
    "use-ring-exchange-p2p": "messages between stages by a ring; priced as sends",
    "fp16-lm-cross-entropy": "the loss in the half type; priced in fp32",
    "no-query-key-layer-scaling": "how scores are scaled; priced the same",
    "moe-ffn-hidden-size-list": "experts of unlike widths; priced as equal",
    "te-precision-config-file": "types of matrix products by a file; priced in the half type",
    "kitchen-config-file": "types of matrix products by a file; priced in the half type",
    "kitchen-recipe-number": "types of matrix products by a recipe; priced in the half type",
    "yaml-cfg": "more arguments in {value}, which is not read",
    "compression-training": "compression; priced without",
    "use-cpu-initialization": "parameters are made on the CPU; priced the same",
    "inference": "runs no training",
    "ds-inference": "runs no training",
}  # fmt: skip
"""What a flag changes that no price counts. `{value}` is the flag's own."""
FREE_OF_CHARGE = (
    "no-query-key-layer-scaling", "use-cpu-initialization", "create-moe-param-group",
    "init-model-with-meta-device", "apply-residual-connection-post-layernorm",
)  # fmt: skip
USUAL_VALUES: Mapping[str, tuple[str, ...]] = {
    "transformer-impl": ("transformer_engine",),
    "attention-backend": ("auto", "flash", "fused"),
    "recompute-modules": ("core_attn", "[core_attn]", '["core_attn"]'),
    "exp-avg-dtype": ("fp32", "torch.float32", "float32"),
    "exp-avg-sq-dtype": ("fp32", "torch.float32", "float32"),
    "main-params-dtype": ("fp32", "torch.float32", "float32"),
    "spec": ("megatron.core.models.gpt.gpt_layer_specs",),
    "window-attn-skip-freq": ("1",),
    "ds-sequence-parallel-fpdt-offloading": ("false",),
}
UNUSUAL: Mapping[str, str] = {
    "attention-backend": "{value} attention; priced with the framework's usual kernels",
    "recompute-modules": "parts {value} of every layer are recomputed; priced as attention alone",
}
"""Effects of flags that have one only with a value other than their usual ones."""
PREFIXES = re.compile(
    "(log|wandb|tensorboard|lr|eval|ckpt|dist-ckpt|save|load|inprocess|one-logger|otel|ft|"
    "straggler|fim|goldfish|rope|rotary|yarn|mscale|adam|ademamix|muon|lion|sgd|loss-scale|"
    "profile|inference|rl|grpo|rerun|tokenizer|tiktoken|moe-router|moe-aux|moe-z-loss|exit|"
    "data-cache|dataloader|dino|swin|bert|biencoder|lemma|aim|comet|train-data|valid-data|"
    "test-data|wsd|start-weight|end-weight|initial|min-lr|max-lr|decoupled|manual-gc|timing)"
    "(-[a-z0-9-]*)?"
)
"""What flags of learning rates, logs, checkpoints and the like begin with: they change no step."""
HARMLESS = frozenset(
    """
    use-mcore-models use-legacy-models mock-data data-path data-impl split seed num-workers clip-grad
    weight-decay weight-decay-incr-style init-method-std init-method-xavier-uniform train-iters
    train-samples train-tokens warmup hidden-dropout attention-dropout max-position-embeddings
    position-embedding-type normalization norm-epsilon layernorm-epsilon disable-bias-linear
    add-qkv-bias add-bias-linear qk-layernorm apply-layernorm-1p apply-query-key-layer-scaling
    use-rotary-position-embeddings use-rope-scaling no-position-embedding no-weight-decay-cond-type
    vocab-file merge-file distributed-backend distributed-timeout-minutes override-lr-scheduler
    override-opt-param-scheduler override-opt-param-scheduler use-checkpoint-args
    use-checkpoint-lr-scheduler use-checkpoint-opt-param-scheduler no-load-optim no-load-rng
    no-save-optim no-save-rng no-load-lr-state finetune use-dist-ckpt async-save auto-detect-ckpt-format
    no-create-attention-mask-in-dataloader no-mmap-bin-files mmap-warmup no-data-sharding
    num-dataset-builder-threads calculate-per-token-loss check-for-nan-in-loss-and-grad
    no-check-for-nan-in-loss-and-grad check-for-spiky-loss check-for-large-grads cross-entropy-loss-fusion
    cross-entropy-fusion-impl use-flash-attn use-flash-attn-v1 use-flash-attn-v2 use-flash-attn-builder
    use-flash-attn-triton bias-gelu-fusion masked-softmax-fusion moe-grouped-gemm moe-permute-fusion
    moe-input-jitter-eps moe-use-upcycling moe-upcycling-granularity moe-loss-coeff moe-min-capacity
    moe-eval-capacity-factor moe-token-dropping disable-moe-token-dropping
    disable-moe-top2-2nd-expert-sampling moe-per-layer-logging moe-deepep-num-sms moe-hybridep-num-sms
    moe-flex-dispatcher-backend moe-apply-probs-on-input empty-unused-memory-level
    no-barrier-with-level-1-timing no-log-loss-scale-to-tensorboard no-log-learnig-rate-to-tensorboard
    no-one-logger enable-one-logger reset-position-ids eod-mask-loss trust-remote-code
    use-one-sent-docs enable-experimental deepspeed-activation-checkpointing contigious-checkpointing
    contiguous-checkpointing synchronize-each-layer lazy-mpu-init local-rank local_rank hysteresis
    min-loss-scale squared-relu openai-gelu onnx-safe ddp-bucket-size ddp-num-buckets
    ddp-average-in-collective ddp-pad-buckets-for-high-nccl-busbw no-align-param-gather
    overlap-p2p-communication tp-comm-overlap-cfg tp-comm-bootstrap-backend disable-tp-comm-split-ag
    disable-tp-comm-split-rs disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad
    use-contiguous-buffers-in-ddp no-contiguous-buffers-in-local-ddp data-parallel-random-init
    use-tp-pp-dp-mapping nccl-communicator-config-path fsdp-double-buffer fsdp-manual-registration
    keep-fp8-transpose-cache megatron-fsdp-version fp8-amax-compute-algo fp8-amax-history-len
    fp8-interval fp8-margin no-fp8-wgrad num-layers-at-start-in-bf16 num-layers-at-end-in-bf16
    kill-switch-file skip-train repeated-dataloader per-split-data-args-path
    data-args-path train-desc-path train-doc-idx-path train-idx-path train-sample-idx-path
    train-shuffle-idx-path decoder-seq-length mask-prob short-seq-prob mid-level-dataset-surplus
    universal-checkpoint load-tag app-tag-run-name app-tag-run-version adlr-autoresume
    adlr-autoresume-interval iterations-to-skip max-tokens-to-oom make-vocab-size-divisible-by
    no-initialization perform-initialization use-dataset-only use-pin-memory head-lr-mult
    no-delay-grad-reduce delay-param-gather delay-grad-reduce legacy-tokenizer create-all-gather-group
    zero-contigious-gradients zero-reduce-scatter zero-allgather-bucket-size zero-reduce-bucket-size
    deepspeed-mpi deepscale deepscale-config train-mode dataset patch-tokenizer-type max-padding-length
    max-padding-length no-gradient-reduce-div-fusion embedding-init-method-std exit-on-missing-checkpoint
    use-fused-weighted-squared-relu clone-scatter-output-in-embedding
    no-clone-scatter-output-in-embedding disable-mem-efficient-ln enable-ft-package calc-ft-timeouts
    disable-straggler-on-startup trigger-path no-async-tensor-parallel rdzv-id rdzv-backend
    rdzv-endpoint master-addr master-port node-rank redirects tee standalone attention-dropout
    qknorm-impl prescale-gradients pad-to-multiple xielu gelu ds-fused-adam
    retro-workdir high-priority-stream-groups symmetric-ar-type config use-random-logits
    embed-layernorm sync-tp-duplicated-parameters abort-on-unmet-fused-kernel-constraints
    codecarbon-dir skip-train-iteration-range reweight-loss-based-on-position-frequency
    noise-density mean-noise-span-length path-to-data valid-weighted-split-paths
    train-weighted-split-paths test-weighted-split-paths train-weighted-split-paths-path
    valid-weighted-split-paths-path test-weighted-split-paths-path valid-num-workers loss-on-targets-only
    inject-ln append-bos flash-decode cpu-init hostfile force-multi include exclude deepspeed
    """.split()
)
"""Flags that change neither seconds nor bytes that are priced."""


def effects(flags: Mapping[str, str], lines: Mapping[str, int | None]) -> Iterator[NotPriced]:
    """Yield what flags change that no price counts.

    Args:
        flags: Values by name, without dashes; "true" of a switch.
        lines: Where each stands.
    """
    for name, value in flags.items():
        effect = EFFECTS.get(name, UNUSUAL.get(name))
        shown = value.strip("'\"").lower()
        if effect is None or name in FREE_OF_CHARGE or shown in OFF:
            continue
        if shown in USUAL_VALUES.get(name, ()):
            continue
        text = effect.replace("{value}", value[:60].strip("'\""))
        yield NotPriced(key=f"--{name}", effect=text, line=lines.get(name))


def is_listed(name: str) -> bool:
    """Return whether a flag is in a table here."""
    return (
        name in EFFECTS
        or name in UNUSUAL
        or name in HARMLESS
        or PREFIXES.fullmatch(name) is not None
        or name.startswith("no-") and name.removeprefix("no-") in HARMLESS
    )
