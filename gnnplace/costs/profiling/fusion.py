"""Groups of ops that `torch.compile` fuses, and the share of their bytes that the kernel moves.

Inductor (Ansel et al., PyTorch 2, ASPLOS 2024) fuses a memory-bound op into its producer if both
have the same number of elements and no other op must run between them. Here the level of an op is
the number of products, convolutions and attentions on the longest path to it. Ops of the same
phase, level and number of elements that are connected by values form a group. A group reads each
outside value once, and writes the values that are read outside or by nobody:

    share = bytes in and out of the group / sum of the bytes of its ops.

Deviations: groups have no maximal size; two readers of the same value are not fused because of it;
nothing is recomputed in the backward pass; products do not absorb the ops after them. Complexity:
linear in the values.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray
from gnnplace.costs.profiling.description import PASSES, POOLS, PRODUCTS, op_name
from gnnplace.graph import components
from gnnplace.tracing import Program, ProgramOp

APART = frozenset((*PRODUCTS, *POOLS, *PASSES))
# Level, phase and elements, which the ops of a group have in common.
Key = tuple[int, str, int]


def find_fused_groups(program: Program) -> tuple[NDArray[np.intp], FloatArray]:
    """Return each op's group, by the number of its first op, and the share of bytes that it moves.

    Returns:
        Groups, an op that is fused with none being its own, and shares from 0 to 1. [ops] each
    """
    homes = _homes(program)
    count = len(program.ops)
    joined = _find_fused_pairs(program, homes)
    source, target = np.array(joined, dtype=np.int32).reshape(-1, 2).T
    label = components(
        np.ascontiguousarray(source), np.ascontiguousarray(target), count
    )
    # A group is called by its first op.
    first = np.full(count, count)
    np.minimum.at(first, label, np.arange(count))
    groups = first[label].astype(np.intp)
    readers: dict[str, set[int]] = {}
    for i, op in enumerate(program.ops):
        if not op.view:
            for name in op.reads:
                readers.setdefault(homes.get(name, name), set()).add(i)
    share = np.ones(count)
    size = {name: float(v.bytes) for name, v in program.values.items()}
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(members) > 1:
            ops = [program.ops[i] for i in members]
            share[members] = _share(ops, set(members.tolist()), size, homes, readers)
    return groups, share


def _homes(program: Program) -> dict[str, str]:
    """Return the value that every view shows."""
    homes: dict[str, str] = {}
    for op in program.ops:
        if op.view and op.reads:
            homes |= {
                name: homes.get(op.reads[0], op.reads[0]) for name in op.results if name
            }
    return homes


def _find_fused_pairs(program: Program, homes: dict[str, str]) -> list[tuple[int, int]]:
    """Return pairs of producer and consumer that are fused."""
    levels: dict[str, int] = {}
    maker: dict[str, tuple[int, Key]] = {}
    pairs = []
    for i, op in enumerate(program.ops):
        if op.view:
            continue
        read = [homes.get(name, name) for name in op.reads]
        level = max((levels.get(name, 0) for name in read), default=0)
        apart = op_name(op) in APART
        key = level, op.phase, _elements(program, op)
        if not apart:
            pairs += [
                (maker[x][0], i) for x in read if x in maker and maker[x][1] == key
            ]
        for name in filter(None, op.results):
            levels[name] = level + apart
            if not apart:
                maker[name] = i, key
    return pairs


def _elements(program: Program, op: ProgramOp) -> int:
    """Return the elements of the largest value that an op reads or makes."""
    names = (*op.reads, *filter(None, op.results))
    return max((prod(program.values[name].shape) for name in names), default=0)


def _share(
    ops: list[ProgramOp],
    group: set[int],
    size: dict[str, float],
    homes: dict[str, str],
    readers: dict[str, set[int]],
) -> float:
    """Return the share of its ops' bytes that go in and out of a group."""
    produced = {name for op in ops for name in op.results if name}
    inputs = {homes.get(name, name) for op in ops for name in op.reads} - produced
    outputs = [
        name for name in produced if not readers.get(name) or readers[name] - group
    ]
    total = sum(size[x] for op in ops for x in (*op.reads, *filter(None, op.results)))
    return min(1.0, sum(size[name] for name in (*inputs, *outputs)) / max(total, 1.0))
