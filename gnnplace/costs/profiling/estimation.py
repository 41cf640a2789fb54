"""Times of a program's ops on a device that is not here: kernels from tables, and floors.

Estimated op times: the roofline (Williams, Waterman and Patterson, CACM 2009).

    time = launch + max(operations / peak, bytes read and written / bandwidth)

Operations are counted for matrix products, convolutions and attention by the formulas of
`torch.utils.flop_counter`; all else is bound by memory. A view costs the launch on a CPU and
nothing on a GPU, whose host runs ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import flop_registry

from gnnplace.arrays import FloatArray
from gnnplace.costs.floors import COMPILED, EAGER, NO_FLOOR, with_floor
from gnnplace.costs.prediction import (
    PROVENANCES,
    OpEstimates,
    find_misaligned,
    predict_in_step,
)
from gnnplace.costs.profiling.description import Description, describe
from gnnplace.costs.profiling.fusion import find_fused_groups
from gnnplace.costs.tables import CostTables, load_shipped_tables
from gnnplace.problem import find_kind, get_figures
from gnnplace.tracing import (
    FORWARD,
    Program,
    ProgramOp,
    Ref,
    ValueInfo,
    attention,
    attention_backward,
    map_refs,
)

# A module up to its first number: "layers.3".
LAYER = re.compile(r"((?:.*?\.)??\d+)(?:\.|$)")
HERE = "measured here"
VIEW_SOURCE = "view"


@dataclass(frozen=True, eq=False)
class KindTimes:
    """Times of a program's ops on a kind.

    Attributes:
        seconds: Seconds of each op. [ops]
        measured: Whether they were measured on a device of this machine.
        error: The expected deviation of their log; NaN where nothing is known. [ops]
        source: Where each is from, in words. [ops]
        shares: Shares of time and of ops that each provenance has, if they were not measured here.
        misaligned: Ops that are slow since a size is no multiple of 8.
    """

    seconds: FloatArray
    measured: bool
    error: FloatArray
    source: tuple[str, ...]
    shares: dict[str, tuple[float, float]] = field(default_factory=dict)
    misaligned: tuple[int, ...] = ()

    def __str__(self) -> str:
        phrases = [
            f"{name} {time:.0%} of time, {ops:.0%} of ops"
            for name, (time, ops) in self.shares.items()
        ]
        return "; ".join(phrases)


def load_measured_times(seconds: FloatArray) -> KindTimes:
    """Return times that were measured on this machine."""
    return KindTimes(
        seconds, True, np.full(len(seconds), np.nan), (HERE,) * len(seconds)
    )


def estimate_times(
    program: Program,
    kind: str,
    tables: CostTables | None = None,
    *,
    compiled: bool = False,
    cuda_graphs: bool = False,
) -> KindTimes:
    """Estimate the time of every op on a kind of device, and say where it is from.

    Launches and the host add what they take of eager PyTorch on a GPU, nothing on a CPU, whose
    tables count what ops take as they are called.
    Products of float32 use TF32 where `torch.set_float32_matmul_precision` allows it.

    Args:
        program: Its values need no tensors.
        kind: The kind of device, by any of its names.
        tables: The tables to answer from; those that are shipped by default.
        compiled: Whether the step runs under `torch.compile`: a fused op stands where its first op
            is, and no host is waited for.
        cuda_graphs: Whether launches are captured: nothing is waited for, and there are no gaps.

    Raises:
        InputError: No figures of the kind are known.
    """
    description = describe(program)
    cost_tables = tables or load_shipped_tables()
    tf32: tuple[str, ...] = ("convolution",)
    if torch.get_float32_matmul_precision() != "highest":
        tf32 = ("convolution", "matmul", "bmm")
    estimate = predict_in_step(description.distinct, kind, cost_tables, tf32=tf32)
    estimate = estimate.take(description.same)
    count = len(program.ops)
    owner = description.owner
    kernel = np.bincount(owner, estimate.seconds, count).astype(np.float64)
    error = np.bincount(owner, estimate.error * estimate.seconds, count) / np.maximum(
        kernel, 1e-30
    )
    view = description.view
    floor = EAGER
    if compiled:
        groups, share = find_fused_groups(program)
        kernel = np.bincount(groups, kernel * share, count).astype(np.float64)
        view = view | (groups != np.arange(count))
        floor = COMPILED
    if cuda_graphs:
        floor = NO_FLOOR
    if find_kind(kind) == "cpu":
        floor = NO_FLOOR
        view = np.zeros(count, dtype=np.bool_)
    # No line of the user's calls ops of backward passes and updates.
    late = np.array([op.phase != FORWARD for op in program.ops], dtype=np.bool_)
    seconds = with_floor(kernel, view, late, _layers(program), floor)
    return KindTimes(
        seconds,
        False,
        error,
        _sources(description, estimate, count),
        _shares(description, estimate, seconds),
        tuple(owner[find_misaligned(description.distinct)[description.same]].tolist()),
    )


def _layers(program: Program) -> NDArray[np.intp]:
    """Return the number of each op's layer and phase.

    Ops in no numbered module are one layer for each phase.
    """
    numbers: dict[tuple[str, str], int] = {}
    layer_of: dict[tuple[str | None, str], int] = {}
    layers = []
    for op in program.ops:
        key = (op.module, op.phase)
        layer = layer_of.get(key)
        if layer is None:
            match = LAYER.match(op.module or "")
            named = (match[1] if match else "", op.phase)
            layer = layer_of[key] = numbers.setdefault(named, len(numbers))
        layers.append(layer)
    return np.array(layers, dtype=np.intp)


def _sources(
    description: Description, estimate: OpEstimates, count: int
) -> tuple[str, ...]:
    """Return where each op's seconds are from; the longer kernel's source for an op of two."""
    order = np.argsort(estimate.seconds, kind="stable")
    longest_kernel = np.zeros(count, dtype=np.intp)
    longest_kernel[description.owner[order]] = order
    named = np.where(description.view, VIEW_SOURCE, estimate.source[longest_kernel])
    return tuple(named.tolist())


def _shares(
    found: Description, estimate: OpEstimates, seconds: FloatArray
) -> dict[str, tuple[float, float]]:
    """Return, by provenance, the shares of time and of ops with kernels.

    An op of two kernels counts where its first is.
    """
    first = np.zeros(len(seconds), dtype=np.int8)
    first[found.owner[::-1]] = estimate.provenance[::-1]
    kernels = np.flatnonzero(~found.view)
    if not kernels.size:
        return {}
    time = np.bincount(first[kernels], seconds[kernels], len(PROVENANCES))
    ops = np.bincount(first[kernels], minlength=len(PROVENANCES))
    return {
        name: (float(time[i] / max(time.sum(), 1e-30)), float(ops[i] / ops.sum()))
        for i, name in enumerate(PROVENANCES)
    }


def estimate_ops(program: Program, kind: str) -> FloatArray:
    """Return the estimated seconds of every op on a device kind.

    Args:
        program: Its values need no tensors.
        kind: A device kind of `gnnplace.problem.cluster.gpus`.

    Returns:
        Seconds of each op. [num_ops]

    Raises:
        InputError: No figures of the kind are known.
    """
    of_kind = get_figures(kind)
    seconds = np.full(len(program.ops), of_kind.launch)
    for i, op in enumerate(program.ops):
        if op.view:
            seconds[i] = of_kind.launch if kind == "cpu" else 0.0
            continue
        rate = of_kind.flops(str(_dtype(program, op)).removeprefix("torch."))
        seconds[i] += max(
            op_flops(program, op) / rate, op_bytes(program, op) / of_kind.bandwidth
        )
    return seconds


def op_bytes(program: Program, op: ProgramOp) -> float:
    """Return the bytes that an op reads and writes.

    An op that changes its arguments writes them too.
    """
    names = [*op.reads, *(r for r in op.results if r is not None)]
    return float(sum(program.values[name].bytes for name in names))


def op_flops(program: Program, op: ProgramOp) -> float:
    """Return floating-point operations of an op; 0 where they don't matter beside its bytes."""
    packet = getattr(op.target, "overloadpacket", None)
    formula: Any = _ATTENTION.get(op.target) or flop_registry.get(packet)
    if formula is None:
        return 0.0
    args = map_refs(op.args, lambda ref: _meta(program.values[ref.name]))
    kwargs = map_refs(op.kwargs, lambda ref: _meta(program.values[ref.name]))
    results = tuple(_meta(program.values[r]) if r else None for r in op.results)
    if packet is torch.ops.aten.convolution_backward:
        # The shapes of both gradients, whether they are read or not.
        results = (args[1], args[2], None)
    return float(
        formula(*args, **kwargs, out_val=results if len(results) > 1 else results[0])
    )


def _attention_flops(
    query: torch.Tensor, key: torch.Tensor, *_: object, **__: object
) -> int:
    """Return the operations of attention forward: two products.

    They are 4 * batch * heads * length of queries * length of keys * width.
    """
    batch, heads, length, width = query.shape
    return 4 * batch * heads * length * key.shape[2] * width


def _attention_backward_flops(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: object, **__: object
) -> int:
    """Return the operations of attention backward: five products.

    One is computed again; two are for each of the two of the forward pass.
    """
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
