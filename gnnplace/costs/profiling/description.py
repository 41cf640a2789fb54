"""A program's ops as the cost tables see them: kind, sizes, type and bytes of each kernel.

An op is one row, or two where it is two kernels of a size (the gradients of a convolution). Bytes
are of what is really read and written: an expanded tensor once, of an embedding's table the rows
that are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray
from gnnplace.costs.rows import Rows
from gnnplace.tracing import (
    BACKWARD,
    Program,
    ProgramOp,
    Ref,
    ValueInfo,
    attention,
    attention_backward,
)

Values = Mapping[str, ValueInfo]
# Op, batch, m, n, k, window, bytes.
Kernel = tuple[str, int, int, int, int, int, int]
VIEW = "view"
DEPTHWISE = "depthwise"  # a convolution of each channel by itself
# Tensors of a parameter's size that the kernels of an update read and write, as
# `tracing.program.operations` computes it and `torch.optim` does, an op at a time.
PASSES = {"sgd_update": 3, "momentum_update": 8, "adam_update": 20, "adamw_update": 20}
POOLS = {  # which argument is the window
    "max_pool2d_with_indices": 1,
    "max_pool2d_with_indices_backward": 2,
    "avg_pool2d": 1,
    "avg_pool2d_backward": 2,
}
WRAPPERS = {"seeded": 1, "only": 0}
"""Position of the op's name in the arguments of functions of `tracing.operations`."""


@dataclass(frozen=True, eq=False)
class Description:
    """A program's ops as rows.

    Attributes:
        distinct: Rows that are all different, since layers repeat; none has seconds.
        same: The number of each kernel's row among these. [kernels]
        owner: The op of each kernel, of which an op has one or two. [kernels]
        view: Whether an op is a view. [ops]
    """

    distinct: Rows
    same: NDArray[np.intp]
    owner: NDArray[np.intp]
    view: BoolArray

    @cached_property
    def rows(self) -> Rows:
        """Return one row a kernel. [kernels]"""
        return self.distinct.take(self.same)


def describe(program: Program) -> Description:
    """Return every op of a program as rows of `gnnplace.costs`."""
    values = program.values
    numbers: dict[tuple[Kernel, str], int] = {}
    same: list[int] = []
    owner: list[int] = []
    for i, op in enumerate(program.ops):
        if op.view:
            dtype = "float32"
        else:
            dtype = _dtype(op, values)
        for kernel in find_kernels(op, values):
            same.append(numbers.setdefault((kernel, dtype), len(numbers)))
            owner.append(i)
    view = np.array([op.view for op in program.ops], dtype=np.bool_)
    of_kernel = np.array([same, owner], dtype=np.intp)
    return Description(make_rows(numbers), of_kernel[0], of_kernel[1], view)


def make_rows(kernels: Iterable[tuple[Kernel, str]]) -> Rows:
    """Return kernels, each with its type, as rows without seconds."""
    flat = [(*kernel, dtype) for kernel, dtype in kernels]
    columns: Sequence[Sequence[Any]] = list(zip(*flat, strict=True)) or [()] * 8
    return Rows(
        np.array(columns[0], dtype=np.str_),
        np.array(columns[7], dtype=np.str_),
        np.array(columns[1:6], dtype=np.float64).T.copy(),
        np.array(columns[6], dtype=np.float64),
        np.zeros(len(flat)),
    )


def find_kernels(op: ProgramOp, values: Values) -> list[Kernel]:
    """Return the kernels of one op."""
    if op.view:
        return [(VIEW, 1, 1, 1, 1, 0, 0)]
    name = op_name(op)
    shape_of = PRODUCTS.get(name)
    if shape_of is None:
        return [_vector(name, op, values)]
    return shape_of(op, values)


def op_name(op: ProgramOp) -> str:
    """Return ATen's name of an op without its overload.

    `attention` and optimizer updates have names of their own.
    """
    packet = getattr(op.target, "overloadpacket", None)
    if packet is not None:
        if packet not in _PACKETS:
            # An op in place takes what its counterpart takes.
            _PACKETS[packet] = packet.__name__.rstrip("_")
        return _PACKETS[packet]
    if op.target is attention:
        return "attention"
    if op.target is attention_backward:
        return "attention_backward"
    name = str(getattr(op.target, "__name__", op.target))
    if name in WRAPPERS:
        return str(op.args[WRAPPERS[name]]).split(".")[1]
    return name


_PACKETS: dict[Any, str] = {}


def _infos(op: ProgramOp, values: Values) -> Iterator[ValueInfo]:
    """Yield what is known of an op's positional tensors.

    Tensors that are given by keyword are masks and the like.
    """
    for arg in op.args:
        if isinstance(arg, Ref):
            yield values[arg.name]


def _count_moved_bytes(op: ProgramOp, values: Values) -> int:
    total = 0
    for name in (*op.reads, *op.results):
        if name is not None:
            info = values[name]
            total += info.occupied_bytes if 0 in info.stride else info.bytes
    return total


def _dtype(op: ProgramOp, values: Values) -> str:
    """Return the type of the first floating-point tensor among arguments, then results."""
    for name in (*op.reads, *op.results):
        if name is not None and (type_name := _type_name(values[name].dtype)):
            return type_name
    return "float32"


_TYPES: dict[torch.dtype, str] = {}


def _type_name(dtype: torch.dtype) -> str:
    """Return the name of a floating-point type, or an empty text for other types."""
    name = _TYPES.get(dtype)
    if name is None:
        if dtype.is_floating_point:
            name = str(dtype).removeprefix("torch.")
        else:
            name = ""
        _TYPES[dtype] = name
    return name


