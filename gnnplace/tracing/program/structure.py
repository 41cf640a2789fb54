"""The graph of a program: ops, tensors between them, their memory and where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import ComputationGraph
from gnnplace.problem import PHASES, UPDATE
from gnnplace.tracing.program.program import Program, ProgramOp, alias_roots


@dataclass(frozen=True)
class ProgramGraph:
    """A program as arrays.

    Attributes:
        graph: One op for each op of the program, in its order. A tensor for each value that an
            op reads, and a tensor of no bytes where an op only has to come before another.
        values: Value name of each tensor; empty for a tensor that is only an order. [num_tensors]
        root: Class of tensors in the same memory: a tensor and its views. -1 of a view of what is
            counted as state, which never travels. [num_tensors]
        occupied: Bytes of memory of each tensor: an expanded dimension counts once. [num_tensors]
        phase: The phase of each op, as in a problem. [num_ops]
        colocate: Class of the ops that touch the same parameter or changing buffer, named after
            the first of them. [num_ops]
        module: The module of each op. [num_ops]
        state: Bytes of parameters, optimizer state and buffers, each counted at one op. [num_ops]
        inputs: Bytes of the user's inputs, each counted at one op. [num_ops]
        attach: Op that this one should never be parted from, -1 if none: a view's producer, the
            op that makes what is copied into a buffer. [num_ops]
    """

    graph: ComputationGraph
    values: tuple[str, ...]
    root: IntArray
    occupied: FloatArray
    phase: NDArray[np.int8]
    colocate: tuple[str | None, ...]
    module: tuple[str | None, ...]
    state: FloatArray
    inputs: FloatArray
    attach: IntArray


def program_graph(program: Program) -> ProgramGraph:
    """Return the graph of a program."""
    values, triples = _tensors(program)
    names: list[str] = []
    modules: list[str | None] = []
    phases: list[int] = []
    for op in program.ops:
        names.append(op.name)
        modules.append(op.module)
        phases.append(PHASES.index(op.phase))
    occupied = np.zeros(len(values))
    for k, name in enumerate(values):
        occupied[k] = program.values[name].occupied_bytes if name else 0
    return ProgramGraph(
        graph=ComputationGraph.from_tensors(names, triples),
        values=values,
        root=_roots(program, values),
        occupied=occupied,
        phase=np.array(phases, dtype=np.int8),
        colocate=_classes(program),
        module=tuple(modules),
        state=_bytes_by_op(program, ("parameter", "buffer", "optimizer", "constant")),
        inputs=_bytes_by_op(program, ("input",)),
        attach=_attach(program),
    )


def _tensors(
    program: Program,
) -> tuple[tuple[str, ...], list[tuple[int, float, list[int]]]]:
    """Return the value of each tensor of the graph, and producer, bytes and consumers of each.

    Tensors without a value come last: each is an order between ops.
    """
    consumers: dict[str, list[int]] = {}
    linked: set[tuple[int, int]] = set()
    for i, op in enumerate(program.ops):
        for read in op.reads:
            if read in program.producer:
                consumers.setdefault(read, []).append(i)
                linked.add((program.producer[read], i))
    names = [
        r for op in program.ops for r in op.results if r in consumers and r is not None
    ]
    triples = [
        (program.producer[name], float(program.values[name].bytes), consumers[name])
        for name in names
    ]
    orders = _orders(program, linked)
    return (*names, *("" for _ in orders)), triples + orders


def _orders(
    program: Program, linked: set[tuple[int, int]]
) -> list[tuple[int, float, list[int]]]:
    """Return a tensor of no bytes from each op that others come `after` and are not linked to."""
    followers: dict[int, list[int]] = {}
    for i, op in enumerate(program.ops):
        for name in op.after:
            earlier = program.op_index[name]
            if (earlier, i) not in linked:
                followers.setdefault(earlier, []).append(i)
    return [(earlier, 0.0, followers[earlier]) for earlier in sorted(followers)]


def find_touching_ops(program: Program) -> dict[str, list[int]]:
    """Return the ops that read or change each parameter, optimizer tensor and changing buffer.

    Views of these count too. A parameter's class also has the op that makes its gradient, and
    buffers that one module changes share a class.
    """
    roots = alias_roots(program.ops)
    keys = _state_keys(program)
    result: dict[str, list[int]] = {}
    for i, op in enumerate(program.ops):
        for read in op.reads:
            for root in roots.get(read, (read,)):
                if root in keys:
                    result.setdefault(keys[root], []).append(i)
    for source, gradient in program.gradients.items():
        if gradient in program.producer:
            result.setdefault(f"parameter.{source}", []).append(
                program.producer[gradient]
            )
    return result


def _state_keys(program: Program) -> Mapping[str, str]:
    """Return the class name of each value that must not travel."""
    keys = {}
    for name, entry in program.inputs.items():
        if entry.kind == "parameter":
            keys[name] = name
        elif entry.kind == "optimizer":
            keys[name] = f"parameter.{entry.source.rpartition(':')[0]}"
        elif entry.source in program.buffers:
            keys[name] = f"buffer.{entry.source.rpartition('.')[0]}"
    return keys


def _classes(program: Program) -> tuple[str | None, ...]:
    """Return the class of each op by the state that it touches; None of the others. [num_ops]"""
    from scipy.cluster.hierarchy import DisjointSet  # late: a tenth of a second

    same = DisjointSet(range(len(program.ops)))
    label: dict[int, str] = {}
    for name, members in find_touching_ops(program).items():
        for op in members:
            same.merge(members[0], op)
        label.setdefault(members[0], name)
    names: dict[int, str] = {}
    for op in sorted(label):
        names.setdefault(same[op], label[op].partition(".")[2])
    return tuple(names.get(same[i]) for i in range(len(program.ops)))


def _roots(program: Program, values: Sequence[str]) -> IntArray:
    """Return the class of memory of each tensor; -1 of a view of state. [num_tensors]

    Values with one root are of its class; those with several are alone, as orders are.
    """
    roots = alias_roots(program.ops)
    state = _state_keys(program).keys()
    classes: dict[object, int] = {}
    class_of: list[int] = []
    for index, name in enumerate(values):
        value_roots = roots.get(name, frozenset((name,))) if name else frozenset[str]()
        key = next(iter(value_roots)) if len(value_roots) == 1 else index
        memory_class = classes.setdefault(key, len(classes))
        is_state = bool(value_roots) and value_roots <= state
        class_of.append(-1 if is_state else memory_class)
    return np.array(class_of, dtype=np.int32)


def _bytes_by_op(program: Program, kinds: Sequence[str]) -> FloatArray:
    """Return bytes of inputs of some kinds by the op that they count at. [num_ops]

    That is the op that changes the value in place, else the first that reads it.
    """
    state = np.zeros(len(program.ops))
    owner = _first_readers(program.ops)
    for i, op in enumerate(program.ops):
        if not op.results or PHASES.index(op.phase) == UPDATE:
            owner.update(dict.fromkeys(op.reads, i))
    for name, entry in program.inputs.items():
        if entry.kind in kinds and name in owner:
            state[owner[name]] += entry.info.bytes
    return state


def _first_readers(ops: Iterable[ProgramOp]) -> dict[str, int]:
    """Return the index of the first op that reads each value."""
    first_readers: dict[str, int] = {}
    for i, op in enumerate(ops):
        for read in op.reads:
            first_readers.setdefault(read, i)
    return first_readers


def _attach(program: Program) -> IntArray:
    """Return the op that each op must stay with, -1 if there is none. [num_ops]"""
    attach = np.full(len(program.ops), -1, dtype=np.int32)
    for i, op in enumerate(program.ops):
        producers = [
            program.producer[read] for read in op.reads if read in program.producer
        ]
        copies = not op.results and op.phase != PHASES[UPDATE]
        if (op.view or copies) and producers:
            attach[i] = producers[0]
    return attach
