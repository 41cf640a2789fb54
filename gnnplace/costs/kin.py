"""Tables that stand in for an op without measured rows: related ops, other types, other GPUs.

The time of such an op is predicted in one of three ways. By a related op: the gradient of a product
by the product with its shape, an unlisted pointwise op by all pointwise ops of that GPU with its
bytes. By the same op in another type; on tensor cores the utilisation is similar for all types. Or
by the same op on the most similar GPU, compared by what decides how far an op is from its roofline:
watts per unit of arithmetic for products (NVIDIA's small cards cannot hold their clocks), and
generation for all other ops.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnplace.costs.rows import FAMILY, VECTOR
from gnnplace.problem import get_figures

POOL = "pointwise"  # all pointwise ops of a GPU together
POOLED = frozenset(("add", "mul", "div", "relu", "gelu", "tanh"))
# Ops of vectors that are not pointwise: they reduce, gather, scatter or walk windows.
_POOLS = (
    *(
        "_softmax",
        "native_layer_norm",
        "embedding",
        "embedding_dense_backward",
        "sum",
        "mean",
    ),
    *(
        "amax",
        "amin",
        "var",
        "linalg_vector_norm",
        "max_pool2d_with_indices",
        "avg_pool2d",
    ),
    *(
        "max_pool2d_with_indices_backward",
        "avg_pool2d_backward",
        "depthwise",
        "depthwise.input",
    ),
    *(
        "depthwise.weight",
        "index",
        "index_put",
        "index_add",
        "gather",
        "scatter",
        "scatter_add",
    ),
    *(
        "cumsum",
        "sort",
        "topk",
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
    ),
    "nll_loss2d_backward",
)
SPECIAL: Mapping[str, str] = {
    **dict.fromkeys(_POOLS, POOL),
    "_softmax_backward_data": "_softmax",
    "_log_softmax": "_softmax",
    "_log_softmax_backward_data": "_softmax_backward_data",
    "native_layer_norm_backward": "native_layer_norm",
    "native_batch_norm": "native_layer_norm",
    "_native_batch_norm_legit_functional": "native_layer_norm",
    "native_batch_norm_backward": "native_layer_norm_backward",
    "native_group_norm": "native_layer_norm",
    "native_group_norm_backward": "native_layer_norm_backward",
}
PRODUCT_KIN: Mapping[str, str] = {
    "matmul.backward": "matmul",
    "bmm.backward": "bmm",
    "bmm": "matmul",
    "convolution.input": "convolution",
    "convolution.weight": "convolution",
    "convolution": "matmul",
    "attention_backward": "attention",
}
# Gradients that are products as their kin are: their few rows correct the kin's many.
CORRECTED = frozenset(("matmul.backward", "bmm.backward", "attention_backward"))
HALVES = ("bfloat16", "float16")
TENSOR_TYPES = (*HALVES, "tf32")
FIRST_TENSOR_CORES = 2017
OTHER_TYPES: Mapping[str, tuple[str, ...]] = {
    "float32": HALVES,
    "tf32": (*HALVES, "float32"),
    "float16": ("float32",),
    "bfloat16": ("float32",),
}


def find_kin(op: str) -> str:
    """Return the op whose table answers for an op that has none; empty if there is none."""
    if op in PRODUCT_KIN:
        return PRODUCT_KIN[op]
    if FAMILY.get(op, VECTOR) != VECTOR or op == POOL:
        return ""
    return SPECIAL.get(op, POOL)


def get_error_group(op: str) -> str:
    """Return the group of ops whose errors are alike.

    Each op that has tables is its own group; all pointwise ops are one, all other ones another.
    """
    if FAMILY.get(op, VECTOR) != VECTOR:
        return op
    if op in SPECIAL:
        return "reducing"
    return POOL


def classify_op(op: str) -> str:
    """Return the class of an op: "products", bound by arithmetic, or "vectors", bound by bytes."""
    if FAMILY.get(op, VECTOR) != VECTOR:
        return "products"
    return "vectors"


def list_equally_fast_types(kind: str, dtype: str) -> tuple[str, ...]:
    """Return the type, and the other half type where a kind computes both alike."""
    if dtype in HALVES:
        rates = get_figures(kind).rates
        if rates.get(HALVES[0]) == rates.get(HALVES[1]):
            return (dtype, *(half for half in HALVES if half != dtype))
    return (dtype,)


def uses_tensor_cores(kind: str, dtype: str) -> bool:
    """Return whether a kind multiplies a type on tensor cores."""
    gpu = get_figures(kind)
    faster = gpu.flops(dtype) > 1.5 * gpu.flops("float32")
    return dtype in TENSOR_TYPES and gpu.year >= FIRST_TENSOR_CORES and faster


def tensor_types(kind: str, op: str, dtype: str, other: str) -> tuple[str, ...]:
    """Return the other types that may stand for a product on tensor cores.

    These are the types in which `other` computes it on tensor cores, if `kind` does in this one.
    """
    if classify_op(op) != "products" or not uses_tensor_cores(kind, dtype):
        return ()
    alike = (dtype, *list_equally_fast_types(other, dtype))
    return tuple(
        t for t in TENSOR_TYPES if t not in alike and uses_tensor_cores(other, t)
    )


def measure_distance(
    first: str, second: str, op: str, dtype: str, its: str = ""
) -> float:
    """Return how unlike two GPUs are for an op, 0 for two of the same.

    Args:
        first: The kind of one GPU.
        second: The kind of the other.
        op: The op.
        dtype: The type of the op on the first.
        its: The type on the second; empty: the same.
    """
    a = get_figures(first)
    b = get_figures(second)
    years = 0.05 * abs(a.year - b.year)
    if FAMILY.get(op, VECTOR) == VECTOR:
        return years + 0.2 * abs(np.log(a.bandwidth / b.bandwidth))
    density = np.log(a.flops(dtype) / a.power) - np.log(b.flops(its or dtype) / b.power)
    return float(years + abs(density))
