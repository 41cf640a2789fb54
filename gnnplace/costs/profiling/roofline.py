"""Estimated op times: the roofline (Williams, Waterman and Patterson, CACM 2009).

    time = launch + max(operations / peak, bytes read and written / bandwidth)

Operations are counted for matrix products, convolutions and attention by the formulas of
`torch.utils.flop_counter`; all else is bound by memory. A view costs the launch on a CPU and
nothing on a GPU, whose host runs ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import flop_registry

from gnnplace.arrays import FloatArray
from gnnplace.problem.cluster.gpus import figures
from gnnplace.tracing.attention import attention, attention_backward
from gnnplace.tracing.program import Program, ProgramOp, Ref, ValueInfo, map_refs


def estimate_ops(program: Program, kind: str) -> FloatArray:
    """Estimated seconds of every op on a device kind.

    Args:
        program: Its values need no tensors.
        kind: A device kind of `gnnplace.problem.cluster.gpus`.

    Returns:
        Seconds of each op. [num_ops]

    Raises:
        InputError: no figures of the kind are known.
    """
    of_kind = figures(kind)
    seconds = np.full(len(program.ops), of_kind.launch)
    for i, op in enumerate(program.ops):
        if op.view:
            seconds[i] = of_kind.launch if kind == "cpu" else 0.0
            continue
        rate = of_kind.flops(str(_dtype(program, op)).removeprefix("torch."))
        seconds[i] += max(op_flops(program, op) / rate, op_bytes(program, op) / of_kind.bandwidth)
    return seconds


def op_bytes(program: Program, op: ProgramOp) -> float:
    """Bytes that an op reads and writes; an op that changes its arguments writes them too."""
    names = [*op.reads, *(r for r in op.results if r is not None)]
    return float(sum(program.values[name].bytes for name in names))


def op_flops(program: Program, op: ProgramOp) -> float:
    """Floating-point operations of an op; 0 where they don't matter beside its bytes."""
    packet = getattr(op.target, "overloadpacket", None)
    formula: Any = _ATTENTION.get(op.target) or flop_registry.get(packet)
    if formula is None:
        return 0.0
    args = map_refs(op.args, lambda ref: _meta(program.values[ref.name]))
    kwargs = map_refs(op.kwargs, lambda ref: _meta(program.values[ref.name]))
    results = tuple(_meta(program.values[r]) if r else None for r in op.results)
    if packet is torch.ops.aten.convolution_backward:
        results = (args[1], args[2], None)  # shapes of both gradients, whether read or not
    return float(formula(*args, **kwargs, out_val=results if len(results) > 1 else results[0]))


def _attention_flops(query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> int:
    """Two products of queries, keys and values: 2 * 2 * batch * heads * length^2 * width."""
    batch, heads, length, width = query.shape
    return 4 * batch * heads * length * key.shape[2] * width


def _attention_backward_flops(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any
) -> int:
    """Five products: one is computed again, two for each of the two of the forward pass."""
    return _attention_flops(query, key) * 5 // 2


_ATTENTION: Mapping[Any, Callable[..., int]] = {
    attention: _attention_flops,
    attention_backward: _attention_backward_flops,
}


def _meta(info: ValueInfo) -> torch.Tensor:
    return torch.empty_strided(info.shape, info.stride, dtype=info.dtype, device="meta")


def _dtype(program: Program, op: ProgramOp) -> torch.dtype:
    for ref in op.args:
        if isinstance(ref, Ref) and program.values[ref.name].dtype.is_floating_point:
            return program.values[ref.name].dtype
    return torch.float32