def make_vector_kernel(
    name: str, shape: Sequence[int], moved: int, window: int = 0
) -> Kernel:
    """Return a kernel that bytes bound; rows are along the last dimension."""
    length = shape[-1] if shape else 1
    return name, 1, prod(shape) // max(length, 1), length, 1, window, moved


def _vector(name: str, op: ProgramOp, values: Values) -> Kernel:
    num_bytes = _count_moved_bytes(op, values)
    if name in PASSES:
        num_bytes = PASSES[name] * values[op.reads[0]].bytes
    if name in ("embedding", "index", "gather", "index_select"):
        if op.results and op.results[0]:
            read = values[op.results[0]].bytes
        else:
            read = 0
        num_bytes = 2 * read  # the rows that are looked up, not the whole table
    return make_vector_kernel(name, _shape(op, values), num_bytes, _window(name, op))


def _window(name: str, op: ProgramOp) -> int:
    """Return the elements under a pool's window, 0 of other ops."""
    if name not in POOLS:
        return 0
    sizes = op.args[POOLS[name]]
    assert isinstance(sizes, (list, tuple))
    return int(prod(sizes)) ** (2 if len(sizes) == 1 else 1)


def _shape(op: ProgramOp, values: Values) -> tuple[int, ...]:
    """Return the shape of the first tensor that an op reads, else makes.

    Rows are along its last dimension.
    """
    for info in _infos(op, values):
        return info.shape
    for name in op.results:
        if name is not None:
            return values[name].shape
    return ()


def _product(op: ProgramOp, values: Values) -> list[Kernel]:
    """Return the kernel of mm, bmm, linear and the like, whose last two tensors are the factors."""
    *_, a, b = list(_infos(op, values))[: 3 if "add" in op_name(op) else 2]
    return [_find_product(op, values, a.shape, b.shape[-1])]


def _linear(op: ProgramOp, values: Values) -> list[Kernel]:
    a, weight, *_ = _infos(op, values)
    return [_find_product(op, values, a.shape, weight.shape[0])]


def _find_product(
    op: ProgramOp, values: Values, left: tuple[int, ...], n: int
) -> Kernel:
    if op.phase == BACKWARD:
        suffix = ".backward"
    else:
        suffix = ""
    if len(left) == 3 and "bmm" in op_name(op):
        batch = left[0]
    else:
        batch = 1
    m = prod(left[:-1]) // batch
    num_bytes = _count_moved_bytes(op, values)
    if batch == 1:
        return "matmul" + suffix, 1, m, n, left[-1], 0, num_bytes
    return "bmm" + suffix, batch, m, n, left[-1], 0, num_bytes


def _convolution(op: ProgramOp, values: Values) -> list[Kernel]:
    source, weight = list(_infos(op, values))[:2]
    out = values[op.results[0] or ""]
    # A transposed convolution is computed as a gradient, from the output to the input.
    image = source if op.args[6] else out
    num_bytes = _count_moved_bytes(op, values)
    if _is_depthwise(weight, op.args[8]):
        return [(DEPTHWISE, *_describe_by_bytes(image, weight, num_bytes))]
    return [
        ("convolution", *_describe_convolution(image, weight, op.args[8], num_bytes))
    ]


def _convolution_backward(op: ProgramOp, values: Values) -> list[Kernel]:
    gradient, source, weight = list(_infos(op, values))[:3]
    image = source if op.args[7] else gradient
    num_bytes = gradient.bytes + source.bytes + weight.bytes
    name = "convolution"
    sizes = _describe_convolution(image, weight, op.args[9], num_bytes)
    if _is_depthwise(weight, op.args[9]):
        name = DEPTHWISE
        sizes = _describe_by_bytes(image, weight, num_bytes)
    wanted = op.args[10]
    kernels: list[Kernel] = [(f"{name}.input", *sizes)] if wanted[0] else []
    return kernels + ([(f"{name}.weight", *sizes)] if wanted[1] else [])


def _is_depthwise(weight: ValueInfo, groups: int) -> bool:
    """Return whether every channel is convolved by itself.

    That is no matrix product: bytes bound it, as they bound a pool.
    """
    return groups > 1 and weight.shape[1] == 1


def _describe_by_bytes(
    image: ValueInfo, weight: ValueInfo, moved: int
) -> tuple[int, int, int, int, int, int]:
    length = image.shape[-1]
    rows = prod(image.shape) // max(length, 1)
    return 1, rows, length, 1, prod(weight.shape[2:]), moved


def _describe_convolution(
    image: ValueInfo, weight: ValueInfo, groups: int, moved: int
) -> tuple[int, int, int, int, int, int]:
    pixels = image.shape[0] * prod(image.shape[2:])
    window = prod(weight.shape[2:])
    filters = weight.shape[0] // groups
    return groups, pixels, filters, weight.shape[1] * window, window, moved


def _attention(op: ProgramOp, values: Values) -> list[Kernel]:
    """Return the kernel of an attention, forward or backward.

    Queries and keys are [batch, heads, length, width]. The backward op has them second, after the
    gradient.
    """
    infos = list(_infos(op, values))
    name = op_name(op)
    query, key = infos[1:3] if "backward" in name else infos[:2]
    if "backward" in name:
        plain = "attention_backward"
    else:
        plain = "attention"
    causal = int(any(argument is True for argument in (*op.args, *op.kwargs.values())))
    batch = prod(query.shape[:-2])
    width = query.shape[-1]
    return [
        (
            plain,
            batch,
            query.shape[-2],
            key.shape[-2],
            width,
            causal,
            _count_moved_bytes(op, values),
        )
    ]


PRODUCTS: Mapping[str, Callable[[ProgramOp, Values], list[Kernel]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "matmul"), _product),
    "linear": _linear,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        (
            "attention",
            "attention_backward",
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        _attention,
    ),
}
