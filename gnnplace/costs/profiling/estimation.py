"""Times of a program's ops on a device that is not here: kernels from tables, and floors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray
from gnnplace.costs.floors import EAGER, NOTHING, Floor, with_floor
from gnnplace.costs.prediction import PROVENANCES, OpEstimates, misaligned, predict
from gnnplace.costs.profiling.description import Description, describe
from gnnplace.costs.tables import CostTables, shipped
from gnnplace.problem.cluster.gpus import known_kind
from gnnplace.tracing.program import FORWARD, Program

LAYER = re.compile(r"((?:.*?\.)??\d+)(?:\.|$)")  # a module up to its first number: "layers.3"
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
        shares: Of time and of ops that each provenance has, if they were not measured here.
        misaligned: Ops that are slow since a size is no multiple of 8.
    """

    seconds: FloatArray
    measured: bool
    error: FloatArray
    source: tuple[str, ...]
    shares: dict[str, tuple[float, float]] = field(default_factory=dict)
    misaligned: tuple[int, ...] = ()

    def __str__(self) -> str:
        told = [
            f"{name} {time:.0%} of time, {ops:.0%} of ops"
            for name, (time, ops) in self.shares.items()
        ]
        return "; ".join(told)


def measured_times(seconds: FloatArray) -> KindTimes:
    """Times that were measured on this machine."""
    return KindTimes(seconds, True, np.full(len(seconds), np.nan), (HERE,) * len(seconds))


def estimated_times(
    program: Program, kind: str, tables: CostTables | None = None, *, floor: Floor | None = None
) -> KindTimes:
    """Times of every op on a kind of device, eager, and where they are from.

    Products of float32 use TF32 where `torch.set_float32_matmul_precision` allows it.

    Args:
        program: Its values need no tensors.
        kind: The kind of device, by any of its names.
        tables: The tables to answer from; those that are shipped by default.
        floor: What launches and the host add; of eager PyTorch on a GPU, nothing on a CPU, whose
            tables count what ops take as they are called.

    Raises:
        InputError: no figures of the kind are known.
    """
    found = describe(program)
    estimate = predict(found.distinct, kind, tables or shipped(), tf32=_tf32()).take(found.same)
    count, owner = len(program.ops), found.owner
    kernel = np.bincount(owner, estimate.seconds, count).astype(np.float64)
    error = np.bincount(owner, estimate.error * estimate.seconds, count) / np.maximum(kernel, 1e-30)
    view = found.view
    if floor is None:
        floor = EAGER
    if known_kind(kind) == "cpu":
        floor, view = NOTHING, np.zeros(count, dtype=np.bool_)
    seconds = with_floor(kernel, view, _late(program), _layers(program), floor)
    return KindTimes(
        seconds,
        False,
        error,
        _sources(found, estimate, count),
        _shares(found, estimate, seconds),
        tuple(owner[misaligned(found.distinct)[found.same]].tolist()),
    )


def _tf32() -> tuple[str, ...]:
    """Families of ops that may compute in TF32, as PyTorch is set."""
    products = torch.get_float32_matmul_precision() != "highest"
    return ("convolution", "matmul", "bmm") if products else ("convolution",)


def _late(program: Program) -> BoolArray:
    """Ops that no line of Python calls: backward and update."""
    return np.array([op.phase != FORWARD for op in program.ops], dtype=np.bool_)


def _layers(program: Program) -> NDArray[np.intp]:
    """Layer and phase of each op; what is in no numbered module is a layer of its own."""
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


def _sources(found: Description, estimate: OpEstimates, count: int) -> tuple[str, ...]:
    """Of an op of two kernels that of the longer one."""
    order = np.argsort(estimate.seconds, kind="stable")
    chosen = np.zeros(count, dtype=np.intp)
    chosen[found.owner[order]] = order
    named = np.where(found.view, VIEW_SOURCE, estimate.source[chosen])
    return tuple(named.tolist())


def _shares(
    found: Description, estimate: OpEstimates, seconds: FloatArray
) -> dict[str, tuple[float, float]]:
    """Of time and of ops with kernels; an op of two kernels counts where its first is."""
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
