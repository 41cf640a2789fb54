"""Working memory of ops and of groups of ops: bytes that are in no tensor of the graph.

``op_workspace`` gives the temporaries of single ops: an update of a parameter needs some of the
parameter's size; a matrix product copies operands whose rows and columns are not contiguous; a
convolution on a CPU copies its operands into oneDNN's layout.

``compute_group_workspace`` gives those of a group. Its ops run one after the other, and tensors
between them are not in the grouped graph. The group needs the peak of their bytes and the ops'
temporaries. Complexity: O(ops + consumptions).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.costs.profiling.description import op_name
from gnnplace.tracing import Program, ProgramGraph, ProgramOp, ValueInfo

UPDATES = {"sgd_update": 0, "momentum_update": 0, "adam_update": 1, "adamw_update": 1}
"""Number of temporaries of the parameter's size that an update of ``tracing.operations`` needs."""
DECAYED = ("sgd_update", "momentum_update", "adam_update")
"""Updates whose last argument is the weight decay; one that is not 0 needs a temporary more."""
CONVOLUTIONS = ("convolution", "convolution_backward")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def op_workspace(program: Program, microbatches: int, on_cpu: bool) -> FloatArray:
    """Return the bytes that each op needs besides its inputs and results. [num_ops]

    Args:
        program: The program of one micro-batch.
        microbatches: Number of micro-batches, whose gradients an update adds up in a temporary.
        on_cpu: Whether oneDNN runs the convolutions. The workspace of cuDNN is not known, and 0.
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
    rows, columns = info.shape[-2:]
    row_step, column_step = info.stride[-2:]
    has_contiguous_rows = column_step == 1 and row_step >= columns
    has_contiguous_columns = row_step == 1 and column_step >= rows
    is_vector = rows == 1 or columns == 1
    return not (has_contiguous_rows or has_contiguous_columns or is_vector)


def _count_reordered_bytes(program: Program, op: ProgramOp, is_backward: bool) -> float:
    """Return the bytes of the copies that oneDNN makes for a convolution.

    Measured on torch 2.13 (``benchmarks/results/memory.md``): a forward pass copies the weight and
    the larger one of input and output, a backward pass and a transposed convolution copy the input,
    the output and the weight. A window of one pixel without strides is a product, which copies
    nothing.
    """
    arguments: tuple[Any, ...] = op.args
    if is_backward:
        # aten.convolution_backward(grad_output, input, weight, bias_sizes, stride, padding,
        # dilation, transposed, ...)
        image = program.values[arguments[1].name]
        weight = program.values[arguments[2].name]
        strides = arguments[4]
        transposed = arguments[7]
        output = program.values[op.reads[0]]
    else:
        # aten.convolution(input, weight, bias, stride, padding, dilation, transposed, ...)
        image = program.values[arguments[0].name]
        weight = program.values[arguments[1].name]
        strides = arguments[3]
        transposed = arguments[6]
        output = program.values[str(op.results[0])]

    is_product = set(weight.shape[2:]) == {1} and set(strides) == {1}
    if is_product:
        return 0.0
    if is_backward or transposed:
        return float(image.bytes + output.bytes + weight.bytes)
    return float(max(image.bytes, output.bytes) + weight.bytes)


def compute_group_workspace(
    program: Program, fine: ProgramGraph, group: IntArray, op_workspace: FloatArray
) -> FloatArray:
    """Return the bytes that each group needs besides the tensors that leave it. [num_groups]

    Args:
        program: The program.
        fine: The graph of the program's ops, before grouping.
        group: Group of each op, from 0. [num_ops]
        op_workspace: Bytes that each op needs, from `op_workspace`. [num_ops]
    """
    # Views of one base have one root and share its memory. So memory is counted by (root, group):
    # its first producer and last consumer in the group, its bytes, and whether it leaves the group.
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    size: dict[tuple[int, int], float] = {}
    leaving: set[tuple[int, int]] = set()
    for k, root in enumerate(fine.root.tolist()):
        if root < 0 or not fine.values[k]:
            continue
        producer = int(fine.graph.producer[k])
        key = (root, int(group[producer]))
        first[key] = min(first.get(key, producer), producer)
        size[key] = max(size.get(key, 0.0), float(fine.occupied[k]))
        for consumer in fine.graph.consumers(k).tolist():
            if group[consumer] == key[1]:
                last[key] = max(last.get(key, consumer), consumer)
            else:
                leaving.add(key)

    # The memory that each op allocates, and that which is freed after it.
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for key, op_index in first.items():
        # A view's memory belongs to its base, which is in another group.
        if not program.ops[op_index].view:
            begins.setdefault(op_index, []).append(key)
            if key not in leaving:
                ends.setdefault(last[key], []).append(key)

    # Run the ops in order, and note the peak of each group.
    num_groups = int(group.max()) + 1
    graph_values = set(fine.values)
    alive = np.zeros(num_groups)
    peak = np.zeros(num_groups)
    leaving_bytes = np.zeros(num_groups)
    for i, op in enumerate(program.ops):
        g = int(group[i])
        for key in begins.get(i, ()):
            alive[g] += size[key]
            leaving_bytes[g] += size[key] if key in leaving else 0.0
        # A result that no op reads is freed at once.
        unread = sum(
            program.values[name].occupied_bytes
            for name in op.results
            if name is not None and name not in graph_values and not op.view
        )
        peak[g] = max(peak[g], alive[g] + unread + op_workspace[i])
        for key in ends.get(i, ()):
            alive[g] -= size[key]
    # The grouped graph counts tensors that leave, from the beginning of the group on.
    return np.asarray(np.maximum(peak - leaving_bytes, 0.0))
