"""``Rows``: ops by kind, type and sizes, with measured seconds or none yet; and their file format.

Sizes mean by family of ops:

| family | batch | m, n, k | window |
|---|---|---|---|
| matmul | 1 | [m, k] times [k, n] | |
| bmm | products | of each | |
| convolution | groups | pixels of the output, filters, channels x window of a group | filter's |
| attention | batch x heads | queries, keys, width of a head | 1 if causal |
| vector | | rows, length of a row | a pool's, 0 of most |

Operations are 2 batch m n k (attention 4, causal 2, backward 2.5 times that), none for vectors,
which their bytes bound. Attention takes an exponential of every score besides, by other units. A
table on disk is a CSV file with one line a measured op,

    kind,op,dtype,batch,m,n,k,window,bytes,seconds

gzipped if its name ends in `.gz`. Seconds are of the kernel, without the launch that events around
it would count.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray
from gnnplace.errors import FormatError, InputError, join_faults
from gnnplace.files import csv_text
from gnnplace.problem import get_figures

Names = NDArray[np.str_]
SIZES = ("batch", "m", "n", "k", "window")
COLUMNS = ("kind", "op", "dtype", *SIZES, "bytes", "seconds")
FAMILY: Mapping[str, str] = {
    "matmul": "matmul",
    "matmul.backward": "matmul",
    "bmm": "bmm",
    "bmm.backward": "bmm",
    "convolution": "convolution",
    "convolution.input": "convolution",
    "convolution.weight": "convolution",
    "attention": "attention",
    "attention_backward": "attention",
}
VECTOR = "vector"
PRODUCTS = ("matmul", "bmm", "convolution", "attention")
SHORTEST = 2e-6  # seconds of a kernel that has next to nothing to do
TILE, SMALL = 32, 128  # sizes of products are whole tiles or not; small m are never
ODD = 2.0  # octaves between products of whole tiles and others, which take longer
ROW_WEIGHT = 0.25  # an octave of a row's length, in octaves of bytes


@dataclass(frozen=True)
class Record:
    """One measured op."""

    op: str
    dtype: str
    seconds: float
    batch: int = 1
    m: int = 1
    n: int = 1
    k: int = 1
    window: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Rows:
    """Ops as arrays.

    Attributes:
        op: Names: `matmul`, `bmm`, `convolution`, `attention` and their gradients, else what ATen
            calls it, without its overload. [rows]
        dtype: Types, as `Gpu.rates` names them. [rows]
        sizes: Batch, m, n, k, window. [rows, 5]
        bytes: Read and written. [rows]
        seconds: Measured; zeros where they are asked for. [rows]
    """

    op: Names
    dtype: Names
    sizes: FloatArray
    bytes: FloatArray
    seconds: FloatArray

    def __len__(self) -> int:
        return len(self.op)

    def take(self, index: NDArray[np.intp] | BoolArray) -> Rows:
        """Return some of the rows."""
        return Rows(
            self.op[index],
            self.dtype[index],
            self.sizes[index],
            self.bytes[index],
            self.seconds[index],
        )

    @cached_property
    def family(self) -> Names:
        """Return the family of each op. [rows]"""
        names, inverse = np.unique(self.op, return_inverse=True)
        return np.array(
            [FAMILY.get(str(name), VECTOR) for name in names], dtype=np.str_
        )[inverse]

    @cached_property
    def flops(self) -> FloatArray:
        """Return floating-point operations. [rows]"""
        batch, m, n, k, window = self.sizes.T
        per_element = np.where(self.family == VECTOR, 0.0, 2.0)
        attends = self.family == "attention"
        per_element = np.where(attends, np.where(window > 0, 2.0, 4.0), per_element)
        per_element = np.where(
            self.op == "attention_backward", 2.5 * per_element, per_element
        )
        return np.asarray(per_element * batch * m * n * k)

    @cached_property
    def exponentials(self) -> FloatArray:
        """Return the exponentials of attention, one a score; 0 of other ops. [rows]"""
        batch, m, n, _, window = self.sizes.T
        visible = np.where(window > 0, 0.5, 1.0)
        return np.asarray(
            np.where(self.family == "attention", visible * batch * m * n, 0.0)
        )

    @property
    def _stride(self) -> FloatArray:
        """Return the octaves of a convolution's pixels read over those written. [rows]

        They follow from its bytes.
        """
        batch, m, n, k, window = np.maximum(self.sizes.T, 1.0)
        width = np.where(np.isin(self.dtype, ("float16", "bfloat16")), 2.0, 4.0)
        read = self.bytes / width - batch * n * (k + m)
        ratio = read / (batch * m * k / window)
        return np.asarray(np.log2(np.clip(ratio, 1.0, 16.0)))

    @cached_property
    def at(self) -> FloatArray:
        """Return coordinates in octaves, in which near ops of one family take alike. [rows, 6]"""
        batch, m, n, k, window = np.log2(np.maximum(self.sizes, 1.0)).T
        causal = 4.0 * (self.sizes[:, 4] > 0)
        zero = np.zeros(len(self))
        vector = [
            np.log2(np.maximum(self.bytes, 1.0)),
            ROW_WEIGHT * n,
            window,
            zero,
            zero,
            zero,
        ]
        by_family = {
            "attention": [batch, m, k, causal, zero, zero],
            "convolution": [m, n, k, window, batch, self._stride],
        }
        is_partial_tile = (self.sizes[:, 1:4] % TILE > 0) & (
            self.sizes[:, 1:4] >= [SMALL, 1, 1]
        )
        result = np.stack(
            [m, n, k, batch, ODD * is_partial_tile.any(axis=1), zero], axis=1
        )
        for family, columns in {**by_family, VECTOR: vector}.items():
            of_family = self.family == family
            result[of_family] = np.stack(columns, axis=1)[of_family]
        return result


def from_records(records: Iterable[Record]) -> Rows:
    """Return the records with finite, positive seconds as rows."""
    measured = [row for row in records if np.isfinite(row.seconds) and row.seconds > 0]
    return Rows(
        np.array([row.op for row in measured], dtype=np.str_),
        np.array([row.dtype for row in measured], dtype=np.str_),
        np.array(
            [[getattr(r, s) for s in SIZES] for r in measured], dtype=float
        ).reshape(-1, 5),
        np.array([row.bytes for row in measured], dtype=np.float64),
        np.array([row.seconds for row in measured], dtype=np.float64),
    )


def join_rows(parts: Iterable[Rows]) -> Rows:
    """Return several tables of rows as one, in order."""
    tables = list(parts)
    return Rows(
        np.concatenate([p.op for p in tables]),
        np.concatenate([p.dtype for p in tables]),
        np.concatenate([p.sizes for p in tables]),
        np.concatenate([p.bytes for p in tables]),
        np.concatenate([p.seconds for p in tables]),
    )


def roofline(kind: str, rows: Rows) -> FloatArray:
    """Return the seconds of kernels by the roofline of a kind.

    The larger of the bounds of arithmetic and of bytes is added to the least of any kernel.

    A tile's exponentials come between its two products, so that both take their time.

    Raises:
        InputError: No figures of the kind are known.
    """
    gpu = get_figures(kind)
    names, inverse = np.unique(rows.dtype, return_inverse=True)
    rates = np.array([gpu.flops(str(name)) for name in names])[inverse]
    busy = rows.flops / rates + rows.exponentials / gpu.exponentials
    return np.asarray(SHORTEST + np.maximum(busy, rows.bytes / gpu.bandwidth))


def read_rows(path: Path) -> dict[str, Rows]:
    """Read a table: rows by kind of device.

    Raises:
        InputError: There is no such file.
        FormatError: The file is malformed; the message names it, the line and the fault.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    lines = csv.reader(io.StringIO(text))
    if tuple(next(lines, ())) != COLUMNS:
        raise FormatError(f"{path}: line 1: the columns must be {','.join(COLUMNS)}")
    fields = list(lines)
    if faults := [
        f"line {number}: a kind, an op, its type and 7 numbers are needed, none negative and "
        "seconds above 0"
        for number, line in enumerate(fields, 2)
        if len(line) != len(COLUMNS) or not _is_measured(line)
    ]:
        raise join_faults(FormatError, faults, str(path))
    if not fields:
        raise FormatError(f"{path}: has no rows; write one line a measured op")
    columns = list(zip(*fields, strict=True))
    numbers = np.array(columns[3:], dtype=np.float64)
    kinds, op, dtype = (np.array(columns[i], dtype=np.str_) for i in range(3))
    rows = Rows(op, dtype, numbers[:5].T.copy(), numbers[5], numbers[6])
    return {str(kind): rows.take(kinds == kind) for kind in np.unique(kinds)}


def _is_measured(line: list[str]) -> bool:
    try:
        numbers = [float(text) for text in line[3:]]
    except ValueError:
        return False
    return all(0 <= number < np.inf for number in numbers) and numbers[-1] > 0


def write_rows(path: Path, tables: Mapping[str, Rows]) -> None:
    """Write rows by kind of device, as the module's text says. Equal rows give equal bytes.

    Lines are sorted by kind, op, type and sizes.
    """
    lines: list[tuple[Any, ...]] = [COLUMNS]
    for kind, rows in sorted(tables.items()):
        # The last key of a lexsort counts first, so that keys come in reverse.
        sizes_in_reverse = rows.sizes.T[::-1]
        for i in np.lexsort((*sizes_in_reverse, rows.dtype, rows.op)):
            sizes = [int(size) for size in rows.sizes[i]]
            seconds = f"{rows.seconds[i]:.4g}"
            num_bytes = int(rows.bytes[i])
            lines.append((kind, rows.op[i], rows.dtype[i], *sizes, num_bytes, seconds))
    data = csv_text(lines).encode()
    if path.suffix == ".gz":
        # Without the time of writing, which gzip would store.
        data = gzip.compress(data, compresslevel=9, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
