"""Working memory of ops and groups of ops, besides the tensors that leave them.

The ops of a group run one after the other. Tensors between them are not part of the grouped graph,
but need memory. A single op may need working memory too: an update needs a temporary of the
parameter's size; a product copies operands whose rows and columns are not contiguous; a convolution
on a CPU copies its operands into oneDNN's layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.costs.profiling.description import op_name
from gnnplace.tracing import Program, ProgramGraph, ProgramOp, ValueInfo

UPDATES = {"sgd_update": 0, "momentum_update": 0, "adam_update": 1, "adamw_update": 1}
"""Number of temporaries of the parameter's size, by update of ``tracing.operations``."""
DECAYED = ("sgd_update", "momentum_update", "adam_update")
"""Updates whose last argument is the factor of an L2 penalty, which takes one more temporary."""
CONVOLUTIONS = ("convolution", "convolution_backward")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def op_workspace(program: Program, microbatches: int, on_cpu: bool) -> FloatArray:
    """Return the bytes that each op needs beside what it reads and returns. [num_ops]

    Args:
        program: The program, of one micro-batch.
        microbatches: Gradients that an update adds up; more than one take a temporary.
        on_cpu: Whether convolutions are oneDNN's. What cuDNN takes is not known.
    """
    workspace = np.zeros(len(program.ops))
    for i, op in enumerate(program.ops):
        name = op_name(op)
        if name in UPDATES:
            temporaries = UPDATES[name] + (microbatches > 1)
            temporaries += name in DECAYED and bool(op.args[-1])
            workspace[i] = temporaries * program.values[op.reads[0]].bytes
        elif name in PRODUCTS:
            for read in op.reads:
                info = program.values[read]
                workspace[i] += info.bytes if _is_copied(info) else 0
        elif on_cpu and name in CONVOLUTIONS:
            workspace[i] = _count_reordered_bytes(
                program, op, is_backward=name != "convolution"
            )
        elif on_cpu and name == "attention_backward":
            # Flash attention on a CPU adds up one gradient in a tensor of its own.
            workspace[i] = program.values[op.reads[0]].bytes
    return workspace


def _is_copied(info: ValueInfo) -> bool:
    """Return whether a matrix must be copied before BLAS multiplies it.

    BLAS takes rows or columns that are contiguous; an expanded gradient has neither.
    """
    if len(info.shape) < 2:
        return False
    (rows, columns), (row_step, column_step) = info.shape[-2:], info.stride[-2:]
    has_rows = column_step == 1 and row_step >= columns
    has_columns = row_step == 1 and column_step >= rows
    return not (has_rows or has_columns or 1 in (rows, columns))


def _count_reordered_bytes(program: Program, op: ProgramOp, is_backward: bool) -> float:
    """Return the bytes of the copies that oneDNN makes for a convolution.

    Measured on torch 2.13 (``benchmarks/results/memory.md``): a forward pass copies the weight and
    the larger one of input and output, a backward pass and a transposed convolution copy the input,
    the output and the weight. One pixel wide windows without strides are products, and copy none.
    """
    arguments: tuple[Any, ...] = op.args[1:] if is_backward else op.args
    image, weight = (program.values[argument.name] for argument in arguments[:2])
    # Arguments of `convolution` after the bias; of the backward pass after its sizes, one earlier.
    strides, transposed = (
        (op.args[4], op.args[7]) if is_backward else (op.args[3], op.args[6])
    )
    if set(weight.shape[2:]) == {1} and set(strides) == {1}:
        return 0.0
    output = program.values[op.reads[0] if is_backward else str(op.results[0])]
    if is_backward or transposed:
        return float(image.bytes + output.bytes + weight.bytes)
    return float(max(image.bytes, output.bytes) + weight.bytes)


def compute_group_workspace(
    program: Program, fine: ProgramGraph, group: IntArray, op_workspace: FloatArray
) -> FloatArray:
    """Return the bytes that each group needs beside the tensors that leave it. [num_groups]

    Args:
        program: The program.
        fine: The graph of the program's ops.
        group: Group of each op. [num_ops]
        op_workspace: Bytes that each op needs for itself. [num_ops]
    """
    # Memory that an op of a group takes: tensors with one root share it.
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    size: dict[tuple[int, int], float] = {}
    leaving: set[tuple[int, int]] = set()
    for k, root in enumerate(fine.root.tolist()):
        producer = int(fine.graph.producer[k])
        key = (root, int(group[producer]))
        if root < 0 or not fine.values[k]:
            continue
        first[key] = min(first.get(key, producer), producer)
        size[key] = max(size.get(key, 0.0), float(fine.occupied[k]))
        for consumer in fine.graph.consumers(k).tolist():
            if group[consumer] == key[1]:
                last[key] = max(last.get(key, consumer), consumer)
            else:
                leaving.add(key)
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for key, op_index in first.items():
        # A view's memory belongs to its base, which is in another group.
        if not program.ops[op_index].view:
            begins.setdefault(op_index, []).append(key)
            if key not in leaving:
                ends.setdefault(last[key], []).append(key)

    count = int(group.max()) + 1
    read = set(fine.values)
    alive = np.zeros(count)
    peak = np.zeros(count)
    leaving_bytes = np.zeros(count)
    for i, op in enumerate(program.ops):
        g = int(group[i])
        for key in begins.get(i, ()):
            alive[g] += size[key]
            leaving_bytes[g] += size[key] if key in leaving else 0.0
        unread = sum(
            program.values[name].occupied_bytes
            for name in op.results
            if name is not None and name not in read and not op.view
        )
        peak[g] = max(peak[g], alive[g] + unread + op_workspace[i])
        for key in ends.get(i, ()):
            alive[g] -= size[key]
    # Tensors that leave are counted by themselves, from the group's beginning on.
    return np.asarray(np.maximum(peak - leaving_bytes, 0.0))
