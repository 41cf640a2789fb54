"""Seconds of ops on a kind of device, by the source of least expected error.

    t(x) = roofline(x) * exp(f(x) + b),    f a surface of log ratios, b the bias of the relation

The candidates for an op, in this order: its own table on that kind (table); the table of a related
op, or of another type, on that kind, or one of these on the two most similar GPUs (neighbour); the
roofline times the mean ratio of ops of its group (roofline). Each has an expected error,

    e = hypot(s (1 + d / 4), r),

with s the error of points predicted by the others, d the octaves to the nearest points beyond the
usual distance between points, and r the error of the relation. The least error wins. An error is a
deviation of the log: nine in ten measured times are within exp(+-1.645 e). The constants of all
candidates are measured by `gnnplace.costs.calibration`, none on whole steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray
from gnnplace.costs.frameworks.constants import load_hardware_constants
from gnnplace.costs.kin import (
    OTHER_TYPES,
    classify_op,
    find_kin,
    get_error_group,
    list_equally_fast_types,
    measure_distance,
    tensor_types,
)
from gnnplace.costs.rows import Names, Rows, roofline
from gnnplace.costs.tables import CostTables, load_shipped_tables
from gnnplace.problem import FLOAT32, find_kind, get_figures

TABLE = "table"
NEIGHBOUR = "neighbour"
ROOFLINE = "roofline"
PROVENANCES = (TABLE, NEIGHBOUR, ROOFLINE)
GPUS_TRIED = 2
CLEARLY = 1.3  # times less than a neighbour's the roofline's error must be
FAR = 4.0  # octaves that double the error
MISALIGNED = 3.0  # products in half precision with a size that is no multiple of 8
MULTIPLE = 8
# Error from one type on tensor cores to another: assumed, no op has both.
TENSOR_STEP = 0.3


@dataclass(frozen=True)
class Relation:
    """A table that may answer for an op.

    Attributes:
        kind: The kind of device whose table it is.
        op: The op that the table is of.
        dtype: The type that the table is of.
        bias: The log that is added to the table's log ratios.
        error: The error of the relation, as a deviation of the log.
        provenance: What an answer from the table counts as.
    """

    kind: str
    op: str
    dtype: str
    bias: float
    error: float
    provenance: str

    @property
    def source(self) -> str:
        """Return where the relation's seconds come from, in words."""
        return f"{self.provenance}: {self.kind} {self.op} {self.dtype}"


@dataclass(frozen=True, eq=False)
class OpEstimates:
    """Times of ops.

    Attributes:
        seconds: Seconds of each kernel, without its launch. [rows]
        error: The expected deviation of the log of the seconds. [rows]
        provenance: Index into `PROVENANCES`. [rows]
        source: Where the seconds come from, in words. [rows]
    """

    seconds: FloatArray
    error: FloatArray
    provenance: NDArray[np.int8]
    source: Names

    def take(self, index: NDArray[np.intp]) -> OpEstimates:
        """Return the estimates of some of the ops, or of one several times."""
        return OpEstimates(
            self.seconds[index],
            self.error[index],
            self.provenance[index],
            self.source[index],
        )


def predict(
    rows: Rows, kind: str, tables: CostTables, *, tf32: Sequence[str] = ("convolution",)
) -> OpEstimates:
    """Predict the times of ops on a kind of device.

    Args:
        rows: The ops; their seconds are not read.
        kind: The kind of device, by any of its names.
        tables: The tables to answer from.
        tf32: Families of ops that may compute in TF32 where their values are float32; PyTorch's
            default.

    Raises:
        InputError: No figures of the kind are known.
    """
    kind = find_kind(kind) or kind
    first, row_of = _distinct(rows)
    distinct = rows.take(first)
    estimates = _predict(distinct, kind, tables)
    tensor = with_computed_types(distinct, kind, tf32)
    if not np.array_equal(tensor.dtype, distinct.dtype):
        estimates = _faster(estimates, _predict(tensor, kind, tables))
    return estimates.take(row_of)


def predict_in_step(
    rows: Rows, kind: str, tables: CostTables, *, tf32: Sequence[str] = ("convolution",)
) -> OpEstimates:
    """Predict the times of ops in a step of many; arguments are those of `predict`.

    The shipped kernels of some GPUs were measured alone, again and again, at the clock that the
    power limit leaves then: products of float32 are faster in a step by the hardware's constant
    `alone`. Tables of one's own stay as they were measured.
    """
    estimates = predict(rows, kind, tables, tf32=tf32)
    kind = find_kind(kind) or kind
    alone = load_hardware_constants().constants.get(f"alone.{kind}")
    if alone is None or tables.rows.get(kind) is not load_shipped_tables().rows[kind]:
        return estimates
    products = np.isin(rows.family, ("matmul", "bmm")) & (rows.dtype == FLOAT32)
    speedup = np.where(products, alone.value, 1.0)
    return replace(estimates, seconds=estimates.seconds / speedup)


