"""Bytes of training on GPUs that are not here: state, activations, work space, allocator's slack.

State: by ZeRO (Rajbhandari et al., 2020, arXiv 1910.02054, section 3): parameters, gradients and
Adam's two moments, shared out over replicas by stage. Galvatron's memory profiles (PKU-DAIR,
Apache-2.0) have 16 bytes a parameter for Adam, to 0.4 %.

Activations of a transformer layer kept for the backward pass (Korthikanti et al., 2022, arXiv
2205.05198, section 4.1; half precision, s positions, b examples, h hidden, a heads, t-way tensor
parallel)::

    s b h (10 + 24 / t)                    attention whose scores are not kept (flash)
    s b h (10 + 24 / t + 5 a s / (h t))    attention whose scores are kept

with double the bytes of all but dropout masks in float32. Of the 24, 8 are attention's and 16 the
feed-forward's of width 4 h: 4 f / h of width f, and 8 f / h where it is gated (four values of that
width are kept: both products, the activation, their product). Without dropout 10 is 8. Galvatron's
profiles (``studies.costs.galvatron``) of GPT (hidden 2560 and 4096, t from 1 to 8) are the first
line, to 0.4 % (hidden 1600: 3 to 9 % too little), those of BERT the second, and those of Llama and
Baichuan with fused norms the gated one, to 0.5 %. Norms that Hugging Face's models compute in
float32 keep their input and what they multiply by their weight in it, 8 bytes an element more for
each of a layer's two, on every GPU.
Where the positions are shared out too (sequence parallel), call it with s / t positions and t = 1.

What a GPU holds while ``allocated`` bytes are in tensors at the peak, its parameters included::

    held = PROCESS + (1 + SLACK) (allocated + 4 bytes a parameter)

SLACK is what the caching allocator keeps beyond what is in use. PROCESS is the CUDA context, loaded
kernels, and NCCL's buffers for groups of tensor, data and pipeline parallelism. The one copy more
is of gradients as they are reduced, or of the optimizer's temporaries. SLACK and PROCESS are fitted
to the peaks of 25 of Sailor's runs on GH200 (``studies.costs.sailor_memory``: fp32, 1 to 64
servers): mean error 1.0 %, at most 3.4 %; fitted to OPT-350M alone, GPT-Neo-2.7B is predicted to
1.5 %, and the other way round to 2.0 %. One run more is left out: its peak is 24 % below that of
another with the same stages and micro-batches on each GPU.

Work space: cuBLAS takes 8 MiB a handle, 32 MiB from Hopper on (PyTorch's documentation of
``CUBLAS_WORKSPACE_CONFIG``). Attention that keeps no scores works in tiles; the other holds the
scores of a layer twice. Convolutions by implicit GEMM need none; what cuDNN's other algorithms take
is not public and nothing is claimed of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnnplace.errors import InputError
from gnnplace.problem.cluster.gpus import known_kind
from gnnplace.problem.cluster.headroom import PROCESS, SLACK

MEBI = 2**20
# Bytes a parameter: itself, its gradient, the optimizer's; by precision.
PARAMETER: Mapping[str, tuple[int, int, int]] = {
    "32-true": (4, 4, 4),
    "bf16-mixed": (4, 4, 4),
    "16-mixed": (4, 4, 4),
    "bf16-true": (2, 2, 2),
    "16-true": (2, 2, 2),
    "bf16-master": (2, 2, 4),
    "16-master": (2, 2, 4),
}
MOMENTS: Mapping[str, int] = {"sgd": 0, "adamw": 2, "adam": 2}
HOPPER_AND_LATER = ("h100", "h200", "gh200", "b200", "rtx-pro-6000")


def state_bytes(
    parameters: float,
    *,
    optimizer: str = "adamw",
    precision: str = "32-true",
    zero: int = 0,
    replicas: int = 1,
) -> float:
    """Bytes that stay on a GPU: parameters, gradients, the optimizer's state.

    Args:
        parameters: of the GPU's part of the model.
        optimizer: "sgd" (without momentum) or "adamw".
        precision: in Lightning's words; "…-master" keeps a float32 copy with the moments.
        zero: stage 0 to 3 of ZeRO.
        replicas: that share what the stage shares.

    Raises:
        InputError: an unknown word, or numbers out of range.
    """
    if precision not in PARAMETER:
        raise InputError(f"precision {precision!r}: unknown; use one of {', '.join(PARAMETER)}")
    if optimizer not in MOMENTS:
        raise InputError(f"optimizer {optimizer!r}: unknown; use one of {', '.join(MOMENTS)}")
    if zero not in range(4) or replicas < 1 or parameters < 0:
        told = f"zero={zero}, replicas={replicas}, parameters={parameters:g}"
        raise InputError(f"{told}: a stage from 0 to 3, one replica and 0 parameters at least")
    own, gradient, moment = PARAMETER[precision]
    kept = moment * (MOMENTS[optimizer] + precision.endswith("-master"))
    shared = [own if zero > 2 else 0, gradient if zero > 1 else 0, kept if zero > 0 else 0]
    return parameters * (own + gradient + kept - sum(shared) + sum(shared) / replicas)


def transformer_activations(
    hidden: int,
    sequence: float,
    batch: float,
    *,
    heads: int,
    tensor_parallel: int = 1,
    feed_forward: int | None = None,
    gated: bool = False,
    dropout: bool = True,
    keeps_scores: bool = False,
    float32_norms: bool = False,
    float32: bool = False,
) -> float:
    """Bytes that a transformer layer keeps for its backward pass, on each GPU.

    Args:
        hidden: h.
        sequence: s.
        batch: b, examples of a micro-batch.
        heads: a.
        tensor_parallel: t.
        feed_forward: f; 4 h by default.
        gated: whether the feed-forward is gated, as Llama's.
        dropout: whether masks of dropout are kept.
        keeps_scores: whether attention keeps its scores, their softmax and its dropout mask.
        float32_norms: whether norms compute in float32 where the rest is half as wide.
        float32: whether values are float32, instead of half as wide.

    Raises:
        InputError: a number that is not positive.
    """
    if min(hidden, sequence, batch, heads, tensor_parallel) <= 0:
        raise InputError("transformer_activations: all sizes must be positive")
    t = tensor_parallel
    wide = 2 if float32 else 1
    width = 4.0 if feed_forward is None else feed_forward / hidden
    # Masks of dropout, one byte an element: two of 10, and one of 5 for the scores.
    whole = 2 * dropout + 8 * wide + (16 if float32_norms and not float32 else 0)
    split = (8 + (8 if gated else 4) * width) * wide
    scores = dropout + 4 * wide
    per_element = whole + split / t
    if keeps_scores:
        per_element += scores * heads * sequence / (hidden * t)
    return sequence * batch * hidden * per_element


def attention_work(sequence: int, batch: float, heads: int, *, width: int = 2) -> float:
    """Bytes at work in a layer's attention that keeps its scores: they and their gradient."""
    return 2.0 * width * batch * heads * sequence * sequence


def cublas_work(kind: str) -> float:
    """Bytes of cuBLAS's work space on a kind of GPU, for one handle and stream."""
    return (32 if known_kind(kind) in HOPPER_AND_LATER else 8) * MEBI


def held_bytes(allocated: float, parameters: float = 0.0) -> float:
    """Bytes that a GPU holds, as `nvidia-smi` counts them, of a training with NCCL.

    Args:
        allocated: bytes in tensors at the peak, with state.
        parameters: of which a copy more is made.
    """
    return PROCESS + (1.0 + SLACK) * (allocated + 4.0 * parameters)
