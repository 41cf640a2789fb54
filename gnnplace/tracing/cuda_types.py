"""Types that values have on a GPU alone: statistics of norms, whose sums are kept in float32 there.

A program captured on a CPU says what its ops make on a CPU. Kernels for CUDA make the mean and the
inverse deviation of a half-precision input in float32 (`at::toAccumulateType`), and the backward
pass takes no others, so a message that carries them from one GPU to another must be of that type.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gnnplace.tracing.program import Program, ValueInfo

aten = torch.ops.aten
STATISTICS = {
    aten.native_layer_norm.default: (1, 2),
    aten._fused_rms_norm.default: (1,),
    aten.native_batch_norm.default: (1, 2),
    aten._native_batch_norm_legit.default: (1, 2),
    aten._native_batch_norm_legit.no_stats: (1, 2),
    aten._native_batch_norm_legit_functional.default: (1, 2),
}
"""Ops and which of their results are statistics."""
HALVES = (torch.bfloat16, torch.float16)


def on_cuda(program: Program) -> Program:
    """The program with its values as they are on GPUs; the ops are the same."""
    values = dict(program.values)
    for op in program.ops:
        for i in STATISTICS.get(op.target, ()):  # type: ignore[call-overload]
            name = op.results[i]
            if name is not None and values[name].dtype in HALVES:
                values[name] = _single(values[name])
    return replace(program, values=values)


def _single(info: ValueInfo) -> ValueInfo:
    """The same in float32."""
    itemsize = torch.float32.itemsize
    return replace(info, dtype=torch.float32, bytes=info.bytes // info.dtype.itemsize * itemsize)