def _faster(one: OpEstimates, two: OpEstimates) -> OpEstimates:
    """Return the shorter estimate of each op.

    A library that may take either type takes the faster kernel.
    """
    first = one.seconds <= two.seconds
    provenance = np.where(first, one.provenance, two.provenance)
    return OpEstimates(
        seconds=np.where(first, one.seconds, two.seconds),
        error=np.where(first, one.error, two.error),
        provenance=provenance.astype(np.int8),
        source=np.where(first, one.source, two.source),
    )


def _distinct(rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first of each op of the same sizes, and which of these every row is.

    Layers repeat, so that few are distinct.
    """
    numbers: dict[tuple[object, ...], int] = {}
    columns = (
        rows.op.tolist(),
        rows.dtype.tolist(),
        *rows.sizes.T.tolist(),
        rows.bytes.tolist(),
    )
    same = [numbers.setdefault(key, len(numbers)) for key in zip(*columns, strict=True)]
    number = np.array(same, dtype=np.intp)
    first = np.zeros(len(numbers), dtype=np.intp)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    return first, number


def _predict(rows: Rows, kind: str, tables: CostTables) -> OpEstimates:
    """Return the estimates of rows that are all different, on a kind by its own name."""
    count = len(rows)
    log = np.zeros(count)
    error = np.full(count, np.inf)
    provenance = np.zeros(count, dtype=np.int8)
    source = np.zeros(count, dtype=np.intp)
    base = roofline(kind, rows)
    at = rows.at
    sources: list[str] = []
    keys, inverse = np.unique(
        np.stack([rows.op, rows.dtype]), axis=1, return_inverse=True
    )
    for number, (op, dtype) in enumerate(keys.T.tolist()):
        index = np.flatnonzero(inverse.ravel() == number)
        key = (kind, op, dtype)
        if key not in tables.candidates:
            tables.candidates[key] = list(candidates(tables, kind, op, dtype))
        for candidate in tables.candidates[key]:
            # The candidate with the least expected error wins; the roofline by a clear distance.
            open_ = index[error[index] > candidate.error]
            if not open_.size:
                continue
            ratios, promised = answer(tables, candidate, at[open_])
            if candidate.provenance == ROOFLINE:
                worse = CLEARLY
            else:
                worse = 1.0
            better = promised * worse < error[open_]
            won = open_[better]
            log[won], error[won] = ratios[better], promised[better]
            provenance[won] = PROVENANCES.index(candidate.provenance)
            source[won] = len(sources)
            sources.append(candidate.source)
    # A misaligned product takes MISALIGNED times as long; how long exactly is uncertain.
    slow = find_misaligned(rows)
    seconds = base * np.exp(log) * np.where(slow, MISALIGNED, 1.0)
    error = np.where(slow, np.hypot(error, 0.4), error)
    return OpEstimates(
        seconds, error, provenance, np.array(sources, dtype=np.str_)[source]
    )


def with_computed_types(rows: Rows, kind: str, families: Sequence[str]) -> Rows:
    """Return rows with the type in which a kind may compute: TF32 in families of float32 ops."""
    gpu = get_figures(kind)
    if gpu.flops("tf32") <= gpu.flops(FLOAT32):
        return rows
    tensor = np.isin(rows.family, families) & (rows.dtype == FLOAT32)
    dtype = np.where(tensor, "tf32", rows.dtype).astype(np.str_)
    return Rows(rows.op, dtype, rows.sizes, rows.bytes, rows.seconds)


def find_misaligned(rows: Rows) -> BoolArray:
    """Return which rows are products in half precision whose n or k is no multiple of 8.

    They are about three times slower.
    """
    product = np.isin(rows.family, ("matmul", "bmm")) & np.isin(
        rows.dtype, ("float16", "bfloat16")
    )
    is_unaligned = (rows.sizes[:, 2] % MULTIPLE > 0) | (rows.sizes[:, 3] % MULTIPLE > 0)
    return np.asarray(product & is_unaligned & (rows.sizes[:, 1] >= MULTIPLE))


def answer(
    tables: CostTables, candidate: Relation, at: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return log ratios and expected errors of a candidate at places in octaves. [places] each"""
    if candidate.provenance == ROOFLINE:
        return np.full(len(at), candidate.bias), np.full(len(at), candidate.error)
    surface = tables.surface(candidate.kind, candidate.op, candidate.dtype)
    assert surface is not None
    ratios, distance = surface(at)
    local, usual = find_error_numbers(tables, candidate.kind, "local", candidate.op)
    beyond = np.maximum(distance - usual, 0.0)
    error = np.hypot(local * (1 + beyond / FAR), candidate.error)
    return ratios + candidate.bias, error


def find_error_numbers(
    tables: CostTables, kind: str, what: str, op: str
) -> tuple[float, float]:
    """Return the two numbers of a relation for an op.

    The first that is known holds: the op's own, its group's, its class's, or any op's.
    """
    errors = tables.list_errors(kind, what)
    first, second = next(
        errors[n]
        for n in (op, get_error_group(op), classify_op(op), "all")
        if n in errors
    )
    return first, second


def candidates(
    tables: CostTables, kind: str, op: str, dtype: str
) -> Iterator[Relation]:
    """Yield the tables that may answer for an op on a kind, then the roofline."""
    yield from _iterate_tables(tables, kind, kind, op, dtype, TABLE)
    other_kinds = [k for k in tables.rows if k != kind and "cpu" not in (k, kind)]
    for name in _line(op):
        for alike in (
            list_equally_fast_types,
            lambda k, t: tensor_types(kind, op, t, k),
        ):
            near = _nearest(tables, kind, other_kinds, (op, name), dtype, alike)
            for neighbour in near:
                yield from _iterate_tables(
                    tables, kind, neighbour, op, dtype, NEIGHBOUR, name
                )
            if near:
                break
    bias, error = find_error_numbers(tables, kind, "roofline", op)
    yield Relation(kind, op, dtype, bias, error, ROOFLINE)


def _nearest(
    tables: CostTables,
    kind: str,
    kinds: list[str],
    op: tuple[str, str],
    dtype: str,
    alike: Callable[[str, str], tuple[str, ...]],
) -> list[str]:
    """Return the GPUs with a table of the second op, in a type that is alike, that are nearest."""
    by_distance = []
    for candidate in kinds:
        alike_types = alike(candidate, dtype)
        types = [t for t in alike_types if tables.surface(candidate, op[1], t)]
        if types:
            distance = measure_distance(kind, candidate, op[0], dtype, types[0])
            by_distance.append((distance, candidate))
    return [candidate for _, candidate in sorted(by_distance)[:GPUS_TRIED]]


def _line(op: str) -> list[str]:
    """Return the names of an op, its kin, and its kin's kin."""
    line = [op]
    while find_kin(line[-1]):
        line.append(find_kin(line[-1]))
    return line


def _iterate_tables(
    tables: CostTables,
    kind: str,
    table_kind: str,
    op: str,
    dtype: str,
    best: str,
    only: str = "",
) -> Iterator[Relation]:
    """Yield the tables of one GPU: of the op, of its kin, in this type and in others."""
    bias = 0.0
    error = 0.0
    previous = op
    # Each step from an op to its kin adds a bias, and an error of its own.
    for name in _line(op):
        if name != op:
            errors = tables.list_errors(table_kind, "kin")
            step = (
                errors.get(f"{previous}<{name}")
                or errors.get(get_error_group(previous))
                or errors["all"]
            )
            bias = bias + step[0]
            error = float(np.hypot(error, step[1]))
        previous = name
        if only and name != only:
            continue
        same = list_equally_fast_types(table_kind, dtype)
        tensor = tensor_types(kind, op, dtype, table_kind)
        for t in dict.fromkeys((*same, *tensor, *OTHER_TYPES.get(dtype, ()))):
            if tables.surface(table_kind, name, t) is None:
                continue
            # The step from the asked type to the table's.
            if t in tensor:
                type_bias = 0.0
                type_error = TENSOR_STEP
            elif t in same:
                type_bias = 0.0
                type_error = 0.0
            else:
                type_bias, type_error = find_error_numbers(
                    tables, table_kind, "dtype", op
                )
            # The step from another GPU: the less alike, the larger.
            gpu_error = 0.0
            if table_kind != kind:
                base, slope = find_error_numbers(tables, kind, "gpu", op)
                dtypes = dtype, t if t in tensor else dtype
                gpu_error = base + slope * measure_distance(
                    kind, table_kind, op, *dtypes
                )
            total = float(np.hypot(np.hypot(error, gpu_error), type_error))
            is_direct = t in same and name == op
            yield Relation(
                kind=table_kind,
                op=name,
                dtype=t,
                bias=bias + type_bias,
                error=total,
                provenance=best if is_direct else NEIGHBOUR,
            )
